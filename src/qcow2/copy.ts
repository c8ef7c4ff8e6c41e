/** Copying between images: runs of zeros are found and left out. */
import { alignedBytes } from '../host/aligned.ts'
import { IoVector } from '../host/io-vector.ts'
import type { BlockImage } from './block-image.ts'

/** What is read and written at once. */
export const COPY_BYTES = 2 * 1024 * 1024
/** Runs of zeros shorter than this are written: looking closer costs more than it saves. */
export const ZERO_GRAIN = 4096

export class CopyBuffer {
  readonly bytes = alignedBytes(COPY_BYTES)
  readonly #vector = new IoVector(this.bytes, 1)
  readonly #words = new Int32Array(this.bytes.buffer, this.bytes.byteOffset, COPY_BYTES / 4)

  /** Fills the start of the buffer from `image` at `offset`. */
  read(image: BlockImage, offset: number, length: number): Uint8Array {
    this.#vector.clear()
    this.#vector.push(0, length)
    image.readv(offset, this.#vector)
    return this.bytes.subarray(0, length)
  }

  /** Writes bytes `start` to `end` of the buffer to `image` at `offset`. */
  write(image: BlockImage, offset: number, start: number, end: number): void {
    this.#vector.clear()
    this.#vector.push(start, end - start)
    image.writev(offset, this.#vector)
  }

  /** Writes the first `length` bytes of the buffer to `image` at `offset`, runs of zeros left out. */
  writeNonZero(image: BlockImage, offset: number, length: number, grain: number): void {
    let from = 0
    while (from < length) {
      let end = from
      while (end < length && !this.isZero(end, Math.min(length, end + grain))) end += grain
      end = Math.min(end, length)
      if (end > from) this.write(image, offset + from, from, end)
      from = end
      while (from < length && this.isZero(from, Math.min(length, from + grain))) from += grain
    }
  }

  /** True when bytes `from` to `to` of the buffer are zeros; both are multiples of four, unless the disk ends there. */
  isZero(from: number, to: number): boolean {
    const words = this.#words
    const end = to >>> 2
    let at = from >>> 2
    // Data mostly shows in the first word; zeros go by eight words a turn.
    if (words[at] !== 0) return false
    for (const last = end - 8; at <= last; at += 8) {
      const first = words[at]! | words[at + 1]! | words[at + 2]! | words[at + 3]!
      if ((first | words[at + 4]! | words[at + 5]! | words[at + 6]! | words[at + 7]!) !== 0) return false
    }
    for (let i = at * 4; i < to; i++) if (this.bytes[i] !== 0) return false
    return true
  }
}
