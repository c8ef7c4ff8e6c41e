/** The software CPU on bare machine code: what a kernel relies on, and what a hostile guest tries. */
import { createHash } from 'node:crypto'
import { describe, expect, it } from 'vitest'
import { drainEventFd } from '../../src/host/event-fd.ts'
import { assemble, POWER_OFF, TRIPLE_FAULT } from '../../src/machine/micro-programs.ts'
import { DEVICES_BASE, DEVICES_END, RAM_OFFSET } from '../../src/memory/layout.ts'
import { CodeWatch } from '../../src/soft/code-watch.ts'
import { EXIT_BUDGET } from '../../wasm/cpu/state.ts'
import { hostileCase } from './fuzz.ts'
import { allowUser, microMachine } from './micro-machine.ts'

const CODE = 0x10_0000

describe('programs', () => {
  it('prints through OUTSB and stops', () => {
    const { vcpu, io } = microMachine(
      assemble('48 8d 35 15 00 00 00 b9 06 00 00 00 66 ba f8 03 fc f3 6e', POWER_OFF, [72, 101, 108, 108, 111, 10]),
    )
    expect(vcpu.run(io)).toEqual({ reason: 'stopped' })
    const text = io.written.filter(({ port }) => port === 0x3f8).map(({ value }) => String.fromCharCode(value))
    expect(text.join('')).toBe('Hello\n')
  })

  it('sees its own code change: the next instruction, and a loop that patches itself', () => {
    // mov byte [rip+1], 7; mov al, 1 (patched to 7); out 0x80, al; then 200 rounds that change the operand of the mov
    const program = assemble(
      'c6 05 01 00 00 00 07 b0 01 e6 80', // patches the 01 below it
      'b9 c8 00 00 00', // mov ecx, 200
      '31 db', // xor ebx, ebx
      '88 0d 01 00 00 00', // mov [rip+1], cl: the immediate of the next mov
      'b0 00', // mov al, cl's value
      '0f b6 c0 01 c3', // movzx eax, al; add ebx, eax
      'ff c9 75 ef', // dec ecx; jne -17
      '89 d8 e7 80', // mov eax, ebx; out 0x80, eax
      POWER_OFF,
    )
    const { vcpu, io } = microMachine(program)
    expect(vcpu.run(io)).toEqual({ reason: 'stopped' })
    expect(io.written[0]!.value).toBe(7)
    expect(io.written[1]!.value).toBe((200 * 201) / 2)
    expect(vcpu.counters().codeWrites).toBeGreaterThan(100)
  })

  it.each(['interpreter', 'compiler'] as const)(
    'sees a change in either part of an instruction across two pages: %s',
    tier => {
      const rounds = 300
      const { vcpu, io } = microMachine(
        assemble(
          'bc 00 00 09 00 bf fd 1f 10 00', // mov esp, 0x90000; mov edi, 0x101ffd
          'c6 07 b8 c7 47 01 00 00 00 00 c6 47 05 c3', // there: mov eax, 0; ret
          'b9 2c 01 00 00 31 db', // mov ecx, 300; xor ebx, ebx
          '88 4f 04', // loop: mov [rdi+4], cl: in the second page
          'ff d7 01 c3', // call rdi; add ebx, eax
          'f6 c1 07 75 03 88 4f 01', // every eighth time: mov [rdi+1], cl: in the first page
          'ff c9 75 ed', // dec ecx; jne loop
          '89 d8 e7 80', // mov eax, ebx; out 0x80, eax
          'b9 e8 03 00 00 ff d7 ff c9 75 fa', // 1,000 calls without a change
          POWER_OFF,
        ),
        { tier },
      )
      expect(vcpu.run(io)).toEqual({ reason: 'stopped' })
      let [sum, low] = [0, 0]
      for (let count = rounds; count > 0; count--) {
        sum = (sum + (((count & 0xff) << 24) | low)) >>> 0
        if ((count & 7) === 0) low = count & 0xff
      }
      expect(io.written[0]!.value).toBe(sum)
      expect(vcpu.counters().blocksDecoded).toBeLessThan(3 * rounds)
    },
  )

  it.each(['interpreter', 'compiler'] as const)('sees code that a device has written: %s', tier => {
    const { vcpu, io, memory } = microMachine(
      assemble(
        'bc 00 00 09 00 bf 00 20 10 00', // mov esp, 0x90000; mov edi, 0x102000
        'b9 64 00 00 00 31 db', // mov ecx, 100; xor ebx, ebx
        'ff d7 01 c3', // loop: call rdi; add ebx, eax
        'e6 81', // out 0x81, al: the device writes
        'ff c9 75 f6', // dec ecx; jne loop
        '89 d8 e7 80', // mov eax, ebx; out 0x80, eax
        POWER_OFF,
      ),
      { tier },
    )
    memory.write(0x10_2000, assemble('b8 01 00 00 00 c3')) // mov eax, 1; ret
    const watch = new CodeWatch(memory)
    let rounds = 0
    const record = io.portWrite.bind(io)
    io.portWrite = (port, size, value) => {
      record(port, size, value)
      if (port !== 0x81) return
      memory.writeU8(0x10_2001, ++rounds)
      watch.note(RAM_OFFSET + 0x10_2001, 1)
    }
    expect(vcpu.run(io)).toEqual({ reason: 'stopped' })
    expect(io.written.find(({ port }) => port === 0x80)!.value).toBe(1 + (99 * 100) / 2)
  })

  it('owes no trap after a SYSCALL that masks TF', () => {
    const { vcpu, io, memory } = microMachine(
      assemble(
        'bc 00 00 09 00 0f 01 1c 25 00 28 00 00', // mov esp, 0x90000; lidt [0x2800]
        'b9 80 00 00 c0 0f 32 83 c8 01 0f 30', // EFER |= SCE
        'b9 82 00 00 c0 b8 00 40 00 00 31 d2 0f 30', // LSTAR = 0x4000
        'b9 84 00 00 c0 b8 00 01 00 00 31 d2 0f 30', // SFMASK = TF
        'b9 81 00 00 c0 31 c0 ba 08 00 00 00 0f 30', // STAR: kernel CS 8
        '9c 81 0c 24 00 01 00 00 9d', // pushf; or [rsp], TF; popf
        '0f 05', // syscall: began with TF set
      ),
    )
    // TF on again: the trap comes after the next instruction, not before it.
    memory.write(0x4000, assemble('9c 81 0c 24 00 01 00 00 9d 90 90', POWER_OFF))
    memory.write(0x1000, assemble('48 8b 04 24 e7 80', POWER_OFF)) // #DB: mov rax, [rsp]; out 0x80, eax
    memory.writeU64(0x2010, 0x0000_8e00_0008_1000n)
    memory.writeU64(0x2018, 0n)
    memory.writeU16(0x2800, 0x7ff)
    memory.writeU64(0x2802, 0x2000n)
    expect(vcpu.run(io)).toEqual({ reason: 'stopped' })
    expect(io.written[0]).toEqual({ port: 0x80, size: 4, value: 0x400a })
  })

  it('waits for a TSC deadline beyond 2^63', () => {
    const { vcpu, io } = microMachine(
      assemble(
        'b9 1b 00 00 00 0f 32 80 cc 0c 0f 30', // x2APIC on
        'b9 0f 08 00 00 b8 ff 01 00 00 31 d2 0f 30', // SVR: enable
        'b9 32 08 00 00 b8 40 00 04 00 31 d2 0f 30', // LVT timer: TSC deadline, vector 0x40
        'b9 e0 06 00 00 31 c0 ba 00 00 00 f0 0f 30', // deadline 0xf0000000_00000000
        'b9 00 20 00 00 ff c9 75 fc', // some time
        'b9 22 08 00 00 0f 32 e7 80', // IRR of vectors 0x40 to 0x5f
        POWER_OFF,
      ),
    )
    vcpu.slice(io, 100)
    expect(vcpu.run(io)).toEqual({ reason: 'stopped' })
    expect(io.written[0]).toEqual({ port: 0x80, size: 4, value: 0 })
  })

  it('goes on in code that another thread compiled meanwhile', () => {
    const { vcpu, io } = microMachine(
      // mov ecx, 0x7fffffff; loop: inc rax; dec ecx; jne loop
      assemble('b9 ff ff ff 7f 48 ff c0 ff c9 75 f9', POWER_OFF),
    )
    for (let steps = 0; vcpu.counters().compiledInstructions! < 1_000_000; steps++) {
      if (steps > 300_000) expect.fail('nothing was compiled')
      vcpu.slice(io, 5000)
    }
    const [rax, rcx] = vcpu.readRegisters().general
    expect(rax! + rcx!).toBe(0x7fff_ffffn)
    vcpu.close()
  })

  it('reports a triple fault with the registers', () => {
    const { vcpu, io } = microMachine(TRIPLE_FAULT)
    const exit = vcpu.run(io)
    expect(exit.reason).toBe('shutdown')
    if (exit.reason !== 'shutdown') return
    expect(exit.dump.registers.general[0]).toBe(0x1234n)
    expect([...exit.dump.code.subarray(0, 2)]).toEqual([0x0f, 0x0b])
  })

  it('wakes from HLT by the local APIC timer', () => {
    // IDT at 0x2000: vector 0x40 -> handler that counts in [0x3000] and ends the interrupt.
    const { vcpu, io, memory } = microMachine(
      assemble(
        '0f 01 1c 25 00 28 00 00', // lidt [0x2800]
        'bb 00 00 e0 fe', // mov ebx, 0xfee00000
        'c7 83 f0 00 00 00 ff 01 00 00', // SVR: enable
        'c7 83 20 03 00 00 40 00 00 00', // LVT timer: vector 0x40, one-shot
        'c7 83 e0 03 00 00 0b 00 00 00', // divide by 1
        'c7 83 80 03 00 00 a0 86 01 00', // initial count 100,000: one millisecond
        'fb f4 fa', // sti; hlt; cli
        '8b 04 25 00 30 00 00 e7 80', // mov eax, [0x3000]; out 0x80, eax
        POWER_OFF,
      ),
    )
    const handler = assemble('ff 04 25 00 30 00 00 c7 83 b0 00 00 00 00 00 00 00 48 cf') // inc [0x3000]; EOI; iretq
    memory.write(0x1000, handler)
    memory.writeU64(0x2000 + 0x40 * 16, 0x0000_8e00_0008_1000n)
    memory.writeU64(0x2008 + 0x40 * 16, 0n)
    // The fourth GiB's page directory, with one 2 MiB page for the local APIC.
    memory.writeU64(0xa018, 0xe003n)
    memory.writeU64(0xe000 + 0x1f7 * 8, 0xfee0_0083n)
    memory.writeU16(0x2800, 0x7ff)
    memory.writeU64(0x2802, 0x2000n)
    expect(vcpu.run(io)).toEqual({ reason: 'stopped' })
    expect(io.written[0]!.value).toBe(1)
    expect(vcpu.counters().halts).toBeGreaterThan(0)
  })

  it('stops at data breakpoints and after single steps, as a debugger asks', () => {
    // #DB's handler stores DR6 and the interrupted RIP's low byte at [0x3000 + 16 * n], clears DR6 and TF, and returns.
    const handler = assemble(
      '50 51', // push rax; push rcx
      '8b 0c 25 00 38 00 00 ff 04 25 00 38 00 00 c1 e1 04', // mov ecx, [0x3800]; inc dword [0x3800]; shl ecx, 4
      '0f 21 f0 48 89 81 00 30 00 00', // mov rax, dr6; mov [rcx + 0x3000], rax
      '48 8b 44 24 10 48 89 81 08 30 00 00', // mov rax, [rsp + 16]; mov [rcx + 0x3008], rax
      '31 c0 0f 23 f0', // xor eax, eax; mov dr6, rax
      '81 64 24 20 ff fe ff ff', // and dword [rsp + 32], ~TF
      '59 58 48 cf', // pop rcx; pop rax; iretq
    )
    const program = assemble(
      '0f 01 1c 25 00 28 00 00', // lidt [0x2800]
      'b8 10 34 00 00 0f 23 c0', // mov eax, 0x3410; mov dr0, rax
      'b8 01 00 0d 00 0f 23 f8', // mov eax, L0 | write | 4 bytes; mov dr7, rax
      '8b 04 25 10 34 00 00', // mov eax, [0x3410]: no trap
      'c6 04 25 13 34 00 00 05', // mov byte [0x3413], 5: trap
      'c6 04 25 14 34 00 00 05', // mov byte [0x3414], 5: no trap
      '31 c0 0f 23 f8', // xor eax, eax; mov dr7, rax
      '9c 81 0c 24 00 01 00 00 9d', // pushf; or dword [rsp], TF; popf
      '90 90', // one nop, then the trap
      POWER_OFF,
    )
    const { vcpu, io, memory } = microMachine(program)
    memory.write(0x1000, handler)
    memory.writeU64(0x2010, 0x0000_8e00_0008_1000n)
    memory.writeU64(0x2018, 0n)
    memory.writeU16(0x2800, 0x7ff)
    memory.writeU64(0x2802, 0x2000n)
    expect(vcpu.run(io)).toEqual({ reason: 'stopped' })
    expect(memory.readU32(0x3800)).toBe(2)
    expect(memory.readU64(0x3000) & 0xf00fn).toBe(1n)
    expect(memory.readU64(0x3008)).toBe(BigInt(CODE + 39))
    expect(memory.readU64(0x3010) & 0xf00fn).toBe(0x4000n)
    expect(memory.readU64(0x3018)).toBe(BigInt(CODE + 62))
  })

  it('rings a doorbell instead of asking the handler', () => {
    // mov dword [0xc0001050], 1; mov dword [0xc0001050], 2
    const { vcpu, io, vm, memory } = microMachine(
      assemble('c7 04 25 50 10 00 00 01 00 00 00 c7 04 25 50 10 00 00 02 00 00 00', POWER_OFF),
    )
    // Linear 0x1000-0x1fff is mapped to the MMIO hole: PML4 0x9000, and the PD's first entry becomes a table at 0xd000.
    for (let index = 0; index < 512; index++) memory.writeU64(0xd000 + index * 8, BigInt(index * 4096) | 3n)
    memory.writeU64(0xd000 + 8, 0xc000_1003n)
    memory.writeU64(0xb000, 0xd003n)
    const bell = vm.doorbell(0xc000_1050, 1)
    expect(vcpu.run(io)).toEqual({ reason: 'stopped' })
    expect(drainEventFd(bell.fd)).toBe(1)
    expect(io.mmio).toEqual([{ address: 0xc000_1050, size: 4 }])
    vm.close()
  })

  it('is kicked out of an endless loop, and goes on', () => {
    const { vcpu, io, vm } = microMachine(assemble('ff c0 eb fc'))
    vm.kick(0)
    expect(vcpu.run(io)).toEqual({ reason: 'kicked' })
    vm.kick(0)
    expect(vcpu.run(io)).toEqual({ reason: 'kicked' })
  })
})

