/** Frames that wait for the guest to have room: one ring of bytes, bounded, first in first out. */
import type { IoVector } from '../host/io-vector.ts'

export class FrameRing {
  readonly #bytes: Uint8Array
  readonly #lengths: Uint32Array
  #first = 0
  #count = 0
  #readAt = 0
  #writeAt = 0
  #used = 0

  constructor(bytes: number, frames: number) {
    this.#bytes = new Uint8Array(bytes)
    this.#lengths = new Uint32Array(frames)
  }

  get count(): number {
    return this.#count
  }

  get nextLength(): number {
    return this.#count === 0 ? 0 : this.#lengths[this.#first]!
  }

  /** False when there is no room: the frame is lost, as on any network. */
  push(frame: Uint8Array, length: number): boolean {
    if (this.#count === this.#lengths.length || this.#used + length > this.#bytes.length) return false
    const head = Math.min(length, this.#bytes.length - this.#writeAt)
    this.#bytes.set(frame.subarray(0, head), this.#writeAt)
    if (head < length) this.#bytes.set(frame.subarray(head, length), 0)
    this.#writeAt = (this.#writeAt + length) % this.#bytes.length
    this.#used += length
    this.#lengths[(this.#first + this.#count) % this.#lengths.length] = length
    this.#count++
    return true
  }

  /** Moves the first frame into `into`, which has its length. */
  shift(into: IoVector): void {
    const length = this.nextLength
    const head = Math.min(length, this.#bytes.length - this.#readAt)
    into.copyFrom(this.#bytes.subarray(this.#readAt, this.#readAt + head))
    if (head < length) into.copyFrom(this.#bytes.subarray(0, length - head), head)
    this.drop()
  }

  drop(): void {
    const length = this.nextLength
    this.#readAt = (this.#readAt + length) % this.#bytes.length
    this.#used -= length
    this.#first = (this.#first + 1) % this.#lengths.length
    this.#count--
  }

  clear(): void {
    while (this.#count > 0) this.drop()
  }
}
