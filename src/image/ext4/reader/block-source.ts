/** Where a file system is read from: whole blocks by number, with a small cache, over a disk or a chain of disk layers. */
import { alignedBytes } from '../../../host/aligned.ts'
import { IoVector } from '../../../host/io-vector.ts'
import type { BlockImage } from '../../../qcow2/block-image.ts'
import { ImageError } from '../../errors.ts'

/** Metadata blocks that are kept: 16 MiB of 4 KiB blocks. */
const CACHED_BLOCKS = 4096
/** The most that is read at once. */
export const MAX_READ = 1 << 20

export class BlockSource {
  readonly #image: BlockImage
  readonly #buffer = alignedBytes(MAX_READ)
  readonly #vector = new IoVector(this.#buffer, 1)
  readonly #cache = new Map<number, Uint8Array>()
  /** Blocks whose newest contents are elsewhere: in the journal. */
  #replaced: ReadonlyMap<number, Uint8Array> = new Map()
  #blockSize = 1024

  constructor(image: BlockImage) {
    this.#image = image
  }

  get blockSize(): number {
    return this.#blockSize
  }

  setBlockSize(size: number): void {
    this.#blockSize = size
    this.#cache.clear()
  }

  /** From here on these blocks show instead of what the disk has. */
  replace(blocks: ReadonlyMap<number, Uint8Array>): void {
    this.#replaced = blocks
    this.#cache.clear()
  }

  isReplaced(number: number, count: number): boolean {
    if (this.#replaced.size < count) {
      for (const block of this.#replaced.keys()) if (block >= number && block < number + count) return true
      return false
    }
    for (let i = 0; i < count; i++) if (this.#replaced.has(number + i)) return true
    return false
  }

  get blocks(): number {
    return Math.floor(this.#image.sizeBytes / this.#blockSize)
  }

  /** Bytes that need not be whole blocks: for the superblock. The view is good until the next read. */
  bytes(offset: number, length: number): Uint8Array {
    if (offset % 512 !== 0 || length % 512 !== 0 || offset + length > this.#image.sizeBytes || length > MAX_READ)
      throw new ImageError('CORRUPT', `the file system is larger than the disk ${this.#image.path}: check the disk`)
    this.#vector.clear()
    this.#vector.push(0, length)
    this.#image.readv(offset, this.#vector)
    return this.#buffer.subarray(0, length)
  }

  /** One block; do not change it. */
  block(number: number): Uint8Array {
    const replaced = this.#replaced.get(number)
    if (replaced) return replaced
    const cached = this.#cache.get(number)
    if (cached) return cached
    this.#check(number, 1)
    const bytes = this.bytes(number * this.#blockSize, this.#blockSize).slice()
    if (this.#cache.size >= CACHED_BLOCKS) this.#cache.delete(this.#cache.keys().next().value!)
    this.#cache.set(number, bytes)
    return bytes
  }

  /** Several blocks in a row to `target`, not kept. */
  read(number: number, target: Uint8Array): void {
    const size = this.#blockSize
    const count = Math.ceil(target.length / size)
    this.#check(number, count)
    for (let done = 0; done < count; ) {
      const some = Math.min(count - done, MAX_READ / size)
      const bytes = this.bytes((number + done) * size, some * size)
      target.set(bytes.subarray(0, Math.min(bytes.length, target.length - done * size)), done * size)
      done += some
    }
    if (this.#replaced.size === 0) return
    for (let i = 0; i < count; i++) {
      const replaced = this.#replaced.get(number + i)
      if (replaced) target.set(replaced.subarray(0, Math.min(size, target.length - i * size)), i * size)
    }
  }

  #check(number: number, count: number): void {
    if (number >= 0 && number + count <= this.blocks) return
    throw new ImageError('CORRUPT', `block ${number} is outside of the file system on ${this.#image.path}`)
  }
}
