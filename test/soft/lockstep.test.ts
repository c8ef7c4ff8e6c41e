/** Machine code on both tiers at once: what compiled code must get right besides single instructions (test/oracle has those). */
import { describe, expect, it } from 'vitest'
import type { StepExit, VcpuExit } from '../../src/accel/contract.ts'
import { loadProgram } from '../../src/machine/boot/program.ts'
import { assemble, POWER_OFF } from '../../src/machine/micro-programs.ts'
import { GuestMemory } from '../../src/memory/guest-memory.ts'
import { LockstepVcpu } from '../../src/soft/lockstep.ts'
import { SoftVm } from '../../src/soft/vm.ts'
import { RecordingIo } from './micro-machine.ts'

const EAGER = { threshold: 3, batch: 1, patience: 0, everyEdge: true, background: false }

function machine(program: Uint8Array, slice = 50): { memory: GuestMemory; vm: SoftVm; vcpu: LockstepVcpu } {
  const memory = GuestMemory.create(4)
  const vm = new SoftVm({ memory, cpus: 1, soft: { tier: 'lockstep' } })
  const entry = loadProgram(memory, program)
  const vcpu = new LockstepVcpu(vm.vcpuTicket(0), EAGER, slice)
  vcpu.reset()
  vcpu.writeSystemRegisters({ ...vcpu.readSystemRegisters(), ...entry.system })
  vcpu.writeRegisters(entry.registers)
  return { memory, vm, vcpu }
}

const reasonOf = (exit: VcpuExit | StepExit): string => (exit.reason === 'internal-error' ? exit.message : exit.reason)

/** Runs `program` until it powers off; the counters of both sides. */
async function lockstep(
  program: Uint8Array,
  prepare: (memory: GuestMemory) => void = () => {},
  slice = 50,
): Promise<Record<string, number> & { readonly written: readonly number[] }> {
  const { memory, vm, vcpu } = machine(program, slice)
  try {
    prepare(memory)
    const io = new RecordingIo()
    expect(reasonOf(vcpu.run(io))).toBe('stopped')
    const written = io.written.filter(({ port }) => port === 0x80).map(({ value }) => value)
    return Object.assign(vcpu.counters(), { written })
  } finally {
    vcpu.close()
    vm.close()
  }
}

