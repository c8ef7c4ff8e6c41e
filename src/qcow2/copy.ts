/** Copying between images: runs of zeros are found and left out. */
import { alignedBytes } from '../host/aligned.ts'
import { IoVector } from '../host/io-vector.ts'
import type { BlockImage } from './block-image.ts'

/** What is read and written at once. */
export const COPY_BYTES = 2 * 1024 * 1024
/** Runs of zeros shorter than this are written: looking closer costs more than it saves. */
export const ZERO_GRAIN = 4096

const ZEROS = new Uint8Array(COPY_BYTES)

/** Compared by memcmp, which is faster here than a WebAssembly loop: the bytes need not be copied into its memory. */
export const allZero = (bytes: Uint8Array): boolean =>
  bytes.length <= ZEROS.length
    ? Buffer.compare(bytes, ZEROS.subarray(0, bytes.length)) === 0
    : allZero(bytes.subarray(0, ZEROS.length)) && allZero(bytes.subarray(ZEROS.length))

export class CopyBuffer {
  readonly bytes = alignedBytes(COPY_BYTES)
  readonly #vector = new IoVector(this.bytes, 1)

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
    const { bytes } = this
    let from = 0
    while (from < length) {
      let end = from
      while (end < length && !allZero(bytes.subarray(end, Math.min(length, end + grain)))) end += grain
      end = Math.min(end, length)
      if (end > from) this.write(image, offset + from, from, end)
      from = end
      while (from < length && allZero(bytes.subarray(from, Math.min(length, from + grain)))) from += grain
    }
  }
}
