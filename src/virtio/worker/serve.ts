/**
 * The loop of a device worker: one blocking poll() over doorbells, control and host descriptors. Commands from the main
 * thread come through a message port that is read when an eventfd says so, so that the loop returns to
 * Node's own event loop only for those that have to wait for something.
 */
import { receiveMessageOnPort } from 'node:worker_threads'
import { openInterrupt } from '../../accel/interrupt.ts'
import { drainEventFd } from '../../host/event-fd.ts'
import { POLLIN, PollSet } from '../../host/poll.ts'
import { GuestMemory } from '../../memory/guest-memory.ts'
import type { SavedValue } from '../device.ts'
import { VirtioError } from '../errors.ts'
import { restoreTransport, saveTransport } from '../mmio/state.ts'
import { VirtioTransport } from '../mmio/transport.ts'
import { type Backends, makeDevice } from './descriptions.ts'
import type { Answer, Command, CommandMessage, WorkerStart } from './protocol.ts'

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

class DeviceServer {
  readonly #start: WorkerStart
  readonly #backends: Backends
  readonly #poll = new PollSet()
  readonly #idle = new PollSet()
  readonly #devices = new Map<number, VirtioTransport>()
  readonly #paused = new Set<number>()
  #ended = false
  /** There are commands to be read. */
  #arrived = false

  constructor(start: WorkerStart, backends: Backends) {
    this.#start = start
    this.#backends = backends
    const onWake = (): void => {
      this.#arrived = true
    }
    this.#poll.add(start.wakeFd, POLLIN, onWake)
    this.#idle.add(start.wakeFd, POLLIN, onWake)
  }

  async run(): Promise<void> {
    while (!this.#ended && Atomics.load(this.#start.exiting, 0) === 0) {
      const set = this.#paused.size === 0 ? this.#poll : this.#idle
      set.wait(-1)
      if (this.#arrived) await this.#commands()
    }
    for (const transport of this.#devices.values()) transport.close()
    this.#start.port.close()
  }

  async #commands(): Promise<void> {
    this.#arrived = false
    drainEventFd(this.#start.wakeFd)
    for (;;) {
      const received = receiveMessageOnPort(this.#start.port)
      if (received === undefined) return
      const { number, command } = received.message as CommandMessage
      await this.#answer(number, command)
    }
  }

  async #answer(number: number, command: Command): Promise<void> {
    let answer: Answer
    try {
      answer = { number, result: command.do === 'attach' ? await this.#attach(command) : this.#perform(command) }
    } catch (error) {
      const { name, message } = error instanceof Error ? error : new Error(String(error))
      answer = { number, error: { name, message, code: codeOf(error) } }
    }
    this.#start.port.postMessage(answer)
  }

  #perform(command: Exclude<Command, { do: 'attach' }>): SavedValue {
    switch (command.do) {
      case 'pause':
        this.#paused.add(command.device)
        return null
      case 'resume':
        this.#paused.delete(command.device)
        return null
      case 'save':
        return saveTransport(this.#device(command.device))
      case 'restore':
        restoreTransport(this.#device(command.device), command.state)
        // A restored machine is paused until it is resumed.
        this.#paused.add(command.device)
        return null
      case 'reset':
        this.#device(command.device).reset()
        return null
      case 'control':
        return this.#control(command.device, command.request)
      case 'close':
        this.#device(command.device).close()
        this.#devices.delete(command.device)
        this.#paused.delete(command.device)
        return null
      case 'end':
        this.#ended = true
        return null
    }
  }

  async #attach({ device, slot, description }: Command & { do: 'attach' }): Promise<SavedValue> {
    const reporter = new Reporter((report, times) => this.#start.port.postMessage({ report, device, times }))
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
    const target = this.#device(device).device
    if (target.control === undefined) throw new VirtioError('BAD_DESCRIPTION', 'this device has no controls')
    return target.control(request)
  }

  #device(number: number): VirtioTransport {
    const transport = this.#devices.get(number)
    if (transport === undefined) throw new VirtioError('BAD_DESCRIPTION', `there is no device ${number} in this worker`)
    return transport
  }
}

function codeOf(error: unknown): string {
  const code = error instanceof Error ? (error as Error & { code?: unknown }).code : undefined
  return typeof code === 'string' ? code : 'WORKER_FAILED'
}

/** Serves devices until told to end. */
export const serveDevices = (start: WorkerStart, backends: Backends): Promise<void> =>
  new DeviceServer(start, backends).run()
