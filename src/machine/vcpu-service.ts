/** What a machine asks of a vCPU, on the thread that runs it: its own (`vcpu.worker.ts`), or the machine's (`local-vcpu.ts`). */
import type { CpuRegisters, StepExit, SystemRegisters, Vcpu, VcpuTicket } from '../accel/contract.ts'
import { openVcpu } from '../accel/select.ts'
import type { EntryState } from './boot/cpu-state.ts'
import { Bus, type BusDescription } from './bus.ts'
import type { ConsoleListener } from './legacy/console-output.ts'

export class VcpuService {
  readonly #console: ConsoleListener
  #vcpu: Vcpu | undefined
  #bus: Bus | undefined

  constructor(console: ConsoleListener) {
    this.#console = console
  }

  async open(ticket: VcpuTicket, description: BusDescription): Promise<void> {
    this.#bus = await Bus.open(description, this.#console)
    this.#vcpu = await openVcpu(ticket)
  }

  /** The vCPU that was opened. */
  get vcpu(): Vcpu {
    if (!this.#vcpu) throw new Error('the vCPU has not been opened')
    return this.#vcpu
  }

  /** What the guest's accesses go to, for another run. */
  entered(): Bus {
    this.#bus!.stopRequested = false
    return this.#bus!
  }

  /** Reset, and for the boot CPU the state that the kernel is entered with. */
  boot(entry: EntryState | undefined): void {
    const cpu = this.vcpu
    cpu.reset()
    if (!entry) return
    cpu.writeSystemRegisters({ ...cpu.readSystemRegisters(), ...entry.system })
    cpu.writeRegisters(entry.registers)
  }

  /** Undefined: this accelerator cannot. */
  step(count: number): StepExit | undefined {
    return this.vcpu.step?.(this.entered(), count)
  }

  save(): Uint8Array {
    return this.vcpu.save()
  }

  restore(state: Uint8Array): void {
    this.vcpu.restore(state)
  }

  registers(): { registers: CpuRegisters; system: SystemRegisters } {
    return { registers: this.vcpu.readRegisters(), system: this.vcpu.readSystemRegisters() }
  }

  setRegisters(registers: CpuRegisters): void {
    this.vcpu.writeRegisters(registers)
  }

  setSystemRegisters(system: SystemRegisters): void {
    this.vcpu.writeSystemRegisters(system)
  }

  forgetTranslations(): void {
    this.vcpu.forgetTranslations()
  }

  counters(): Record<string, number> {
    return this.vcpu.counters()
  }

  close(): void {
    this.#vcpu?.close()
    this.#vcpu = undefined
  }
}
