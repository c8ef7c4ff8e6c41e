/**
 * Compiling in a thread of its own, while the vCPU goes on interpreting. The vCPU's thread never comes back to its event loop while the
 * guest runs, so answers are fetched by looking (receiveMessageOnPort). The compiler reads blocks while the vCPU may overwrite them: what it
 * made counts only if all its blocks are valid when it is installed, and if the arena was not emptied in between.
 */
import { MessageChannel, type MessagePort, receiveMessageOnPort, Worker } from 'node:worker_threads'
import { assetUrl } from '../../host/assets.ts'
import { v8IsSingleThreaded } from '../../host/fork.ts'
import type { Compilation } from './compile.ts'
import type { HotBlock } from './region.ts'

export interface CompileRequest {
  readonly blocks: readonly HotBlock[]
  /** Where the arena ended: what was decoded later may not be complete. */
  readonly end: number
  readonly coldest: number
  /** Given back with the answer. */
  readonly generation: number
}

export interface CompileAnswer extends Compilation {
  readonly generation: number
}

/** What the thread is started with. */
export interface CompilerStart {
  readonly memory: WebAssembly.Memory
  readonly base: number
  readonly port: MessagePort
  /** Compile well at once: nobody would do it later. */
  readonly wellAtOnce: boolean
}

/** Batches that may be on their way at a time. */
const MOST_UNDER_WAY = 4
/** A thread that says nothing for so long has died, which nobody here could hear otherwise. */
const LOST_AFTER_MS = 10_000

export class BackgroundCompiler {
  readonly #memory: WebAssembly.Memory
  readonly #base: number
  /** Started with the first request: many guests sleep again before anything is hot. */
  #thread: { readonly worker: Worker; readonly port: MessagePort } | undefined
  #underWay = 0
  #heard = 0

  constructor(memory: WebAssembly.Memory, base: number) {
    this.#memory = memory
    this.#base = base
  }

  #start(): { readonly worker: Worker; readonly port: MessagePort } {
    const { port1: port, port2 } = new MessageChannel()
    port.unref()
    const workerData: CompilerStart = {
      ...{ memory: this.#memory, base: this.#base, port: port2 },
      wellAtOnce: v8IsSingleThreaded(),
    }
    const worker = new Worker(assetUrl('compiler.worker.cjs'), {
      workerData,
      transferList: [port2],
      name: 'compiler',
      execArgv: [],
    })
    worker.unref()
    worker.on('error', () => {}) // see isLost
    return { worker, port }
  }

  get isBusy(): boolean {
    return this.#underWay >= MOST_UNDER_WAY
  }

  /** Requests are under way, and nothing has been heard for long. */
  get isLost(): boolean {
    return this.#underWay > 0 && performance.now() - this.#heard > LOST_AFTER_MS
  }

  request(request: CompileRequest): void {
    this.#thread ??= this.#start()
    if (this.#underWay++ === 0) this.#heard = performance.now()
    this.#thread.port.postMessage(request)
  }

  /** The next finished batch, if there is one. */
  take(): CompileAnswer | undefined {
    if (this.#underWay === 0) return undefined
    const received = receiveMessageOnPort(this.#thread!.port) as { message: CompileAnswer } | undefined
    if (!received) return undefined
    this.#underWay--
    this.#heard = performance.now()
    return received.message
  }

  close(): void {
    this.#thread?.port.close()
    void this.#thread?.worker.terminate()
    this.#thread = undefined
    this.#underWay = 0
  }
}
