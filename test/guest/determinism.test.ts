/**
 * The deterministic mode of the software CPU: a machine that is restored twice goes the same way twice, and the way that the original
 * goes. Linux boots in this thread, so that the machines can be stopped at an instruction.
 */
import { createHash } from 'node:crypto'
import { expect, it } from 'vitest'
import { buildInitramfs } from '../../src/image/initramfs.ts'
import { findKernel } from '../../src/image/kernel/find.ts'
import { loadGuest } from '../../src/machine/boot/load.ts'
import { Bus } from '../../src/machine/bus.ts'
import { ConsoleRing } from '../../src/machine/legacy/console-ring.ts'
import { LegacyDevices } from '../../src/machine/legacy/legacy-devices.ts'
import { GuestMemory } from '../../src/memory/guest-memory.ts'
import { RAM_OFFSET } from '../../src/memory/layout.ts'
import { vcpuStateBase } from '../../src/soft/layout.ts'
import { SoftVcpu } from '../../src/soft/vcpu.ts'
import { SoftVm } from '../../src/soft/vm.ts'
import { S_RETIRED } from '../../wasm/cpu/state.ts'

const MIB = 128
/** The boot is past its first prints, with timers and interrupts at work. */
const SAVED_AFTER = 150_000_000
const MILLION = 1_000_000
const SLICE = 10_000

class InThread {
  readonly memory = GuestMemory.create(MIB)
  readonly vm = new SoftVm({ memory: this.memory, cpus: 1, soft: { deterministic: true } })
  readonly vcpu = new SoftVcpu(this.vm.vcpuTicket(0))
  readonly legacy = new LegacyDevices(this.memory.wasm, undefined, () => {})
  readonly #console = ConsoleRing.output(this.memory.wasm)
  #bus: Bus | undefined

  async open(): Promise<this> {
    this.legacy.reset()
    const serialInterrupt = this.vm.interruptLine(4)
    this.#bus = await Bus.open({ wasm: this.memory.wasm, serialInterrupt, windows: [] }, { ready: () => {} })
    this.vcpu.reset()
    return this
  }

  get retired(): number {
    return Number(this.memory.view.getBigUint64(vcpuStateBase(0) + S_RETIRED, true))
  }

  run(instructions: number): void {
    const end = this.retired + instructions
    while (this.retired < end) {
      this.vcpu.slice(this.#bus!, Math.min(SLICE, end - this.retired))
      this.#console.take()
    }
  }

  /** Of all memory, all registers, and the devices. */
  hash(): string {
    const hash = createHash('sha256')
    hash.update(this.memory.bytes.subarray(RAM_OFFSET))
    const registers = [this.vcpu.readRegisters(), this.vcpu.readSystemRegisters(), this.legacy.save(), this.retired]
    hash.update(JSON.stringify(registers, (_, value) => (typeof value === 'bigint' ? value.toString(16) : value)))
    return hash.digest('hex')
  }

  close(): void {
    this.vcpu.close()
    this.vm.close()
  }
}

it('restored twice, a million instructions later: the same memory and registers', { timeout: 180_000 }, async () => {
  const { path } = await findKernel()
  const original = await new InThread().open()
  const entry = loadGuest(original.memory, {
    kernel: { path, immutable: true },
    initrd: buildInitramfs({ busybox: '/bin/busybox' }),
    commandLine: 'console=ttyS0 panic=-1 mitigations=off initcall_blacklist=load_system_certificate_list',
    cpus: 1,
    slots: 0,
    generationId: new Uint8Array(16),
  })
  original.vcpu.writeSystemRegisters({ ...original.vcpu.readSystemRegisters(), ...entry.system })
  original.vcpu.writeRegisters(entry.registers)
  original.run(SAVED_AFTER)
  const saved = {
    ...{ vcpu: original.vcpu.save(), vm: original.vm.save(), legacy: original.legacy.save() },
    ...{ ram: original.memory.bytes.slice(RAM_OFFSET), hash: original.hash() },
  }
  original.run(MILLION)

  const after: string[] = []
  for (let time = 0; time < 2; time++) {
    const restored = await new InThread().open()
    restored.memory.bytes.set(saved.ram, RAM_OFFSET)
    restored.vcpu.restore(saved.vcpu)
    restored.vm.restore(saved.vm)
    restored.legacy.restore(saved.legacy)
    expect(restored.hash()).toBe(saved.hash)
    restored.run(MILLION)
    after.push(restored.hash())
    restored.close()
  }
  expect(after[0]).toBe(after[1])
  expect(after[0]).toBe(original.hash())
  expect(after[0]).not.toBe(saved.hash)
  original.close()
})
