/** Micro-guests on this host's /dev/kvm, whatever kind it is: one vCPU, on this thread. */
import { existsSync } from 'node:fs'
import { afterEach, describe, expect, it } from 'vitest'
import type { GeneralRegister, VcpuExit } from '../accel/contract.ts'
import { drainEventFd } from '../host/event-fd.ts'
import { GuestMemory } from '../memory/guest-memory.ts'
import { DEVICES_BASE } from '../memory/layout.ts'
import { Assembler } from './assembler.ts'
import { decodeCpuid, getCpuid, normaliseCpuid } from './cpuid.ts'
import { CODE_ADDRESS, registersAt, startFlat } from './micro-guest.ts'
import { Recorder } from './recorder.ts'
import { kvmUnusable } from './testing.ts'
import { startUserMode, USER_BASE, USER_MODE_MIB, userModeTrap, writeUserModeTables } from './user-mode.ts'
import { KvmVcpu, type KvmVcpuDetail } from './vcpu.ts'
import { KvmVirtualMachine } from './vm.ts'

const open: KvmVirtualMachine[] = []
afterEach(() => {
  for (const vm of open.splice(0)) vm.close()
})

function createVm(memory: GuestMemory, bare = true): { vm: KvmVirtualMachine; vcpu: KvmVcpu } {
  const vm = KvmVirtualMachine.create({ memory, cpus: 1, bare })
  open.push(vm)
  const vcpu = new KvmVcpu(vm.vcpuTicket(0))
  vcpu.reset()
  return { vm, vcpu }
}

/** A guest in flat 32-bit mode at privilege level 0. */
function flatGuest(code: Assembler | Uint8Array, values: Partial<Record<GeneralRegister, bigint>> = {}, bare = true) {
  const memory = GuestMemory.create(2)
  memory.write(CODE_ADDRESS, code instanceof Assembler ? code.bytes : code)
  const guest = createVm(memory, bare)
  startFlat(guest.vcpu, CODE_ADDRESS, values)
  return { memory, ...guest }
}

/** A guest in 64-bit mode at privilege level 3; INT3 ends it. */
function userGuest(code: readonly number[], values: Partial<Record<GeneralRegister, bigint>> = {}) {
  const memory = GuestMemory.create(USER_MODE_MIB)
  writeUserModeTables(memory)
  memory.write(USER_BASE, Uint8Array.from([...code, 0xcc]))
  const guest = createVm(memory)
  startUserMode(guest.vcpu, registersAt(USER_BASE, { rsp: BigInt(USER_BASE + 0x10_0000), ...values }))
  return { memory, ...guest }
}

const HALTED: VcpuExit = { reason: 'halted' }
const MMIO = 0xc000_1000
const COUNTER = 0x3000

/** Counts in memory for ever, and tells each value to port 0x80. */
function countingCode(): Assembler {
  const code = new Assembler(CODE_ADDRESS)
  return code.incMemory(COUNTER).load('eax', COUNTER).mov('edx', 0x80).outDx(4).jmp(CODE_ADDRESS)
}

