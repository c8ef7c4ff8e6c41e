/**
 * Which pages of guest RAM our own threads have written: an accelerator's log knows only of the guest's writes. One bit
 * for each 4 KiB page, in the shared memory, set with `Atomics` by any thread and taken by the one that saves.
 */
import type { IoVector } from '../host/io-vector.ts'
import type { GuestMemory } from './guest-memory.ts'
import { DIRTY_LOG_BASE, RAM_OFFSET } from './layout.ts'

const PAGE_SHIFT = 12

export class DirtyLog {
  readonly #switch: Int32Array
  readonly #bits: Int32Array

  constructor(memory: GuestMemory) {
    const { buffer } = memory.wasm
    this.#switch = new Int32Array(buffer, DIRTY_LOG_BASE, 1)
    this.#bits = new Int32Array(buffer, DIRTY_LOG_BASE + 64, Math.ceil((memory.size >>> PAGE_SHIFT) / 32))
  }

  get enabled(): boolean {
    return this.#switch[0] !== 0
  }

  setEnabled(enabled: boolean): void {
    if (enabled) this.#bits.fill(0)
    Atomics.store(this.#switch, 0, enabled ? 1 : 0)
  }

  /** `offset` is in the shared memory, within RAM. */
  mark(offset: number, length: number): void {
    if (length <= 0) return
    const last = (offset - RAM_OFFSET + length - 1) >>> PAGE_SHIFT
    for (let page = (offset - RAM_OFFSET) >>> PAGE_SHIFT; page <= last; page++) {
      Atomics.or(this.#bits, page >>> 5, 1 << (page & 31))
    }
  }

  /** The first `length` bytes of a scatter-gather list. */
  markVector(vector: IoVector, length: number): void {
    let left = length
    for (let i = 0; i < vector.count && left > 0; i++) {
      const size = Math.min(vector.lengths[i]!, left)
      this.mark(vector.offsets[i]!, size)
      left -= size
    }
  }

  /** One bit per page of RAM in the order of the shared memory; taking clears. Writers may be running. */
  take(): Uint8Array {
    const taken = new Int32Array(this.#bits.length)
    for (let i = 0; i < taken.length; i++) taken[i] = Atomics.exchange(this.#bits, i, 0)
    return new Uint8Array(taken.buffer)
  }
}