describe('state', () => {
  const LOOP = assemble('48 ff c0 48 01 c3 48 c1 c3 07 48 31 c3 eb f1') // inc rax; add rbx, rax; rol rbx, 7; xor rbx, rax

  it('is saved and restored into another machine', () => {
    const one = microMachine(LOOP)
    one.vcpu.slice(one.io, 10_000)
    const two = microMachine(LOOP)
    two.vcpu.restore(one.vcpu.save())
    one.vcpu.slice(one.io, 5000)
    two.vcpu.slice(two.io, 5000)
    expect(two.vcpu.readRegisters()).toEqual(one.vcpu.readRegisters())
    expect(() => two.vcpu.restore(new Uint8Array(100))).toThrow(/not a saved vCPU/)
  })

  it('is the same after the same work in deterministic mode, clock included', () => {
    // loop: rdtsc; add rbx, rax; rol rbx, 5; push rbx; pop rcx; jmp loop
    const program = assemble('0f 31 48 01 c3 48 c1 c3 05 53 59 eb f3')
    const run = (): string => {
      const { vcpu, io, memory } = microMachine(program, { deterministic: true })
      for (let round = 0; round < 20; round++) vcpu.slice(io, 10_000)
      const registers = JSON.stringify(vcpu.readRegisters(), (_key, value) => String(value))
      return createHash('sha256').update(registers).update(memory.bytes.subarray(RAM_OFFSET)).digest('hex')
    }
    expect(run()).toBe(run())
  })

  it('steps one instruction at a time', () => {
    const { vcpu, io } = microMachine(LOOP)
    vcpu.setStepping(true)
    const places: number[] = []
    for (let step = 0; step < 6; step++) {
      places.push(Number(vcpu.readRegisters().rip) - CODE)
      vcpu.slice(io, 1)
    }
    expect(places).toEqual([0, 3, 6, 10, 13, 0])
  })
})