describe('both tiers in lockstep', () => {
  it('a loop over memory with flags that cross blocks', async () => {
    const counters = await lockstep(
      assemble(
        'b9 d0 07 00 00', // mov ecx, 2000
        '48 01 c8 48 31 c3', // loop: add rax, rcx; xor rbx, rax
        '48 89 1c 25 00 30 00 00', // mov [0x3000], rbx
        '48 8b 14 25 00 30 00 00', // mov rdx, [0x3000]
        '48 c1 c2 05 48 0f af d0', // rol rdx, 5; imul rdx, rax
        '48 11 d3 72 03 48 ff c6', // adc rbx, rdx; jc +3; inc rsi
        '77 03 48 ff c7', // ja +3 (flags from before); inc rdi
        'ff c9 75 d1', // dec ecx; jne loop
        POWER_OFF,
      ),
    )
    expect(counters.compiledRegions).toBeGreaterThan(0)
    expect(counters.compiledEntries).toBeGreaterThan(10)
  })

  it('calls, returns and pushes', async () => {
    const counters = await lockstep(
      assemble(
        'bc 00 00 08 00 bb 20 03 00 00', // mov esp, 0x80000; mov ebx, 800
        'e8 06 00 00 00 ff cb 75 f7', // loop: call f; dec ebx; jne loop
        'eb 0e', // jmp out
        '53 50 6a 7b 59 48 01 c8 5a 01 d0 5b c3', // f: push rbx, rax, 123; pop rcx; add rax, rcx; pop rdx; add eax, edx; pop rbx; ret
        '90', // out
        POWER_OFF,
      ),
    )
    expect(counters.compiledEntries).toBeGreaterThan(100)
  })

  it('code that patches the loop it is in', async () => {
    const counters = await lockstep(
      assemble(
        'b9 c8 00 00 00 31 db', // mov ecx, 200; xor ebx, ebx
        '88 0d 01 00 00 00', // loop: mov [rip+1], cl: the immediate of the next mov
        'b0 00 0f b6 c0 01 c3', // mov al, (cl); movzx eax, al; add ebx, eax
        'ff c9 75 ef', // dec ecx; jne loop
        '89 d8 e7 80', // mov eax, ebx; out 0x80, eax
        POWER_OFF,
      ),
    )
    expect(counters.codeWrites).toBeGreaterThan(100)
  })

  it('the machine sees each access once', () => {
    // in al, 0x10; mov ecx, eax: a port that answers differently each time is read once, whatever the sides do.
    const { vm, vcpu } = machine(assemble('e4 10 89 c1', POWER_OFF))
    const io = new RecordingIo()
    let reads = 0
    io.portRead = () => ++reads
    expect(reasonOf(vcpu.run(io))).toBe('stopped')
    expect(reads).toBe(1)
    expect(vcpu.readRegisters().general[1]! & 0xffn).toBe(1n)
    vcpu.close()
    vm.close()
  })

  it('a difference ends it with both states', () => {
    // mov ecx, 1000; loop: out 0x80, al; dec ecx; jne loop
    const { vm, vcpu } = machine(assemble('b9 e8 03 00 00 e6 80 ff c9 75 fa', POWER_OFF))
    const io = new RecordingIo()
    // Stands for a mistake of the compiler: its side loses a bit of RBX while the interpreter is at the hundredth access.
    let accesses = 0
    io.portWrite = () => {
      if (++accesses !== 100) return
      const registers = vcpu.compiled!.readRegisters()
      vcpu.compiled!.writeRegisters({ ...registers, general: registers.general.with(3, registers.general[3]! ^ 1n) })
    }
    const exit = vcpu.run(io)
    const message = reasonOf(exit)
    expect(message).toMatch(
      /^the tiers differ in a general register \(state \+ 0x18\); they were equal after \d+ instructions\n/,
    )
    expect(message).toMatch(/interpreted, \d+ instructions:\n +rax [0-9a-f]{16}/)
    expect(message).toMatch(/compiled, \d+ instructions:\n +rax [0-9a-f]{16}/)
    vcpu.close()
    vm.close()
  })

  it('is refused devices, more CPUs and traces', () => {
    const memory = GuestMemory.create(4)
    const vm = new SoftVm({ memory, cpus: 1, soft: { tier: 'lockstep' } })
    expect(() => vm.doorbell(0xc000_1050, 0)).toThrow('a machine in lockstep has no devices')
    expect(() => new SoftVm({ memory, cpus: 2, soft: { tier: 'lockstep' } })).toThrow('has one CPU')
    expect(() => new SoftVm({ memory, cpus: 1, soft: { tier: 'lockstep', trace: 'exits' } })).toThrow('not traced')
    vm.close()
  })

  it('accesses that share one look at the TLB, where now and then a page ends between them', async () => {
    const counters = await lockstep(
      assemble(
        'b9 30 75 00 00', // mov ecx, 30000
        '89 cb 81 e3 ff 01 00 00', // loop: mov ebx, ecx; and ebx, 0x1ff
        '48 8d 9b 00 0f 08 00', // lea rbx, [rbx+0x80f00]
        '48 8d 63 40', // lea rsp, [rbx+0x40]
        '48 89 0b 48 8b 53 10', // mov [rbx], rcx; mov rdx, [rbx+0x10]
        '48 01 53 20 51 52', // add [rbx+0x20], rdx; push rcx; push rdx
        '48 8d 7c 24 08 48 03 07', // lea rdi, [rsp+8]; add rax, [rdi]
        '5e 5d 0f b6 53 27', // pop rsi; pop rbp; movzx edx, byte [rbx+0x27]
        '48 01 d0 ff c9 75 cb', // add rax, rdx; dec ecx; jne loop
        POWER_OFF,
      ),
    )
    expect(counters.compiledMisses).toBeGreaterThan(1000)
    // Where it happens too often they are looked up one by one.
    expect(counters.compiledMisses).toBeLessThan(3000)
  })
})

