/** The main thread's end of micro-vcpu.worker.ts: one command at a time, each a promise. */
import { once } from 'node:events'
import { Worker } from 'node:worker_threads'
import type { CpuRegisters, VcpuTicket } from '../accel/contract.ts'
import { assetUrl } from '../host/assets.ts'
import type { MicroVcpuCommand, MicroVcpuData, MicroVcpuRun } from './micro-vcpu.worker.ts'

export class MicroVcpu {
  readonly #worker: Worker

  constructor(ticket: VcpuTicket) {
    this.#worker = new Worker(assetUrl('micro-vcpu.worker.cjs'), {
      workerData: { ticket } satisfies MicroVcpuData,
      // Node's own flags (loaders of test runners, inspectors) are not the worker's business.
      execArgv: [],
    })
  }

  async #ask(command: MicroVcpuCommand): Promise<unknown> {
    const answer = once(this.#worker, 'message')
    this.#worker.postMessage(command)
    return (await answer)[0]
  }

  async reset(): Promise<void> {
    await this.#ask({ do: 'reset' })
  }

  async startFlat(rip: number): Promise<void> {
    await this.#ask({ do: 'start-flat', rip })
  }

  async startUser(registers: CpuRegisters): Promise<void> {
    await this.#ask({ do: 'start-user', registers })
  }

  async run(stopAfterWrites?: number): Promise<MicroVcpuRun> {
    return (await this.#ask({
      do: 'run',
      ...(stopAfterWrites === undefined ? {} : { stopAfterWrites }),
    })) as MicroVcpuRun
  }

  async save(): Promise<Uint8Array> {
    return (await this.#ask({ do: 'save' })) as Uint8Array
  }

  async restore(state: Uint8Array): Promise<void> {
    await this.#ask({ do: 'restore', state })
  }

  async readRegisters(): Promise<CpuRegisters> {
    return (await this.#ask({ do: 'read-registers' })) as CpuRegisters
  }

  /** Resolves when the worker has ended. The vCPU must not be running: kick it before. */
  async close(): Promise<void> {
    const ended = once(this.#worker, 'exit')
    this.#worker.postMessage({ do: 'close' } satisfies MicroVcpuCommand)
    await ended
  }
}
