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

function machine(program: Uint8Array): { memory: GuestMemory; vm: SoftVm; vcpu: LockstepVcpu } {
  const memory = GuestMemory.create(4)
  const vm = new SoftVm({ memory, cpus: 1, soft: { tier: 'lockstep' } })
  const entry = loadProgram(memory, program)
  const vcpu = new LockstepVcpu(vm.vcpuTicket(0), EAGER, 50)
  vcpu.reset()
  vcpu.writeSystemRegisters({ ...vcpu.readSystemRegisters(), ...entry.system })
  vcpu.writeRegisters(entry.registers)
  return { memory, vm, vcpu }
}

const reasonOf = (exit: VcpuExit | StepExit): string => (exit.reason === 'internal-error' ? exit.message : exit.reason)

/** Runs `program` until it powers off; the counters of both sides. */
async function lockstep(program: Uint8Array): Promise<Record<string, number>> {
  const { vm, vcpu } = machine(program)
  try {
    expect(reasonOf(vcpu.run(new RecordingIo()))).toBe('stopped')
    return vcpu.counters()
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
