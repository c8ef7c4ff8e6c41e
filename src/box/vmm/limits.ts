/** When a box ends, or is put aside, by itself: its time to live, and its limit of idleness. */
import type { BoxConfig } from '../record.ts'
import type { BoxExit } from './launch.ts'

const IDLE_CHECK_MS = 1000

/** What the limits need of the box that they are for. */
export interface LimitedBox {
  readonly config: Pick<BoxConfig, 'timeoutMs' | 'idleMs' | 'onIdle' | 'command'>
  /** Whether somebody is connected. */
  isUsed(): Promise<boolean>
  /** Whether its user paused it. */
  isFrozen(): boolean
  /** Keeps its memory on disk, and ends it. */
  release(): Promise<void>
  stop(why: Pick<BoxExit, 'reason' | 'message' | 'exitCode'>): Promise<void>
}

export class BoxLimits {
  readonly #box: LimitedBox
  readonly #timers: NodeJS.Timeout[] = []
  #lastUse = Date.now()
  /** Saving memory takes longer than the time between two looks. */
  #looking = false

  constructor(box: LimitedBox) {
    this.#box = box
  }

  watch(): void {
    const { timeoutMs, idleMs } = this.#box.config
    if (timeoutMs > 0) {
      const why = { reason: 'timeout', message: `its ${timeoutMs} ms were over`, exitCode: null } as const
      this.#timers.push(setTimeout(() => void this.#box.stop(why), timeoutMs))
    }
    if (idleMs > 0) {
      this.#lastUse = Date.now()
      this.#timers.push(setInterval(() => void this.#look(), Math.min(idleMs, IDLE_CHECK_MS)))
    }
  }

  clear(): void {
    for (const timer of this.#timers) clearTimeout(timer)
  }

  async #look(): Promise<void> {
    if (this.#looking) return
    this.#looking = true
    try {
      await this.#actWhenIdle()
    } catch (error) {
      // A full disk, perhaps: it goes on, and this is tried again when it has been idle for as long once more.
      this.#lastUse = Date.now()
      process.stderr.write(`it is idle, but cannot be put aside: ${(error as Error).message}\n`)
    } finally {
      this.#looking = false
    }
  }

  async #actWhenIdle(): Promise<void> {
    const { idleMs, onIdle, command } = this.#box.config
    if (command || (await this.#box.isUsed())) this.#lastUse = Date.now()
    if (Date.now() - this.#lastUse < idleMs) return
    // Whoever paused it wants to go on from there, whatever is to be done with one that runs for nobody.
    if (onIdle === 'pause' || this.#box.isFrozen()) await this.#box.release()
    else await this.#box.stop({ reason: 'idle', message: `nobody used it for ${idleMs} ms`, exitCode: null })
  }
}
