/** Devices on the machine's own thread, where `MainLoop` looks at their descriptors between the vCPU's turns. */
import type { MainLoop } from '../../host/main-loop.ts'
import type { SavedValue } from '../device.ts'
import { VirtioError } from '../errors.ts'
import type { Backends } from './descriptions.ts'
import type { DeviceHost, DeviceReport } from './device-host.ts'
import { DeviceTable } from './device-table.ts'
import type { Command } from './protocol.ts'

export class LocalDevices implements DeviceHost {
  readonly #loop: MainLoop
  readonly #table: DeviceTable
  readonly #busy = new Map<number, () => void>()
  #devices = 0
  #nextDevice = 0
  #alive = true

  constructor(loop: MainLoop, backends: Backends, onReport: (report: DeviceReport) => void = () => {}) {
    this.#loop = loop
    const report = (device: number, message: string, times: number): void => onReport({ device, message, times })
    this.#table = new DeviceTable(loop.poll, backends, report, device => this.#busy.get(device)?.())
  }

  get alive(): boolean {
    return this.#alive
  }

  async send(command: Exclude<Command, { do: 'end' }>): Promise<SavedValue> {
    if (!this.#alive) throw new VirtioError('WORKER_FAILED', `the devices have ended: they cannot ${command.do}`)
    try {
      return await this.#table.perform(command)
    } finally {
      this.#loop.held = this.#table.isHeld
    }
  }

  /** Activation and reset are served within the guest's access: nobody could wait for them on this thread. */
  handshake(device: number): () => void {
    return () => this.#table.device(device).serveControl()
  }

  whenBusy(device: number, tell: () => void): void {
    this.#busy.set(device, tell)
  }

  /** They end with this thread. */
  onEnd(): void {}

  reserve(): number {
    this.#devices++
    return this.#nextDevice++
  }

  async release(): Promise<void> {
    if (--this.#devices > 0) return
    this.#alive = false
    this.#table.close()
  }
}
