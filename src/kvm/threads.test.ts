/** vCPUs in workers: several at once, stopped from outside in every state, and nothing left behind. */
import { readdirSync, readFileSync } from 'node:fs'
import { afterEach, describe, expect, it } from 'vitest'
import { signalEventFd } from '../host/event-fd.ts'
import { collectGarbage } from '../host/testing/garbage.ts'
import { GuestMemory } from '../memory/guest-memory.ts'
import { Assembler } from './assembler.ts'
import { CODE_ADDRESS, registersAt, startFlat } from './micro-guest.ts'
import { MicroVcpu } from './micro-vcpu.ts'
import { Recorder } from './recorder.ts'
import { kvmUnusable } from './testing.ts'
import { USER_BASE, USER_MODE_MIB, writeUserModeTables } from './user-mode.ts'
import { KvmVcpu } from './vcpu.ts'
import { KvmVirtualMachine } from './vm.ts'

const vms: KvmVirtualMachine[] = []
const workers: MicroVcpu[] = []
afterEach(async () => {
  // After a failure some may still be running.
  for (const vm of vms) for (let index = 0; index < vm.cpus; index++) vm.kick(index)
  await Promise.all(workers.splice(0).map(worker => worker.close()))
  for (const vm of vms.splice(0)) vm.close()
})

function create(memory: GuestMemory, cpus: number, bare: boolean) {
  const vm = KvmVirtualMachine.create({ memory, cpus, bare })
  vms.push(vm)
  const vcpus = Array.from({ length: cpus }, (_, index) => new MicroVcpu(vm.vcpuTicket(index)))
  workers.push(...vcpus)
  return { vm, vcpus }
}

const sleep = (ms: number) => new Promise<void>(resolve => setTimeout(resolve, ms))

/** Waits, without a limit of its own, until the guest has got somewhere. */
async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await sleep(2)
}

const COUNTER = 0x3000
const word = (value: number): number[] => [...new Uint8Array(Uint32Array.of(value).buffer)]
const KICKED = { reason: 'kicked' }
const HALTED = { reason: 'halted' }

/** A guest that counts in memory, with no exits. */
function countingMemory(): GuestMemory {
  const memory = GuestMemory.create(2)
  memory.write(CODE_ADDRESS, new Assembler(CODE_ADDRESS).incMemory(COUNTER).jmp(CODE_ADDRESS).bytes)
  return memory
}

