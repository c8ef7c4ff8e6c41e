/** Appends compressed clusters: packed one after the other, several in a cluster of the file, each counted there. */
import { HI_COMPRESSED, TWO_32 } from './layout.ts'
import type { Metadata } from './metadata.ts'
import { maxRefcount } from './refcount-width.ts'

export class CompressedWriter {
  readonly #metadata: Metadata
  /** Where the next one goes, while the cluster it starts in has room. */
  #next = 0

  constructor(metadata: Metadata) {
    this.#metadata = metadata
  }

  /** Stores `packed` (shorter than a cluster) as the content of `cluster` of the disk. */
  write(cluster: number, packed: Uint8Array): void {
    const { storage } = this.#metadata
    const { compressedShift } = this.#metadata.geometry
    const offset = this.#place(packed.length)
    storage.write(packed, offset)
    const sectors = Math.ceil(((offset % 512) + packed.length) / 512) - 1
    const hi = HI_COMPRESSED + sectors * 2 ** compressedShift + Math.floor(offset / TWO_32)
    this.#metadata.replaceEntry(cluster, hi >>> 0, offset % TWO_32)
  }

  #place(bytes: number): number {
    const { refcounts, geometry } = this.#metadata
    const { clusterSize, refcountBits } = geometry
    const current = Math.floor(this.#next / clusterSize)
    const room = this.#next % clusterSize === 0 ? 0 : clusterSize - (this.#next % clusterSize)
    const shared = room > 0 && refcounts.get(current) < maxRefcount(refcountBits)
    if (shared && room >= bytes) {
      refcounts.set(current, refcounts.get(current) + 1)
      return this.#advance(this.#next, bytes)
    }
    refcounts.allocate(1)
    const fresh = refcounts.runStart
    if (shared && fresh === current + 1) {
      refcounts.set(current, refcounts.get(current) + 1)
      return this.#advance(this.#next, bytes)
    }
    return this.#advance(fresh * clusterSize, bytes)
  }

  #advance(offset: number, bytes: number): number {
    this.#next = offset + bytes
    return offset
  }
}