describe.skipIf(kvmUnusable())('a vCPU of /dev/kvm (needs to be allowed to open it)', () => {
  it('says hello over port 0x3f8', () => {
    const text = 'Hello, vitrine!\n'
    // lodsb; test al,al; jz +3; out dx,al; jmp -8; hlt
    const loop = [0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8, 0xf4]
    const { vcpu } = flatGuest(Uint8Array.from([...loop, ...Buffer.from(`${text}\0`)]), {
      rsi: BigInt(CODE_ADDRESS + loop.length),
      rdx: 0x3f8n,
    })
    const io = new Recorder()
    expect(vcpu.run(io)).toEqual(HALTED)
    expect(io.portWrites).toEqual([...text].map(character => [0x3f8, 1, character.charCodeAt(0)]))
    expect(vcpu.counters()).toMatchObject({ portExits: text.length })
  })

  it('reads and writes ports of every size', () => {
    const code = new Assembler(CODE_ADDRESS).mov('eax', 0x11223344).mov('edx', 0x1234)
    code.outDx(1).outDx(2).outDx(4).mov('eax', 0xffffffff)
    code
      .inDx(1)
      .store(COUNTER, 'eax')
      .inDx(2)
      .store(COUNTER + 4, 'eax')
      .inDx(4)
      .store(COUNTER + 8, 'eax')
      .hlt()
    const { vcpu, memory } = flatGuest(code)
    const io = new Recorder()
    io.answer = 0x0a0b0c0d
    expect(vcpu.run(io)).toEqual(HALTED)
    expect(io.portWrites).toEqual([
      [0x1234, 1, 0x44],
      [0x1234, 2, 0x3344],
      [0x1234, 4, 0x11223344],
    ])
    expect(io.portReads).toEqual([
      [0x1234, 1],
      [0x1234, 2],
      [0x1234, 4],
    ])
    expect([0, 4, 8].map(at => memory.readU32(COUNTER + at))).toEqual([0xffffff0d, 0xffff0c0e, 0x0a0b0c0f])
  })

  it('moves strings through ports', () => {
    const code = new Assembler(CODE_ADDRESS).mov('edx', 0x3f8)
    code.mov('esi', 0x2000).mov('ecx', 5).repOuts(1)
    code.mov('esi', 0x2000).mov('ecx', 2).repOuts(4)
    code.mov('edi', 0x2100).mov('ecx', 3000).repIns(2).hlt()
    const { vcpu, memory } = flatGuest(code)
    memory.write(0x2000, Buffer.from('abcdefgh'))
    const io = new Recorder()
    expect(vcpu.run(io)).toEqual(HALTED)
    expect(io.portWrites).toEqual([
      ...[...'abcde'].map(character => [0x3f8, 1, character.charCodeAt(0)]),
      [0x3f8, 4, 0x64636261],
      [0x3f8, 4, 0x68676665],
    ])
    // In order and none twice, however many of them KVM put in one exit.
    expect(io.portReads).toHaveLength(3000)
    expect([0, 1, 1500, 2999].map(i => memory.readU16(0x2100 + i * 2))).toEqual([0, 1, 1500, 2999])
    expect(vcpu.readRegisters().general[7]).toBe(0x2100n + 6000n)
  })

  it('reads and writes MMIO of every size, at privilege level 3', () => {
    const { vcpu, memory } = userGuest(
      [
        ...[0x88, 0x03], // mov [rbx], al
        ...[0x66, 0x89, 0x43, 0x10], // mov [rbx+16], ax
        ...[0x89, 0x43, 0x20], // mov [rbx+32], eax
        ...[0x48, 0x89, 0x43, 0x30], // mov [rbx+48], rax
        ...[0x0f, 0xb6, 0x4b, 0x40], // movzx ecx, byte [rbx+64]
        ...[0x0f, 0xb7, 0x53, 0x50], // movzx edx, word [rbx+80]
        ...[0x8b, 0x73, 0x60], // mov esi, [rbx+96]
        ...[0x48, 0x8b, 0x7b, 0x70], // mov rdi, [rbx+112]
      ],
      { rax: 0x1122334455667788n, rbx: BigInt(MMIO) },
    )
    const io = new Recorder()
    expect(vcpu.run(io)).toEqual(HALTED)
    const { general } = vcpu.readRegisters()
    expect(userModeTrap(memory, vcpu.readRegisters())?.vector).toBe(3)
    expect(io.mmioWrites).toEqual([
      [MMIO, 1, 0x88n],
      [MMIO + 16, 2, 0x7788n],
      [MMIO + 32, 4, 0x55667788n],
      [MMIO + 48, 8, 0x1122334455667788n],
    ])
    expect(io.mmioReads).toEqual([
      [MMIO + 64, 1],
      [MMIO + 80, 2],
      [MMIO + 96, 4],
      [MMIO + 112, 8],
    ])
    expect([general[1], general[2], general[6], general[7]]).toEqual([0xa0n, 0xa1a0n, 0xa3a2a1a0n, 0xa7a6a5a4a3a2a1a0n])
  })

  it('stops after the access that asked for it, with the access complete', () => {
    const { vcpu, memory } = flatGuest(countingCode())
    const io = new Recorder()
    io.stopAfterWrites = 10
    expect(vcpu.run(io)).toEqual({ reason: 'stopped' })
    expect(memory.readU32(COUNTER)).toBe(10)
    // RIP is past the OUT: entering again does not repeat it.
    io.stopAfterWrites = 12
    expect(vcpu.run(io)).toEqual({ reason: 'stopped' })
    expect(io.portWrites.map(([, , value]) => value)).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
  })

  it('returns at once when it was kicked before it ran, and only once', () => {
    const { vm, vcpu } = flatGuest(countingCode())
    const io = new Recorder()
    io.stopAfterWrites = 3
    vm.kick(0)
    expect(vcpu.run(io)).toEqual({ reason: 'kicked' })
    expect(io.portWrites).toEqual([])
    expect(vcpu.run(io)).toEqual({ reason: 'stopped' })
  })

  it('rings a doorbell without an exit when the value matches, and exits when it does not', () => {
    // mov dword [rbx], 7; mov dword [rbx], 8; mov dword [rbx], 7
    const store = (value: number) => [0xc7, 0x03, value, 0, 0, 0]
    const { vm, vcpu } = userGuest([...store(7), ...store(8), ...store(7)], { rbx: BigInt(MMIO + 0x50) })
    const bell = vm.doorbell(MMIO + 0x50, 7)
    const io = new Recorder()
    expect(vcpu.run(io)).toEqual(HALTED)
    expect(io.mmioWrites).toEqual([[MMIO + 0x50, 4, 8n]])
    expect(drainEventFd(bell.fd)).toBe(2)
    vm.removeDoorbell(bell)
    startUserMode(vcpu, registersAt(USER_BASE, { rbx: BigInt(MMIO + 0x50) }))
    expect(vcpu.run(io)).toEqual(HALTED)
    expect(io.mmioWrites.map(([, , value]) => value)).toEqual([8n, 7n, 8n, 7n])
  })

  it('shows a page for reading without an exit; what is written to it exits or rings', () => {
    const code = new Assembler(CODE_ADDRESS).load('eax', MMIO + 0x60).store(COUNTER, 'eax')
    code
      .storeValue(MMIO + 0x64, 1)
      .storeValue(MMIO + 0x64, 3)
      .load('eax', MMIO + 0x64)
      .store(COUNTER + 4, 'eax')
      .hlt()
    const { vm, vcpu, memory } = flatGuest(code)
    const shown = new Int32Array(memory.wasm.buffer, DEVICES_BASE, 1024)
    shown[0x60 / 4] = 0x1234_5678
    shown[0x64 / 4] = 42
    expect(vm.showPage(MMIO, DEVICES_BASE)).toBe(true)
    const bell = vm.doorbell(MMIO + 0x64, 1)
    const io = new Recorder()
    expect(vcpu.run(io)).toEqual(HALTED)
    expect(drainEventFd(bell.fd)).toBe(1)
    expect(io.mmioReads).toEqual([])
    expect(io.mmioWrites).toEqual([[MMIO + 0x64, 4, 3n]])
    expect([memory.readU32(COUNTER), memory.readU32(COUNTER + 4)]).toEqual([0x1234_5678, 42])
    expect(shown[0x64 / 4]).toBe(42)
  })

  it('logs the pages that the guest writes', () => {
    const code = new Assembler(CODE_ADDRESS)
    code.storeValue(0x5_0000, 1).storeValue(0x12_3ffc, 2).storeValue(0x5_0ff0, 3).hlt()
    const { vm, vcpu } = flatGuest(code)
    vm.setDirtyLog(true)
    vm.takeDirtyLog()
    expect(vcpu.run(new Recorder())).toEqual(HALTED)
    const pages = (log: Uint8Array[]) =>
      log.flatMap(bits =>
        Array.from({ length: bits.length * 8 }, (_, i) => i).filter(i => bits[i >> 3]! & (1 << (i & 7))),
      )
    const log = vm.takeDirtyLog()
    expect(log.map(bits => bits.length)).toEqual([(2 * 256) / 8])
    // kvm-amd also names the page of the code, which it made writable when it was fetched: more than was written is allowed.
    expect(pages(log).filter(page => page !== CODE_ADDRESS / 4096)).toEqual([0x50, 0x123])
    expect(pages(vm.takeDirtyLog())).toEqual([])
    vm.setDirtyLog(false)
  })

  it('goes on counting in a new VM after save and restore', () => {
    for (const bare of [true, false]) {
      const first = flatGuest(countingCode(), { rsi: 0x1234n }, bare)
      const io = new Recorder()
      io.stopAfterWrites = 5
      expect(first.vcpu.run(io)).toEqual({ reason: 'stopped' })
      const vcpuState = first.vcpu.save()
      const vmState = first.vm.save()
      const registers = first.vcpu.readRegisters()
      const system = first.vcpu.readSystemRegisters()
      const memory = GuestMemory.create(2)
      memory.write(0, first.memory.slice(0, first.memory.size))
      first.vm.close()

      const second = createVm(memory, bare)
      second.vcpu.restore(vcpuState)
      second.vm.restore(vmState)
      expect(second.vcpu.readRegisters()).toEqual(registers)
      expect(second.vcpu.readSystemRegisters()).toEqual(system)
      const more = new Recorder()
      more.stopAfterWrites = 3
      expect(second.vcpu.run(more)).toEqual({ reason: 'stopped' })
      expect(more.portWrites.map(([, , value]) => value)).toEqual([6, 7, 8])
    }
  })

  it('refuses states that are not what they should be', () => {
    const { vm, vcpu } = flatGuest(countingCode(), {}, false)
    const state = vcpu.save()
    const changed = (at: number, value: number) => {
      const copy = state.slice()
      copy[at] = value
      return copy
    }
    for (const bad of [
      new Uint8Array(),
      state.subarray(0, 11),
      state.subarray(0, state.length - 1),
      changed(0, 0),
      changed(4, 99),
      changed(8, 200),
      changed(16, 0xff),
      changed(19, 0xff),
      vm.save(),
    ]) {
      expect(() => vcpu.restore(bad)).toThrow(expect.objectContaining({ code: 'BAD_STATE' }))
    }
    expect(() => vm.restore(state)).toThrow(/not such a state/)
    vcpu.restore(state)
  })

  it('tells registers and code of a triple fault', () => {
    // An IDT of no length, then UD2: the fault cannot be delivered, nor the double fault.
    const code = new Assembler(CODE_ADDRESS).mov('eax', 0xdead).lidt(0x2000).raw(0x0f, 0x0b)
    const { vcpu } = flatGuest(code)
    const exit = vcpu.run(new Recorder())
    expect(exit.reason).toBe('shutdown')
    if (exit.reason !== 'shutdown') return
    // SVM loses the guest's state at a shutdown, and kvm-amd then shows that of a reset CPU (svm.c, shutdown_interception).
    const lost = existsSync('/sys/module/kvm_amd')
    expect(exit.dump.lost ?? false).toBe(lost)
    expect(exit.dump.registers.rip).toBe(lost ? 0xfff0n : BigInt(CODE_ADDRESS + 12))
    if (lost) return
    expect(exit.dump.registers.general[0]).toBe(0xdeadn)
    expect([...exit.dump.code.subarray(0, 2)]).toEqual([0x0f, 0x0b])
  })

  it('tells the instruction that KVM cannot emulate', () => {
    // fild dword [MMIO]: no KVM emulates x87 loads, and what is not RAM must be emulated.
    const code = new Assembler(CODE_ADDRESS).raw(0xdb, 0x05, 0x00, 0x10, 0x00, 0xc0)
    const exit = flatGuest(code).vcpu.run(new Recorder())
    expect(exit.reason).toBe('internal-error')
    if (exit.reason !== 'internal-error') return
    expect(exit.message).toMatch(/cannot emulate/)
    expect(exit.dump.registers.rip).toBe(BigInt(CODE_ADDRESS))
    expect([...exit.dump.code.subarray(0, 6)]).toEqual([0xdb, 0x05, 0x00, 0x10, 0x00, 0xc0])
    expect(exit.dump.system.cs).toMatchObject({ selector: 8, attributes: 0xc09b })
  })

  it('has RAM above the MMIO hole in a large guest', () => {
    const memory = GuestMemory.create(3500)
    const { vm } = createVm(memory)
    vm.setDirtyLog(true)
    expect(vm.takeDirtyLog().map(bits => bits.length * 8 * 4096)).toEqual([0xc000_0000, memory.size - 0xc000_0000])
  })

  it('gives back the CPUID that was set', () => {
    const { vm, vcpu } = flatGuest(countingCode(), {}, false)
    const { fd, cpus, supportedCpuid } = vm.vcpuTicket(0).detail as KvmVcpuDetail
    const set = normaliseCpuid(decodeCpuid(supportedCpuid), { index: 0, cpus, localApic: true })
    const got = decodeCpuid(getCpuid(fd, 256))
    expect(got.map(({ leaf, subleaf }) => [leaf, subleaf])).toEqual(set.map(({ leaf, subleaf }) => [leaf, subleaf]))
    expect(vcpu.index).toBe(0)
  })

  it('refuses machines that cannot be', () => {
    const memory = GuestMemory.create(2)
    for (const cpus of [0, -1, 1.5, Number.NaN, 65, 1e9]) {
      expect(() => KvmVirtualMachine.create({ memory, cpus })).toThrow(/CPUs are not possible/)
    }
    const { vm } = createVm(memory)
    expect(() => vm.vcpuTicket(1)).toThrow(/vCPU 1 does not exist/)
    expect(() => vm.interruptLine(4)).toThrow(/no interrupt controllers/)
    expect(() => createVm(memory)).toThrow(/still open/)
    vm.close()
    expect(() => vm.kick(0)).toThrow(expect.objectContaining({ code: 'CLOSED' }))
  })
})
