/**
 * A scatter-gather list over one shared memory, made once and refilled for each request: device workers describe guest
 * buffers with it, block and network engines hand it to preadv/pwritev without copying a byte.
 *
 * Segments are offsets into `memory`; the native `struct iovec` array beside them holds host addresses.
 */
import { addressOf } from './libc.ts'

/** Linux takes at most IOV_MAX segments a call. */
export const MAX_SEGMENTS = 1024
const TWO_32 = 0x1_0000_0000

export class IoVector {
  readonly memory: Uint8Array
  readonly offsets: Float64Array
  readonly lengths: Float64Array
  /** `struct iovec[]`: pairs of (address, length), ready for preadv and pwritev. */
  readonly native: BigUint64Array
  /** The same as 32-bit halves: filling these makes no BigInt. */
  readonly #halves: Uint32Array
  count = 0
  /** The sum of all lengths. */
  byteLength = 0
  /** The host address of `memory`. */
  readonly base: number

  /** Safe because `memory` is a WebAssembly memory (or another buffer that never moves) and is kept alive by `this`. */
  constructor(memory: Uint8Array, capacity: number = MAX_SEGMENTS) {
    this.memory = memory
    this.offsets = new Float64Array(capacity)
    this.lengths = new Float64Array(capacity)
    this.native = new BigUint64Array(capacity * 2)
    this.#halves = new Uint32Array(this.native.buffer)
    this.base = addressOf(memory)
  }

  get capacity(): number {
    return this.offsets.length
  }

  clear(): void {
    this.count = 0
    this.byteLength = 0
  }

  /** Adds `length` bytes at `offset` of the memory. False when full or out of range: nothing is added then. */
  push(offset: number, length: number): boolean {
    const index = this.count
    if (index >= this.offsets.length) return false
    if (!(offset >= 0 && length >= 0 && offset + length <= this.memory.length)) return false
    if (length === 0) return true
    this.offsets[index] = offset
    this.lengths[index] = length
    const address = this.base + offset
    this.#halves[index * 4] = address >>> 0
    this.#halves[index * 4 + 1] = address / TWO_32
    this.#halves[index * 4 + 2] = length >>> 0
    this.#halves[index * 4 + 3] = length / TWO_32
    this.count = index + 1
    this.byteLength += length
    return true
  }

  /** Refills this list with `length` bytes of `source` from byte `start` on. The two share one memory. */
  setToRangeOf(source: IoVector, start: number, length: number): void {
    this.clear()
    let skip = start
    let left = length
    for (let i = 0; i < source.count && left > 0; i++) {
      const size = source.lengths[i]!
      if (skip >= size) {
        skip -= size
        continue
      }
      const take = Math.min(size - skip, left)
      if (!this.push(source.offsets[i]! + skip, take)) throw new RangeError('scatter list range does not fit')
      skip = 0
      left -= take
    }
    if (left > 0) throw new RangeError('scatter list is shorter than the range asked for')
  }

  /** Copies the bytes of `source` (contiguous) into the list's segments, from byte `start` of the list. */
  copyFrom(source: Uint8Array, start = 0): void {
    let skip = start
    let done = 0
    for (let i = 0; i < this.count && done < source.length; i++) {
      const size = this.lengths[i]!
      if (skip >= size) {
        skip -= size
        continue
      }
      const take = Math.min(size - skip, source.length - done)
      this.memory.set(source.subarray(done, done + take), this.offsets[i]! + skip)
      done += take
      skip = 0
    }
  }

  /** Copies from the list's segments, from byte `start` of the list, until `target` is full. */
  copyTo(target: Uint8Array, start = 0): void {
    let skip = start
    let done = 0
    for (let i = 0; i < this.count && done < target.length; i++) {
      const size = this.lengths[i]!
      if (skip >= size) {
        skip -= size
        continue
      }
      const take = Math.min(size - skip, target.length - done)
      const from = this.offsets[i]! + skip
      target.set(this.memory.subarray(from, from + take), done)
      done += take
      skip = 0
    }
  }

  /** Fills `length` bytes of the list from byte `start` with `value`. */
  fill(value: number, start = 0, length = this.byteLength - start): void {
    let skip = start
    let left = length
    for (let i = 0; i < this.count && left > 0; i++) {
      const size = this.lengths[i]!
      if (skip >= size) {
        skip -= size
        continue
      }
      const take = Math.min(size - skip, left)
      const from = this.offsets[i]! + skip
      this.memory.fill(value, from, from + take)
      left -= take
      skip = 0
    }
  }
}