/** Functions at 0x101000 and 0x102000. */
function functions(first: string, second: string): (memory: GuestMemory) => void {
  return memory => {
    memory.write(0x10_1000, assemble(first))
    memory.write(0x10_2000, assemble(second))
  }
}

/** 4 KiB pages for the first 2 MiB; the entries of the page table are at 0x60000. */
function smallPages(memory: GuestMemory): void {
  for (let page = 0; page < 512; page++) memory.writeU64(0x6_0000 + page * 8, BigInt(page * 4096 + 3))
  memory.writeU64(0xb000, 0x6_0003n)
}

/** How much compiled code runs at a time: 5 and less where every call and every return leaves the region. */
const stay = (counters: Record<string, number>): number => counters.compiledInstructions! / counters.compiledEntries!

/** What a loop of 2000 adds up to when what it adds is 1, and each 64 times becomes `next` of itself and of the rounds left. */
function sumOver(next: (value: number, count: number) => number): number {
  let [sum, value] = [0, 1]
  for (let count = 2000; count > 0; count--) {
    if ((count & 63) === 0) value = next(value, count & 0xff)
    sum += value
  }
  return sum
}

describe('regions of several pages in lockstep', () => {
  // mov eax, 1; ret
  const one = 'b8 01 00 00 00 c3'
  // mov eax, 2; ret
  const two = 'b8 02 00 00 00 c3'

  it.each([1, 7, 50, 1000])('calls into another page and returns, in slices of %d', async slice => {
    const counters = await lockstep(
      assemble(
        'bc 00 00 09 00 b9 d0 07 00 00 31 db', // mov esp, 0x90000; mov ecx, 2000; xor ebx, ebx
        'e8 ef 0f 00 00 01 c3', // loop: call 0x101000; add ebx, eax
        'e8 e8 1f 00 00 01 c3', // call 0x102000; add ebx, eax
        'ff c9 75 ee', // dec ecx; jne loop
        '89 d8 e7 80', // mov eax, ebx; out 0x80, eax
        POWER_OFF,
      ),
      // The first calls the second: two calls from two pages, and returns to both.
      functions(`e8 fb 0f 00 00 ff c0 c3`, two),
      slice,
    )
    expect(counters.written).toEqual([2000 * 5])
    // In lockstep a slice ends every so many instructions.
    if (slice === 1000) expect(stay(counters)).toBeGreaterThan(100)
  })

  it('a function in another page that the region overwrites', async () => {
    const counters = await lockstep(
      assemble(
        'bc 00 00 09 00 bf 00 10 10 00', // mov esp, 0x90000; mov edi, 0x101000
        'b9 d0 07 00 00 31 db', // mov ecx, 2000; xor ebx, ebx
        'f6 c1 3f 75 03 88 4f 01', // loop: test cl, 63; jne +3; mov [rdi+1], cl
        'e8 e2 0f 00 00 01 c3', // call 0x101000; add ebx, eax
        'ff c9 75 ed', // dec ecx; jne loop
        '89 d8 e7 80', // mov eax, ebx; out 0x80, eax
        POWER_OFF,
      ),
      functions(one, two),
    )
    expect(counters.written).toEqual([sumOver((_, count) => count)])
    expect(counters.codeWrites).toBeGreaterThan(20)
    expect(stay(counters)).toBeGreaterThan(8)
  })

  it('a function in another page that another region overwrites, in its middle', async () => {
    const counters = await lockstep(
      assemble(
        'bc 00 00 09 00 be 00 20 10 00 bf 00 10 10 00', // mov esp, 0x90000; mov esi, 0x102000; mov edi, 0x101000
        'b9 d0 07 00 00 31 db', // mov ecx, 2000; xor ebx, ebx
        'f6 c1 3f 75 02 ff d6', // loop: test cl, 63; jne +2; call rsi
        'e8 de 0f 00 00 01 c3', // call 0x101000; add ebx, eax
        'ff c9 75 ee', // dec ecx; jne loop
        '89 d8 e7 80', // mov eax, ebx; out 0x80, eax
        POWER_OFF,
      ),
      // Two blocks, of which only the second changes: jmp +0; mov eax, 1; ret. And: mov [rdi+3], cl; ret
      functions(`eb 00 ${one}`, '88 4f 03 c3'),
    )
    expect(counters.written).toEqual([sumOver((_, count) => count)])
    expect(counters.codeWrites).toBeGreaterThan(20)
    expect(stay(counters)).toBeGreaterThan(8)
  })

  it.each([
    ['INVLPG', '0f 01 3c 25 00 10 10 00'],
    ['a write to CR3', '0f 20 d8 0f 22 d8 66 90'],
  ])('a page that is another one after %s', async (_, flush) => {
    const counters = await lockstep(
      assemble(
        'bc 00 00 09 00', // mov esp, 0x90000
        'b9 d0 07 00 00 31 db', // mov ecx, 2000; xor ebx, ebx
        'f6 c1 3f 75 14', // loop: test cl, 63; jne +20
        '48 81 34 25 08 08 06 00 00 30 00 00', // xor qword [0x60808], 0x3000: 0x101000 becomes 0x102000 and back
        flush,
        'e8 d6 0f 00 00 01 c3', // call 0x101000; add ebx, eax
        'ff c9 75 dc', // dec ecx; jne loop
        '89 d8 e7 80', // mov eax, ebx; out 0x80, eax
        POWER_OFF,
      ),
      memory => {
        functions(one, two)(memory)
        smallPages(memory)
      },
    )
    expect(counters.written).toEqual([sumOver(value => 3 - value)])
    expect(counters.codeWrites).toBe(0)
    // Half of the time the region finds another page there, and leaves.
    expect(stay(counters)).toBeGreaterThan(5)
  })

  it('a function that calls itself, where a return comes back to itself', async () => {
    const counters = await lockstep(
      assemble(
        'bc 00 00 09 00 31 db bd 64 00 00 00', // mov esp, 0x90000; xor ebx, ebx; mov ebp, 100
        'b9 32 00 00 00 e8 ea 0f 00 00', // loop: mov ecx, 50; call 0x101000
        'ff cd 75 f2', // dec ebp; jne loop
        '89 d8 e7 80', // mov eax, ebx; out 0x80, eax
        POWER_OFF,
      ),
      // inc ebx; dec ecx; je +5; call 0x101000; ret
      functions('ff c3 ff c9 74 05 e8 f5 ff ff ff c3', two),
      1000,
    )
    expect(counters.written).toEqual([5000])
    expect(stay(counters)).toBeGreaterThan(8)
  })

  it('a return address that the function changes', async () => {
    const counters = await lockstep(
      assemble(
        'bc 00 00 09 00', // mov esp, 0x90000
        'b9 d0 07 00 00 31 db 31 f6', // mov ecx, 2000; xor ebx, ebx; xor esi, esi
        'e8 ed 0f 00 00 83 c6 03 ff c3', // loop: call 0x101000; add esi, 3; inc ebx
        'ff c9 75 f2', // dec ecx; jne loop
        '89 d8 e7 80 89 f0 e7 80', // mov eax, ebx; out 0x80, eax; mov eax, esi; out 0x80, eax
        POWER_OFF,
      ),
      // Every fourth time it comes back three bytes later: test cl, 3; jne +5; add qword [rsp], 3; ret
      functions('f6 c1 03 75 05 48 83 04 24 03 c3', two),
    )
    expect(counters.written).toEqual([2000, 1500 * 3])
    expect(stay(counters)).toBeGreaterThan(8)
  })
})