describe.skipIf(kvmUnusable())('vCPUs in workers (needs /dev/kvm)', () => {
  it('run at the same time, on one memory', async () => {
    // Each waits for its turn and then gives it to the other: none gets through alone.
    const memory = GuestMemory.create(2)
    const turn = COUNTER
    const start = (index: number) => CODE_ADDRESS + index * 0x100
    for (const index of [0, 1]) {
      const code = new Assembler(start(index)).mov('ecx', 5)
      const wait = code.here
      code.cmpMemory(turn, index).jnz(wait)
      code
        .mov('edx', 0x80 + index)
        .outDx(1)
        .storeValue(turn, 1 - index)
        .dec('ecx')
        .jnz(wait)
        .hlt()
      memory.write(start(index), code.bytes)
    }
    const { vcpus } = create(memory, 2, true)
    await Promise.all(vcpus.map(vcpu => vcpu.reset()))
    await Promise.all(vcpus.map((vcpu, index) => vcpu.startFlat(start(index))))
    const runs = await Promise.all(vcpus.map(vcpu => vcpu.run()))
    expect(runs.map(run => run.exit)).toEqual([HALTED, HALTED])
    expect(runs.map(run => run.portWrites.map(([port]) => port))).toEqual([Array(5).fill(0x80), Array(5).fill(0x81)])
  })

  it('pause and resume', async () => {
    const memory = countingMemory()
    const { vm, vcpus } = create(memory, 1, true)
    const vcpu = vcpus[0]!
    await vcpu.reset()
    await vcpu.startFlat(CODE_ADDRESS)
    for (let round = 0; round < 5; round++) {
      const before = memory.readU32(COUNTER)
      const running = vcpu.run()
      await until(() => memory.readU32(COUNTER) > before + 10)
      vm.kick(0)
      expect((await running).exit).toEqual(KICKED)
      const paused = memory.readU32(COUNTER)
      await sleep(20)
      expect(memory.readU32(COUNTER)).toBe(paused)
    }
  })

  it('are kicked out of native code at privilege level 3', async () => {
    const memory = GuestMemory.create(USER_MODE_MIB)
    writeUserModeTables(memory)
    // inc dword [rbx]; jmp -4
    memory.write(USER_BASE, Uint8Array.of(0xff, 0x03, 0xeb, 0xfc))
    const { vm, vcpus } = create(memory, 1, true)
    await vcpus[0]!.reset()
    await vcpus[0]!.startUser(registersAt(USER_BASE, { rbx: BigInt(USER_BASE + 0x1000) }))
    for (let round = 0; round < 5; round++) {
      const before = memory.readU32(USER_BASE + 0x1000)
      const running = vcpus[0]!.run()
      await until(() => memory.readU32(USER_BASE + 0x1000) !== before)
      vm.kick(0)
      expect((await running).exit).toEqual(KICKED)
    }
  })

  it('are kicked out of a stream of exits, and none is lost', async () => {
    const memory = GuestMemory.create(2)
    const code = new Assembler(CODE_ADDRESS).incMemory(COUNTER).load('eax', COUNTER).mov('edx', 0x80).outDx(4)
    memory.write(CODE_ADDRESS, code.jmp(CODE_ADDRESS).bytes)
    const { vm, vcpus } = create(memory, 1, true)
    await vcpus[0]!.reset()
    await vcpus[0]!.startFlat(CODE_ADDRESS)
    const values: number[] = []
    for (let round = 0; round < 5; round++) {
      const before = memory.readU32(COUNTER)
      const running = vcpus[0]!.run()
      await until(() => memory.readU32(COUNTER) > before + 20)
      vm.kick(0)
      const { exit, portWrites } = await running
      expect(exit).toEqual(KICKED)
      values.push(...portWrites.map(([, , value]) => value))
    }
    expect(values).toEqual(Array.from({ length: values.length }, (_, i) => i + 1))
  })

  it('are kicked while halted, and while they wait for their start-up interrupt', async () => {
    const memory = GuestMemory.create(2)
    memory.write(CODE_ADDRESS, new Assembler(CODE_ADDRESS).incMemory(COUNTER).cli().hlt().jmp(CODE_ADDRESS).bytes)
    const { vm, vcpus } = create(memory, 2, false)
    await Promise.all(vcpus.map(vcpu => vcpu.reset()))
    await vcpus[0]!.startFlat(CODE_ADDRESS)
    for (let round = 0; round < 3; round++) {
      const running = vcpus.map(vcpu => vcpu.run())
      await until(() => memory.readU32(COUNTER) === 1)
      await sleep(20)
      vm.kick(0)
      vm.kick(1)
      expect((await Promise.all(running)).map(run => run.exit)).toEqual([KICKED, KICKED])
    }
    // A halted CPU stays halted: it was not woken by the kicks.
    expect(memory.readU32(COUNTER)).toBe(1)
  })

  it('start each other with INIT and SIPI (SDM volume 3, 8.4.4)', async () => {
    const memory = GuestMemory.create(2)
    // The local APIC's interrupt command register: destination 1; INIT, then start-up at page 8.
    const code = new Assembler(CODE_ADDRESS).storeValue(0xfee0_00f0, 0x1ff)
    code.storeValue(0xfee0_0310, 1 << 24).storeValue(0xfee0_0300, 0x4500)
    code.storeValue(0xfee0_0310, 1 << 24).storeValue(0xfee0_0300, 0x4608)
    const wait = code.here
    code.cmpMemory(0x9000, 0x1234).jnz(wait).mov('eax', 1).out(0x80).jmp(wait)
    memory.write(CODE_ADDRESS, code.bytes)
    // Real mode at 0800:0000: mov word [0x1000], 0x1234 with DS = CS; mov al, 2; out 0x81, al; jmp $
    const start = [0x8c, 0xc8, 0x8e, 0xd8, 0xc7, 0x06, 0x00, 0x10, 0x34, 0x12, 0xb0, 0x02, 0xe6, 0x81, 0xeb, 0xfe]
    memory.write(0x8000, Uint8Array.from(start))
    const { vcpus } = create(memory, 2, false)
    await Promise.all(vcpus.map(vcpu => vcpu.reset()))
    await vcpus[0]!.startFlat(CODE_ADDRESS)
    const runs = await Promise.all(vcpus.map(vcpu => vcpu.run(1)))
    expect(runs.map(run => run.exit)).toEqual([{ reason: 'stopped' }, { reason: 'stopped' }])
    expect(runs.map(run => run.portWrites)).toEqual([[[0x80, 1, 1]], [[0x81, 1, 2]]])
  })

  it('take an interrupt line from an eventfd', async () => {
    const vector = 0x34
    const gsi = 5
    const handler = 0xe000
    const memory = GuestMemory.create(USER_MODE_MIB)
    // 64-bit code. Level 3 sets up the IOAPIC's line and the local APIC, says so in memory, and spins.
    const store = (address: number, value: number) => [0xbf, ...word(address), 0xc7, 0x07, ...word(value)]
    memory.write(
      USER_BASE,
      Uint8Array.from([
        ...store(0xfec0_0000, 0x11 + gsi * 2),
        ...store(0xfec0_0010, 0),
        ...store(0xfec0_0000, 0x10 + gsi * 2),
        ...store(0xfec0_0010, vector),
        ...store(0xfee0_00f0, 0x1ff),
        // LINT0 masked: the 8259, whose pin the line also is, would interrupt as well.
        ...store(0xfee0_0350, 0x1_0000),
        ...store(USER_BASE + 0x1000, 1),
        ...[0xeb, 0xfe],
      ]),
    )
    // Level 0: inc dword [COUNTER]; mov eax, [COUNTER]; end of interrupt; out 0x81, eax. It never returns.
    memory.write(
      handler,
      Uint8Array.from([
        ...[0xff, 0x04, 0x25, ...word(COUNTER)],
        ...[0x8b, 0x04, 0x25, ...word(COUNTER)],
        ...store(0xfee0_00b0, 0),
        ...[0xe7, 0x81],
      ]),
    )
    writeUserModeTables(memory, { [vector]: handler })
    const { vm, vcpus } = create(memory, 1, false)
    const line = vm.interruptLine(gsi)
    if (line.kind !== 'eventfd') return expect.unreachable()
    await vcpus[0]!.reset()
    for (let round = 1; round <= 3; round++) {
      memory.writeU32(USER_BASE + 0x1000, 0)
      await vcpus[0]!.startUser({ ...registersAt(USER_BASE), rflags: 0x202n })
      const running = vcpus[0]!.run(1)
      await until(() => memory.readU32(USER_BASE + 0x1000) === 1)
      signalEventFd(line.fd)
      const { exit, portWrites } = await running
      expect(exit).toEqual({ reason: 'stopped' })
      expect(portWrites).toEqual([[0x81, 4, round]])
    }
  })
})