describe('hostile guests', () => {
  /** xorshift32: the same bytes in every run. */
  const random = (seed: number) => (): number => {
    seed ^= seed << 13
    seed ^= seed >>> 17
    seed ^= seed << 5
    return seed >>> 0
  }

  it.each([0, 3])(
    'random bytes at privilege level %i: a fault, a stop or a running guest, and nothing outside RAM',
    level => {
      let retired = 0
      for (let seed = 1; seed <= 60; seed++) {
        const next = random(seed * 7919 + level)
        const program = Uint8Array.from({ length: 4096 }, () => next())
        const { vcpu, io, memory } = microMachine(program)
        const outside = (): string =>
          createHash('sha256').update(memory.bytes.subarray(DEVICES_BASE, DEVICES_END)).digest('hex')
        const before = outside()
        const registers = vcpu.readRegisters()
        vcpu.writeRegisters({
          ...registers,
          general: registers.general.map(() => (next() & 1 ? BigInt(next()) * 4097n : BigInt(next() & 0x3f_ffff))),
        })
        if (level === 3) {
          allowUser(memory)
          const system = vcpu.readSystemRegisters()
          vcpu.writeSystemRegisters({
            ...system,
            cs: { ...system.cs, selector: 0x33, attributes: 0xa0fb },
            ss: { ...system.ss, selector: 0x2b, attributes: 0xc0f3 },
          })
        }
        // Most random code ends soon in a triple fault: then elsewhere in it.
        for (let start = 0; start < 20; start++) {
          const { rip } = registers
          vcpu.writeRegisters({ ...vcpu.readRegisters(), rip: rip + BigInt(next() & 0xfff) })
          for (let slice = 0; slice < 5; slice++) {
            const exit = vcpu.slice(io, 2000)
            if (exit !== 0 && exit !== 1) break
          }
        }
        retired += vcpu.counters().instructions!
        expect(outside()).toBe(before)
      }
      expect(retired).toBeGreaterThan(1000)
    },
  )

  it('privileged nonsense with damaged page and descriptor tables, in every mode', () => {
    let [instructions, compiled] = [0, 0]
    for (let seed = 1; seed <= 60; seed++) {
      const run = hostileCase(seed, 6000)
      expect(run.contained, `seed ${seed}`).toBe(true)
      instructions += run.instructions
      compiled += run.compiled
    }
    expect(instructions).toBeGreaterThan(20_000)
    expect(compiled).toBeGreaterThan(0)
  })

  it('a handler that faults at its first instruction: the slice ends all the same', () => {
    // lidt [0x2800]; ud2
    const { vcpu, io, memory } = microMachine(assemble('0f 01 1c 25 00 28 00 00 bc 00 00 09 00 0f 0b'))
    memory.write(0x1000, assemble('0f 0b'))
    memory.writeU64(0x2000 + 6 * 16, 0x0000_8e00_0008_1000n)
    memory.writeU64(0x2008 + 6 * 16, 0n)
    memory.writeU16(0x2800, 0x7ff)
    memory.writeU64(0x2802, 0x2000n)
    expect(vcpu.slice(io, 1000)).toBe(EXIT_BUDGET)
    expect(vcpu.counters()).toMatchObject({ instructions: 2 })
  })

  it('page tables that point outside RAM fault or read all ones, and never reach our memory', () => {
    const { vcpu, io, memory } = microMachine(assemble('48 b8 00 00 00 40 00 00 00 00 48 8b 00 e7 80', POWER_OFF))
    // The second GiB's page directory is far outside RAM.
    memory.writeU64(0xa008, 0xff_ffff_f003n)
    expect(vcpu.run(io).reason).toBe('shutdown')
  })

  it('an instruction across the end of RAM, and a jump to nowhere', () => {
    const end = microMachine(assemble('48 b8 ff ff 3f 00 00 00 00 00 ff e0'))
    end.memory.writeU8(0x3f_ffff, 0x48)
    expect(end.vcpu.run(end.io).reason).toBe('shutdown')
    // More prefixes than an instruction may have, up to the last byte of RAM.
    for (const rex of [0x66, 0x48]) {
      const prefixes = microMachine(assemble('48 b8 f1 ff 3f 00 00 00 00 00 ff e0'))
      prefixes.memory.write(
        0x3f_fff1,
        Uint8Array.from({ length: 15 }, (_, index) => (index === 14 ? rex : 0x66)),
      )
      expect(prefixes.vcpu.run(prefixes.io).reason).toBe('shutdown')
    }
    const nowhere = microMachine(assemble('48 b8 00 00 00 00 00 00 00 80 ff e0'))
    expect(nowhere.vcpu.run(nowhere.io).reason).toBe('shutdown')
  })
})
