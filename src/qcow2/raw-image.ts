/** A raw file behind the same interface: byte n of the file is byte n of the disk. */
import type { IoVector } from '../host/io-vector.ts'
import type { BlockImage, Extent } from './block-image.ts'
import { DiskError } from './errors.ts'
import { StickyStorage } from './sticky-storage.ts'
import type { Storage } from './storage.ts'

export interface RawOptions {
  readonly readOnly?: boolean
}

export class RawImage implements BlockImage {
  readonly format = 'raw'
  readonly path: string
  readonly readOnly: boolean
  readonly backing = undefined
  readonly #storage: Storage
  #size: number
  #closed = false

  /** Takes over `storage` and closes it. */
  constructor(storage: Storage, path: string, options: RawOptions = {}) {
    this.#storage = new StickyStorage(storage)
    this.path = path
    this.readOnly = options.readOnly ?? false
    this.#size = storage.size()
  }

  get sizeBytes(): number {
    return this.#size
  }

  readv(offset: number, vector: IoVector): void {
    this.#checkRange(offset, vector.byteLength)
    this.#storage.readv(vector, offset)
  }

  writev(offset: number, vector: IoVector): void {
    this.#checkWritable()
    this.#checkRange(offset, vector.byteLength)
    this.#storage.writev(vector, offset)
  }

  flush(): void {
    if (!this.readOnly) this.#storage.flush()
  }

  discard(offset: number, length: number): void {
    this.#checkWritable()
    this.#checkRange(offset, length)
    if (length > 0) this.#storage.giveBack(offset, length)
  }

  writeZeroes(offset: number, length: number, mayUnmap: boolean): void {
    this.#checkWritable()
    this.#checkRange(offset, length)
    if (length === 0) return
    if (mayUnmap) this.#storage.punch(offset, length)
    else this.#storage.zero(offset, length)
  }

  resize(size: number): void {
    this.#checkWritable()
    this.#storage.truncate(size)
    this.#size = size
  }

  extent(offset: number, length: number): Extent {
    this.#checkRange(offset, 1)
    const end = Math.min(this.#storage.runEnd(offset), offset + length, this.#size)
    if (this.#storage.isData(offset)) return { kind: 'data', length: end - offset, hostOffset: offset }
    return { kind: 'zero', length: end - offset, hostOffset: offset }
  }

  close(): void {
    if (this.#closed) return
    this.#closed = true
    this.#storage.close()
  }

  #checkWritable(): void {
    if (this.readOnly) throw new DiskError('READ_ONLY', this.path, 'is open read-only')
  }

  #checkRange(offset: number, length: number): void {
    if (this.#closed) throw new DiskError('CLOSED', this.path, 'was closed')
    if (offset >= 0 && length >= 0 && offset + length <= this.#size && Number.isSafeInteger(offset)) return
    throw new DiskError('OUT_OF_RANGE', this.path, `bytes ${offset} to ${offset + length} are outside the disk`)
  }
}
