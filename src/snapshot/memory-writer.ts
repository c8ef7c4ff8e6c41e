/**
 * Writes a memory layer: pages come in any order, the same one as often as it changes, and the last one counts. The file is
 * sparse; zero pages are found and left out. `seal` ends the writing without touching the disk, so that a machine can go on
 * at once; `finish` adds the index with the checksums and makes it durable.
 */
import { constants, fsync } from 'node:fs'
import { basename } from 'node:path'
import { setImmediate as turn } from 'node:timers/promises'
import { promisify } from 'node:util'
import { closeFd, openFd, readAt, truncate, writeAt } from '../host/file.ts'
import { rethrowWrite, SnapshotError } from './errors.ts'
import { hash64, PAGE, PageHasher } from './hash.ts'
import type { LayerRef } from './layer.ts'
import { MemoryImage, type MemoryLayer } from './memory-image.ts'
import { encodeIndex, hashesOffset, layerBytes } from './memory-index.ts'
import { PageSet } from './page-set.ts'
import { stampOfFd } from './stamp.ts'

const WORDS = PAGE / 4

export class MemoryWriter {
  readonly size: number
  readonly #path: string
  readonly #finalPath: string
  readonly #fd: number
  readonly #parent: MemoryImage | undefined
  readonly #data: PageSet
  readonly #zero: PageSet
  #image: MemoryImage | undefined
  #ref: LayerRef | undefined
  #bytes = 0
  #open = true

  /** `path` is where it is written, `finalPath` where it will be. A `parent` makes it incremental. */
  constructor(path: string, finalPath: string, size: number, parent?: MemoryImage) {
    if (!Number.isInteger(size / PAGE) || size <= 0)
      throw new SnapshotError('INVALID', `a memory of ${size} bytes is not whole pages`)
    if (parent && parent.size !== size)
      throw new SnapshotError('INVALID', `the memory has ${size} bytes, its parent's has ${parent.size}`)
    this.size = size
    this.#path = path
    this.#finalPath = finalPath
    this.#parent = parent
    this.#data = new PageSet(size / PAGE)
    this.#zero = new PageSet(size / PAGE)
    try {
      this.#fd = openFd(path, constants.O_RDWR | constants.O_CREAT | constants.O_EXCL, 0o600)
      truncate(this.#fd, size)
    } catch (error) {
      rethrowWrite(error, path)
    }
  }

  /** Bytes written so far, pages that were written again included. */
  get bytes(): number {
    return this.#bytes
  }

  /** Pages that the layer holds so far. */
  get pages(): number {
    return this.#data.count
  }

  /** Whole pages of RAM from `offset` on. They may change meanwhile if they are then written again. */
  write(offset: number, bytes: Uint8Array): void {
    const first = offset / PAGE
    const count = bytes.length / PAGE
    if (this.#image) throw new SnapshotError('INVALID', 'the memory layer is sealed')
    if (!(Number.isInteger(first) && Number.isInteger(count) && first >= 0 && offset + bytes.length <= this.size))
      throw new SnapshotError('INVALID', `${bytes.length} bytes at ${offset} are not whole pages of RAM`)
    // A Buffer's own slice would be a view.
    const source = bytes.byteOffset % 4 === 0 ? bytes : new Uint8Array(bytes)
    const words = new Int32Array(source.buffer, source.byteOffset, source.length / 4)
    let from = 0
    for (let page = 0; page < count; page++) {
      if (!isZeroPage(words, page * WORDS)) {
        this.#data.add(first + page)
        this.#zero.delete(first + page)
      } else if (this.#data.has(first + page)) {
        // Written before: its place in the file must become zeros, and does with the run that it is in.
      } else {
        if (this.#parent) this.#zero.add(first + page)
        this.#flush(source, offset, from, page)
        from = page + 1
      }
    }
    this.#flush(source, offset, from, count)
  }

  #flush(source: Uint8Array, offset: number, from: number, to: number): void {
    if (to <= from) return
    try {
      writeAt(this.#fd, source.subarray(from * PAGE, to * PAGE), offset + from * PAGE)
    } catch (error) {
      rethrowWrite(error, this.#path)
    }
    this.#bytes += (to - from) * PAGE
  }

  /** No more pages will come. The image is complete, its plan good at once and for as long as it is open. */
  seal(): MemoryImage {
    if (this.#image) return this.#image
    const own: MemoryLayer = {
      path: this.#finalPath,
      fd: reopen(this.#fd),
      data: this.#data,
      zero: this.#zero,
      ref: () => this.#ref,
    }
    const below = (this.#parent?.layers ?? []).map(layer => ({ ...layer, fd: reopen(layer.fd) }))
    this.#image = new MemoryImage(this.size, [...below, own])
    return this.#image
  }

  /** The index with the checksums, durable. The caller gives the file its final name. */
  async finish(): Promise<LayerRef> {
    this.seal()
    try {
      const count = this.#data.count
      const hashes = new Uint8Array(count * 8)
      await hashDataPages(this.#fd, this.#data, this.#path, (rank, some) => hashes.set(some, rank * 8))
      const { bytes, sum } = encodeIndex({
        ramSize: this.size,
        data: this.#data,
        zero: this.#zero,
        hashesSum: hash64(hashes),
      })
      writeAt(this.#fd, bytes, this.size)
      if (hashes.length > 0) writeAt(this.#fd, hashes, this.size + hashesOffset(this.size))
      await promisify(fsync)(this.#fd)
      this.#ref = {
        file: basename(this.#finalPath),
        bytes: layerBytes(this.size, count),
        sum,
        stamp: stampOfFd(this.#fd),
      }
      return this.#ref
    } catch (error) {
      rethrowWrite(error, this.#path)
    }
  }

  close(): void {
    if (!this.#open) return
    this.#open = false
    closeFd(this.#fd)
  }
}

/** Another descriptor of the same file, which lives and dies on its own. */
function reopen(fd: number): number {
  return openFd(`/proc/self/fd/${fd}`, constants.O_RDONLY)
}

/** Reads the data pages of a layer and gives their hashes, eight bytes a page, by rank; lets others run in between. */
export async function hashDataPages(
  fd: number,
  data: PageSet,
  path: string,
  take: (rank: number, hashes: Uint8Array) => void,
): Promise<void> {
  const hasher = new PageHasher()
  let rank = 0
  for (let page = data.next(0, true); page < data.pages; ) {
    const end = Math.min(data.next(page, false), page + hasher.capacity)
    const bytes = hasher.pages(end - page)
    if (readAt(fd, bytes, page * PAGE) < bytes.length)
      throw new SnapshotError('TRUNCATED', `${path} was cut short: remove the snapshot, or import it again`)
    take(rank, hasher.hashes(end - page))
    rank += end - page
    page = data.next(end, true)
    if (rank % hasher.capacity === 0) await turn()
  }
}

/** Data mostly shows in the first words; zeros go by eight words a turn. */
function isZeroPage(words: Int32Array, from: number): boolean {
  if (words[from] !== 0) return false
  for (let at = from, end = from + WORDS; at < end; at += 8) {
    const low = words[at]! | words[at + 1]! | words[at + 2]! | words[at + 3]!
    if ((low | words[at + 4]! | words[at + 5]! | words[at + 6]! | words[at + 7]!) !== 0) return false
  }
  return true
}
