/** The devices that live on one thread: a device worker's, or the machine's own. Does what the machine commands. */
import { openInterrupt } from '../../accel/interrupt.ts'
import type { PollSet } from '../../host/poll.ts'
import { GuestMemory } from '../../memory/guest-memory.ts'
import type { SavedValue } from '../device.ts'
import { VirtioError } from '../errors.ts'
import { restoreTransport, saveTransport } from '../mmio/state.ts'
import { VirtioTransport } from '../mmio/transport.ts'
import { type Backends, makeDevice } from './descriptions.ts'
import type { Command } from './protocol.ts'

const REPORT_INTERVAL_MS = 1000

/** A device that fails a thousand times a second is reported once a second. */
class Reporter {
  readonly #post: (report: string, times: number) => void
  #last = 0
  #times = 0

  constructor(post: (report: string, times: number) => void) {
    this.#post = post
  }

  report(error: unknown): void {
    this.#times++
    const now = Date.now()
    if (now - this.#last < REPORT_INTERVAL_MS) return
    this.#post(error instanceof Error ? (error.stack ?? error.message) : String(error), this.#times)
    this.#last = now
    this.#times = 0
  }
}

export class DeviceTable {
  readonly #poll: PollSet
  readonly #backends: Backends
  readonly #report: (device: number, report: string, times: number) => void
  readonly #devices = new Map<number, VirtioTransport>()
  readonly #paused = new Set<number>()

  /** `report` hears of failures that are not the guest's. */
  constructor(poll: PollSet, backends: Backends, report: (device: number, report: string, times: number) => void) {
    this.#poll = poll
    this.#backends = backends
    this.#report = report
  }

  /** Whether one of them is to hold still: nothing but commands may be served then. */
  get isHeld(): boolean {
    return this.#paused.size > 0
  }

  async perform(command: Exclude<Command, { do: 'end' }>): Promise<SavedValue> {
    return command.do === 'attach' ? this.#attach(command) : this.#perform(command)
  }

  #perform(command: Exclude<Command, { do: 'attach' | 'end' }>): SavedValue {
    switch (command.do) {
      case 'pause':
        this.#paused.add(command.device)
        return null
      case 'resume':
        this.#paused.delete(command.device)
        return null
      case 'save':
        return saveTransport(this.device(command.device))
      case 'restore':
        restoreTransport(this.device(command.device), command.state)
        // A restored machine is paused until it is resumed.
        this.#paused.add(command.device)
        return null
      case 'reset':
        this.device(command.device).reset()
        return null
      case 'control':
        return this.#control(command.device, command.request)
      case 'close':
        this.device(command.device).close()
        this.#devices.delete(command.device)
        this.#paused.delete(command.device)
        return null
    }
  }

  async #attach({ device, slot, description }: Command & { do: 'attach' }): Promise<SavedValue> {
    const reporter = new Reporter((report, times) => this.#report(device, report, times))
    const line = await openInterrupt(slot.interrupt)
    const made = makeDevice(description, this.#backends)
    try {
      const memory = GuestMemory.attach(slot.wasm)
      const transport = new VirtioTransport(memory, slot, made, this.#poll, line, error => reporter.report(error))
      this.#devices.set(device, transport)
    } catch (error) {
      made.close()
      throw error
    }
    return made.counterNames
  }

  #control(device: number, request: SavedValue): SavedValue {
    const target = this.device(device).device
    if (target.control === undefined) throw new VirtioError('BAD_DESCRIPTION', 'this device has no controls')
    return target.control(request)
  }

  device(number: number): VirtioTransport {
    const transport = this.#devices.get(number)
    if (transport === undefined) throw new VirtioError('BAD_DESCRIPTION', `there is no device ${number} on this thread`)
    return transport
  }

  close(): void {
    for (const transport of this.#devices.values()) transport.close()
    this.#devices.clear()
  }
}
