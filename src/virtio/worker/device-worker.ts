/** The main thread's side of a device worker: starts it, sends it commands, notices when it dies. */
import { MessageChannel, type MessagePort, Worker } from 'node:worker_threads'
import { atProcessExit } from '../../host/at-exit.ts'
import { createEventFd, signalEventFd } from '../../host/event-fd.ts'
import { closeFd } from '../../host/file.ts'
import { isForked } from '../../host/fork.ts'
import type { SavedValue } from '../device.ts'
import { VirtioError } from '../errors.ts'
import type { DeviceHost, DeviceReport } from './device-host.ts'
import type { Answer, Command, WorkerStart } from './protocol.ts'

interface Waiting {
  readonly resolve: (result: SavedValue) => void
  readonly reject: (error: Error) => void
}

export class DeviceWorker implements DeviceHost {
  readonly #worker: Worker
  readonly #port: MessagePort
  readonly #wakeFd = createEventFd()
  readonly #exiting = new Int32Array(new SharedArrayBuffer(4))
  readonly #waiting = new Map<number, Waiting>()
  readonly #ended: Promise<void>
  readonly #onReport: (report: DeviceReport) => void
  readonly #forgetExit: () => void
  readonly #onEnd: (() => void)[] = []
  #number = 0
  #devices = 0
  #nextDevice = 0
  #alive = true

  /** `url`: a worker script that calls `serveDevices`. `onReport` hears of failures that the guest does not explain. */
  constructor(url: URL, onReport: (report: DeviceReport) => void = () => {}) {
    const { port1, port2 } = new MessageChannel()
    const start: WorkerStart = { port: port2, wakeFd: this.#wakeFd, exiting: this.#exiting }
    this.#onReport = onReport
    this.#port = port1
    this.#worker = new Worker(url, { workerData: start, transferList: [port2], name: 'devices' })
    port1.on('message', (answer: Answer) => this.#hear(answer))
    let failure: Error | undefined
    this.#worker.on('error', error => {
      failure = error as Error
    })
    this.#ended = new Promise(resolve => {
      this.#worker.on('exit', () => {
        this.#die(failure)
        resolve()
      })
    })
    // A thread blocked in its loop would hold the process at its exit.
    this.#forgetExit = atProcessExit(() => {
      Atomics.store(this.#exiting, 0, 1)
      signalEventFd(this.#wakeFd)
    })
  }

  get alive(): boolean {
    return this.#alive
  }

  #hear(answer: Answer): void {
    if ('report' in answer) {
      this.#onReport({ device: answer.device, message: answer.report, times: answer.times })
      return
    }
    const waiting = this.#waiting.get(answer.number)
    this.#waiting.delete(answer.number)
    if ('error' in answer) {
      const { name, message, code } = answer.error
      waiting?.reject(Object.assign(new Error(message), { name, code }))
    } else waiting?.resolve(answer.result)
  }

  #die(cause: Error | undefined): void {
    this.#alive = false
    this.#forgetExit()
    this.#port.close()
    closeFd(this.#wakeFd)
    const error = new VirtioError('WORKER_FAILED', `the device worker has ended${cause ? `: ${cause.message}` : ''}`, {
      cause,
    })
    for (const waiting of this.#waiting.values()) waiting.reject(error)
    this.#waiting.clear()
    for (const tell of this.#onEnd) tell()
  }

  onEnd(tell: () => void): void {
    this.#onEnd.push(tell)
  }

  send(command: Command): Promise<SavedValue> {
    if (!this.#alive) {
      return Promise.reject(new VirtioError('WORKER_FAILED', `the device worker has ended: it cannot ${command.do}`))
    }
    return new Promise((resolve, reject) => {
      const number = this.#number++
      this.#waiting.set(number, { resolve, reject })
      this.#port.postMessage({ number, command })
      signalEventFd(this.#wakeFd)
    })
  }

  reserve(): number {
    this.#devices++
    return this.#nextDevice++
  }

  /** Resolves when the thread serves commands. */
  async ready(): Promise<void> {
    // To a device that there is not: nothing else changes.
    await this.send({ do: 'resume', device: -1 })
  }

  async release(): Promise<void> {
    this.#devices--
    if (this.#devices === 0) await this.end()
  }

  async end(): Promise<void> {
    if (this.#alive) await this.send({ do: 'end' }).catch(() => {})
    if (!isForked()) await this.#ended
  }
}