const count = (folder: string): number => readdirSync(`/proc/self/${folder}`).length
const maps = (): string[] => readFileSync('/proc/self/maps', 'utf8').split('\n')
const residentKib = (): number => Number(/VmRSS:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))![1])

describe.skipIf(kvmUnusable())('a hundred virtual machines (needs /dev/kvm)', () => {
  const CYCLES = 100
  /** Threads start slowly in the emulated AMD host; test/kvm makes a hundred machines there, whose vCPUs all have one. */
  const WORKER_CYCLES = 5

  /** A micro-guest that has written to RAM and then to a port. */
  function cycle(): void {
    const memory = GuestMemory.create(2)
    const code = new Assembler(CODE_ADDRESS).mov('edi', 0x8_0000).mov('ecx', 0x80).raw(0xf3, 0xab).out(0x80)
    memory.write(CODE_ADDRESS, code.bytes)
    memory.slice(0x10_0000, 0x8_0000).fill(1)
    const vm = KvmVirtualMachine.create({ memory, cpus: 2 })
    vm.interruptLine(5)
    vm.doorbell(0xc000_1050, 0)
    const vcpu = new KvmVcpu(vm.vcpuTicket(0))
    vcpu.reset()
    startFlat(vcpu, CODE_ADDRESS)
    const io = new Recorder()
    io.stopAfterWrites = 1
    expect(vcpu.run(io)).toEqual({ reason: 'stopped' })
    vm.close()
  }

  it('leave no descriptor, mapping, thread or memory behind', { timeout: 300_000 }, () => {
    const measure = () => {
      collectGarbage()
      collectGarbage()
      return { fds: count('fd'), threads: count('task'), mappings: maps().length, resident: residentKib() }
    }
    for (let i = 0; i < 5; i++) cycle()
    const before = measure()
    for (let i = 0; i < CYCLES / 2; i++) cycle()
    const halfWay = measure()
    for (let i = 0; i < CYCLES / 2; i++) cycle()
    const after = measure()
    expect(after.fds).toBe(before.fds)
    expect(after.threads).toBe(before.threads)
    // What KVM maps is known by its name; V8 maps and unmaps a few pages of its own heap.
    expect(maps().filter(line => line.includes('anon_inode:kvm'))).toEqual([])
    expect(after.mappings).toBeLessThan(halfWay.mappings + 10)
    expect(after.resident).toBeLessThan(before.resident + 16 * 1024)
    expect(after.resident).toBeLessThan(halfWay.resident + 4 * 1024)
  })

  it('leave no worker behind', { timeout: 300_000 }, async () => {
    const once = async () => {
      const memory = countingMemory()
      const vm = KvmVirtualMachine.create({ memory, cpus: 1, bare: true })
      const vcpu = new MicroVcpu(vm.vcpuTicket(0))
      await vcpu.reset()
      await vcpu.startFlat(CODE_ADDRESS)
      const running = vcpu.run()
      await until(() => memory.readU32(COUNTER) > 0)
      vm.kick(0)
      expect((await running).exit).toEqual(KICKED)
      await vcpu.close()
      vm.close()
    }
    await once()
    const before = { fds: count('fd'), threads: count('task') }
    for (let i = 0; i < WORKER_CYCLES; i++) await once()
    expect({ fds: count('fd'), threads: count('task') }).toEqual(before)
  })
})
