/** The main thread's hold on a vCPU's worker. A worker that dies fails whatever was asked of it, instead of never answering. */

import { Worker } from 'node:worker_threads'
import * as Comlink from 'comlink'
import { assetUrl } from '../host/assets.ts'
import { workerEndpoint } from '../host/worker-endpoint.ts'
import { MachineError } from './errors.ts'
import type { VcpuApi } from './vcpu.worker.ts'
import type { VcpuCalls, VcpuHandle } from './vcpu-handle.ts'

/** What a worker posts, beside Comlink's messages, when the console's output stops being empty. */
export const CONSOLE_READY = 'console-ready'

export class VcpuThread implements VcpuHandle {
  readonly #api: Comlink.Remote<VcpuApi>
  onConsole: () => void = () => {}
  readonly #worker: Worker
  readonly #death: Promise<never>
  #ended = false

  constructor(index: number) {
    // Node's own flags (loaders of test runners, inspectors) are not the worker's business.
    this.#worker = new Worker(assetUrl('vcpu.worker.cjs'), { name: `vcpu${index}`, execArgv: [] })
    this.#worker.on('message', message => {
      if (message === CONSOLE_READY) this.onConsole()
    })
    this.#death = new Promise<never>((_resolve, reject) => {
      this.#worker.once('error', error => {
        reject(
          new MachineError('WORKER_FAILED', `the thread of vCPU ${index} failed: ${error.message}`, { cause: error }),
        )
      })
      this.#worker.once('exit', code => {
        this.#ended = true
        reject(new MachineError('WORKER_FAILED', `the thread of vCPU ${index} ended by itself (status ${code})`))
      })
    })
    // Often nobody waits at that moment.
    this.#death.catch(() => {})
    this.#api = Comlink.wrap<VcpuApi>(workerEndpoint(this.#worker))
  }

  call<T>(use: (api: VcpuCalls) => Promise<T>): Promise<T> {
    return Promise.race([use(this.#api), this.#death])
  }

  async close(): Promise<void> {
    if (!this.#ended) await Promise.race([this.#api.close(), this.#death]).catch(() => {})
    await this.#worker.terminate()
    // Comlink keeps what a proxy's open calls refer to, guest memory included, until the proxy is released.
    this.#api[Comlink.releaseProxy]()
  }
}

/** Threads for the vCPUs of a machine, to be started before there is anything else of it: they take a while. */
export const startVcpuThreads = (cpus: number): VcpuThread[] =>
  Array.from({ length: cpus }, (_, i) => new VcpuThread(i))
