/**
 * Data of the guest that its host socket has not taken yet, and data that came out of order: a ring that is made when it
 * is needed, grows to the window, and is given back when it is empty. All flows together share one limit.
 */
import type { IoVector } from '../../host/io-vector.ts'
import { Ranges } from './ranges.ts'
import { advance, distance } from './segment.ts'

/** The most that a flow may have in flight towards us. */
export const WINDOW = 1 << 20
const FIRST = 1 << 16
const MAX_RANGES = 32

/** Rings that are not used now are kept, a few of the largest: a flow that is a little ahead of its host takes and gives one all the time. */
const KEPT = 8

export class MemoryPool {
  readonly limit: number
  used = 0
  readonly #kept: Uint8Array[] = []

  constructor(limit: number) {
    this.limit = limit
  }

  /** A ring of at least `capacity` bytes; undefined when memory is used up. */
  take(capacity: number): Uint8Array | undefined {
    const index = this.#kept.findIndex(({ length }) => length >= capacity)
    if (this.used + (index < 0 ? capacity : this.#kept[index]!.length) > this.limit) return undefined
    const ring = index < 0 ? new Uint8Array(capacity) : this.#kept.splice(index, 1)[0]!
    this.used += ring.length
    return ring
  }

  give(ring: Uint8Array): void {
    this.used -= ring.length
    if (ring.length === WINDOW && this.#kept.length < KEPT) this.#kept.push(ring)
  }
}

const NONE = new Uint8Array(0)

export class HeldData {
  readonly #pool: MemoryPool
  #bytes: Uint8Array = NONE
  /** Where the first held byte is. */
  #start = 0
  /** Bytes in order, for the host socket. */
  length = 0
  readonly ranges = new Ranges(MAX_RANGES)

  constructor(pool: MemoryPool) {
    this.#pool = pool
  }

  get isEmpty(): boolean {
    return this.length === 0 && this.ranges.count === 0
  }

  /** Makes the ring hold `size` bytes; false when memory for it is used up. */
  #reserve(size: number): boolean {
    if (size <= this.#bytes.length) return true
    let capacity = Math.max(FIRST, this.#bytes.length)
    while (capacity < size) capacity *= 2
    const larger = this.#pool.take(capacity)
    if (larger === undefined) return false
    const head = this.#bytes.length - this.#start
    larger.set(this.#bytes.subarray(this.#start))
    larger.set(this.#bytes.subarray(0, this.#start), head)
    this.#pool.give(this.#bytes)
    this.#bytes = larger
    this.#start = 0
    return true
  }

  /** Puts `count` bytes of `source` from `from` on `offset` bytes behind what is held in order. */
  #put(source: IoVector, from: number, count: number, offset: number): boolean {
    const at = this.length + offset
    if (!this.#reserve(at + count)) return false
    const index = (this.#start + at) % this.#bytes.length
    const head = Math.min(count, this.#bytes.length - index)
    source.copyTo(this.#bytes.subarray(index, index + head), from)
    if (head < count) source.copyTo(this.#bytes.subarray(0, count - head), from + head)
    return true
  }

  /** Keeps data that follows on what is held; false when there is no memory for it. */
  append(source: IoVector, from: number, count: number): boolean {
    if (!this.#put(source, from, count, 0)) return false
    this.length += count
    return true
  }

  /** Keeps data from beyond `next`, the sequence number that is expected. */
  keepAhead(source: IoVector, from: number, count: number, sequence: number, next: number): boolean {
    // The range first: without a place for it the bytes would be lost track of.
    if (!this.#put(source, from, count, distance(sequence, next))) return false
    return this.ranges.add(sequence, advance(sequence, count))
  }

  /** After `next` moved on: counts what is now in order; how many bytes became so. */
  joinAhead(next: number): number {
    this.ranges.trim(next)
    if (this.ranges.count === 0 || this.ranges.starts[0] !== next) return 0
    const joined = distance(this.ranges.ends[0]!, next)
    this.ranges.trim(this.ranges.ends[0]!)
    this.length += joined
    return joined
  }

  /** Moves the ring on when data went to the host past it, while data ahead waits in it. */
  skip(count: number): void {
    if (this.#bytes.length > 0) this.#start = (this.#start + count) % this.#bytes.length
  }

  /** The first held bytes that lie in one piece. */
  get first(): Uint8Array {
    return this.#bytes.subarray(this.#start, Math.min(this.#start + this.length, this.#bytes.length))
  }

  take(count: number): void {
    this.#start = (this.#start + count) % this.#bytes.length
    this.length -= count
    if (this.isEmpty) this.release()
  }

  release(): void {
    this.#pool.give(this.#bytes)
    this.#bytes = NONE
    this.#start = 0
    this.length = 0
    this.ranges.clear()
  }
}
