/** Where devices live, as their machine sees it: a worker (`device-worker.ts`), or the machine's own thread (`local-devices.ts`). */
import type { SavedValue } from '../device.ts'
import type { Command } from './protocol.ts'

/** A failure that the guest does not explain. */
export interface DeviceReport {
  readonly device: number
  readonly message: string
  /** Since the last such report. */
  readonly times: number
}

export interface DeviceHost {
  readonly alive: boolean
  /** A number for one more device; `release` when it is gone. */
  reserve(): number
  /** With its last device it ends. */
  release(): Promise<void>
  send(command: Exclude<Command, { do: 'end' }>): Promise<SavedValue>
  /** Called when it has ended, whatever the reason. */
  onEnd(tell: () => void): void
  /** Has `tell` called, once, when a device keeps the vCPU of its thread waiting: where that can be. */
  whenBusy?(device: number, tell: () => void): void
  /** For a vCPU on the same thread: what serves activation and reset of a device. */
  handshake?(device: number): () => void
}
