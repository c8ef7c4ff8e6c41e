/**
 * The loop of a device worker: one blocking wait over doorbells, control and host descriptors. Commands from the main
 * thread come through a message port that is read when an eventfd says so, so that the loop returns to
 * Node's own event loop only for those that have to wait for something.
 */
import { receiveMessageOnPort } from 'node:worker_threads'
import { drainEventFd } from '../../host/event-fd.ts'
import { POLLIN, PollSet } from '../../host/poll.ts'
import type { SavedValue } from '../device.ts'
import type { Backends } from './descriptions.ts'
import { DeviceTable } from './device-table.ts'
import type { Answer, Command, CommandMessage, WorkerStart } from './protocol.ts'

class DeviceServer {
  readonly #start: WorkerStart
  readonly #poll = new PollSet()
  readonly #idle = new PollSet()
  readonly #table: DeviceTable
  #ended = false
  /** There are commands to be read. */
  #arrived = false

  constructor(start: WorkerStart, backends: Backends) {
    this.#start = start
    this.#table = new DeviceTable(this.#poll, backends, (device, report, times) =>
      start.port.postMessage({ report, device, times }),
    )
    const onWake = (): void => {
      this.#arrived = true
    }
    this.#poll.add(start.wakeFd, POLLIN, onWake)
    this.#idle.add(start.wakeFd, POLLIN, onWake)
  }

  async run(): Promise<void> {
    while (!this.#ended && Atomics.load(this.#start.exiting, 0) === 0) {
      const set = this.#table.isHeld ? this.#idle : this.#poll
      set.wait(-1)
      if (this.#arrived) await this.#commands()
    }
    this.#table.close()
    for (const set of [this.#poll, this.#idle]) set.close()
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
      answer = { number, result: await this.#perform(command) }
    } catch (error) {
      const { name, message } = error instanceof Error ? error : new Error(String(error))
      answer = { number, error: { name, message, code: codeOf(error) } }
    }
    this.#start.port.postMessage(answer)
  }

  async #perform(command: Command): Promise<SavedValue> {
    if (command.do !== 'end') return this.#table.perform(command)
    this.#ended = true
    return null
  }
}

function codeOf(error: unknown): string {
  const code = error instanceof Error ? (error as Error & { code?: unknown }).code : undefined
  return typeof code === 'string' ? code : 'WORKER_FAILED'
}

/** Serves devices until told to end. */
export const serveDevices = (start: WorkerStart, backends: Backends): Promise<void> =>
  new DeviceServer(start, backends).run()
