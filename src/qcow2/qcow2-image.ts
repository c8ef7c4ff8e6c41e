/** An open QCOW2 image: reads through the chain, copies on write, and puts metadata to disk in order. Synchronous. */
import { alignedBytes } from '../host/aligned.ts'
import { HostError } from '../host/errors.ts'
import { IoVector } from '../host/io-vector.ts'
import type { BlockImage, Extent } from './block-image.ts'
import { CompressedReader } from './compressed-reader.ts'
import { DiskError } from './errors.ts'
import { type Header, readHeader } from './header.ts'
import { INCOMPAT_CORRUPT, INCOMPAT_DIRTY } from './layout.ts'
import { COMPRESSED, DATA, HOLE, ZERO, ZERO_ALLOCATED } from './mapping.ts'
import { type CacheSizes, Metadata } from './metadata.ts'
import { resizeImage } from './resize.ts'
import type { Snapshot } from './snapshots.ts'
import { StickyStorage } from './sticky-storage.ts'
import type { Storage } from './storage.ts'
import { VectorParts } from './vector-parts.ts'
import { discardRange, zeroRange } from './zeroes.ts'

export interface Qcow2Options extends CacheSizes {
  readonly readOnly?: boolean
  readonly backing?: BlockImage | undefined
  /** As it was just read, where it was. The image's own from then on. */
  readonly header?: Header
}

export class Qcow2Image implements BlockImage {
  readonly format = 'qcow2'
  readonly path: string
  readonly readOnly: boolean
  /** Internal: for the other files of this folder. */
  readonly metadata: Metadata
  readonly #storage: Storage
  readonly #compressed: CompressedReader
  readonly #parts = new VectorParts()
  /** One cluster for copy-on-write, from the first that needs it on: layers below have none. */
  #bounce: IoVector | undefined
  #backing: BlockImage | undefined
  #closed = false

  /** Takes over the storage and the backing image, and closes them; when it throws, they are the caller's still. */
  constructor(below: Storage, path: string, options: Qcow2Options = {}) {
    const storage = new StickyStorage(below)
    this.path = path
    this.readOnly = options.readOnly ?? false
    this.#storage = storage
    this.#backing = options.backing
    const header = options.header ?? readHeader(storage, path)
    if (!this.readOnly) refuseUnlessClean(header, path)
    this.metadata = new Metadata(storage, header, path, !this.readOnly, options)
    const { clusterSize } = this.metadata.geometry
    this.#compressed = new CompressedReader(storage, header.compressionType, clusterSize, path)
    // What other writers promised to keep up to date (bitmaps), we do not.
    if (!this.readOnly && header.autoclearFeatures !== 0) this.metadata.setFeatures(header.incompatibleFeatures, 0)
  }

  get sizeBytes(): number {
    return this.metadata.header.size
  }

  get clusterSize(): number {
    return this.metadata.geometry.clusterSize
  }

  get header(): Readonly<Header> {
    return this.metadata.header
  }

  get backing(): BlockImage | undefined {
    return this.#backing
  }

  get snapshots(): readonly Snapshot[] {
    return this.metadata.snapshots
  }

  readv(offset: number, vector: IoVector): void {
    const total = vector.byteLength
    this.#checkRange(offset, total)
    const { mapping } = this.metadata
    for (let done = 0; done < total; ) {
      mapping.lookup(offset + done, total - done)
      const { kind, host, length } = mapping
      if (kind === DATA) this.#storage.readv(this.#parts.part(vector, done, length), host)
      else if (kind === HOLE) this.#readHole(offset + done, vector, done, length)
      else if (kind === COMPRESSED) {
        const cluster = this.#compressed.read(host, mapping.compressedBytes)
        const within = (offset + done) % this.clusterSize
        vector.copyFrom(cluster.subarray(within, within + length), done)
      } else vector.fill(0, done, length)
      done += length
    }
  }

  #readHole(offset: number, vector: IoVector, start: number, length: number): void {
    const backing = this.#backing
    const there = backing ? Math.min(length, Math.max(0, backing.sizeBytes - offset)) : 0
    if (backing && there > 0) backing.readv(offset, this.#parts.part(vector, start, there))
    if (there < length) vector.fill(0, start + there, length - there)
  }

  writev(offset: number, vector: IoVector): void {
    const total = vector.byteLength
    this.checkWritable()
    this.#checkRange(offset, total)
    for (let done = 0; done < total; ) {
      try {
        done += this.#writeRun(offset + done, total - done, vector, done)
      } catch (error) {
        if (!(error instanceof HostError) || error.code !== 'ENOSPC' || !this.metadata.hasPendingFrees) throw error
        // What was discarded since the last flush is room that only waits for one.
        this.metadata.writeBack()
        done += this.#writeRun(offset + done, total - done, vector, done)
      }
    }
  }

  /** Writes to the run of like clusters at `offset`; the number of bytes written. */
  #writeRun(offset: number, max: number, vector: IoVector, done: number): number {
    const { mapping } = this.metadata
    mapping.lookup(offset, max)
    const { kind, host, length } = mapping
    if (kind !== DATA || !mapping.copied) return this.#writeNew(offset, length, kind, vector, done)
    this.#refuseMetadata(host, length)
    this.#storage.writev(this.#parts.part(vector, done, length), host)
    return length
  }

  /** Writes to clusters that must be allocated first; the number of bytes written. */
  #writeNew(offset: number, length: number, kind: number, vector: IoVector, done: number): number {
    const { clusterSize } = this
    const { refcounts } = this.metadata
    const first = Math.floor(offset / clusterSize)
    const within = offset - first * clusterSize
    const readsZero = this.readsZero(kind, first * clusterSize)
    // Whole clusters go out in one call; so do parts of clusters when the rest of them is zeros in a fresh hole.
    const whole = within === 0 ? Math.floor(length / clusterSize) : 0
    if (kind === COMPRESSED || kind === ZERO_ALLOCATED || (whole === 0 && !readsZero)) {
      return this.#writePart(offset, Math.min(length, clusterSize - within), kind, vector, done)
    }
    const wanted = readsZero ? Math.ceil((within + length) / clusterSize) : whole
    const count = refcounts.allocate(wanted)
    const start = refcounts.runStart
    if (readsZero && !refcounts.runIsFresh && whole === 0) {
      refcounts.release(start, count)
      return this.#writePart(offset, Math.min(length, clusterSize - within), kind, vector, done)
    }
    const clusters = refcounts.runIsFresh ? count : Math.min(count, whole)
    if (clusters < count) refcounts.release(start + clusters, count - clusters)
    const bytes = Math.min(length, clusters * clusterSize - within)
    try {
      this.#storage.writev(this.#parts.part(vector, done, bytes), start * clusterSize + within)
      this.metadata.link(first, start, clusters)
    } catch (error) {
      this.#undoAllocation(first, start, clusters)
      throw error
    }
    return bytes
  }

  /** Writes part of one cluster: the rest of it is copied from where it shows now. */
  #writePart(offset: number, length: number, kind: number, vector: IoVector, done: number): number {
    const { clusterSize } = this
    const { refcounts, mapping } = this.metadata
    const cluster = Math.floor(offset / clusterSize)
    const within = offset - cluster * clusterSize
    const bounce = this.#bounceVector().memory
    // One read for what lies before and behind: what is in between is written over below.
    if (length < clusterSize) {
      const from = within === 0 ? length : 0
      const to = within + length === clusterSize ? within : clusterSize
      this.#readBounce(cluster * clusterSize, from, to)
    }
    vector.copyTo(bounce.subarray(within, within + length), done)
    mapping.lookupCluster(cluster)
    const reused = kind === ZERO_ALLOCATED && mapping.copied
    if (reused) this.#refuseMetadata(mapping.host, clusterSize)
    else refcounts.allocate(1)
    const home = reused ? mapping.host / clusterSize : refcounts.runStart
    try {
      this.#storage.write(bounce, home * clusterSize)
      this.metadata.link(cluster, home, 1)
    } catch (error) {
      if (!reused) this.#undoAllocation(cluster, home, 1)
      throw error
    }
    return length
  }

  /** Reads bytes `from` to `to` of a cluster of the disk into the bounce buffer; what is past the end is zeros. */
  #readBounce(clusterOffset: number, from: number, to: number): void {
    const end = Math.max(from, Math.min(to, this.sizeBytes - clusterOffset))
    const bounce = this.#bounceVector()
    if (end < to) bounce.memory.fill(0, end, to)
    if (end === from) return
    bounce.clear()
    bounce.push(from, end - from)
    this.readv(clusterOffset + from, bounce)
  }

  #bounceVector(): IoVector {
    this.#bounce ??= new IoVector(alignedBytes(this.clusterSize), 4)
    return this.#bounce
  }

  /** After a failed write: gives back the clusters that no entry came to point to. */
  #undoAllocation(cluster: number, start: number, count: number): void {
    const { mapping, refcounts } = this.metadata
    for (let i = 0; i < count; i++) {
      mapping.lookupCluster(cluster + i)
      if (mapping.kind === DATA && mapping.host === (start + i) * this.clusterSize) continue
      refcounts.release(start + i, 1)
    }
  }

  /** True when a cluster of this kind at `offset` reads as zeros without looking at any bytes. */
  readsZero(kind: number, offset: number): boolean {
    if (kind === ZERO || kind === ZERO_ALLOCATED) return true
    return kind === HOLE && (this.#backing === undefined || offset >= this.#backing.sizeBytes)
  }

  #refuseMetadata(host: number, length: number): void {
    const { clusterSize } = this
    const last = Math.floor((host + length - 1) / clusterSize)
    for (let cluster = Math.floor(host / clusterSize); cluster <= last; cluster++) {
      if (this.metadata.protectedClusters.has(cluster)) {
        throw this.metadata.damaged(`data of the disk is mapped to cluster ${cluster}, which holds metadata`)
      }
    }
  }

  flush(): void {
    if (this.readOnly) return
    this.#checkOpen()
    this.metadata.writeBack()
  }

  discard(offset: number, length: number): void {
    this.checkWritable()
    this.#checkRange(offset, length)
    discardRange(this, offset, length)
  }

  writeZeroes(offset: number, length: number, mayUnmap: boolean): void {
    this.checkWritable()
    this.#checkRange(offset, length)
    zeroRange(this, offset, length, mayUnmap)
  }

  /** Growing adds zeros; shrinking needs `allowShrink`, since it drops what is there. */
  resize(size: number, allowShrink = false): void {
    this.checkWritable()
    resizeImage(this, size, allowShrink)
  }

  extent(offset: number, length: number): Extent {
    this.#checkRange(offset, 1)
    const { mapping } = this.metadata
    const end = Math.min(offset + length, this.sizeBytes)
    mapping.lookup(offset, end - offset)
    const { kind, host, length: run } = mapping
    if (kind === DATA) return { kind: 'data', length: run, hostOffset: host }
    if (kind === ZERO_ALLOCATED) return { kind: 'zero', length: run, hostOffset: host }
    const name = kind === HOLE ? 'hole' : kind === ZERO ? 'zero' : 'compressed'
    return { kind: name, length: run, hostOffset: -1 }
  }

  /** Replaces the backing image, in memory only: for rebase. The old one is the caller's. */
  setBacking(backing: BlockImage | undefined): void {
    this.#backing = backing
  }

  close(): void {
    if (this.#closed) return
    try {
      if (!this.readOnly) {
        this.metadata.writeBack()
        // A second time for the refcounts of what the first one freed: a clean close leaks nothing.
        if (this.metadata.refcounts.isDirty) this.metadata.writeBack()
      }
    } finally {
      this.#closed = true
      try {
        this.#storage.close()
      } finally {
        this.#backing?.close()
      }
    }
  }

  #checkOpen(): void {
    if (this.#closed) throw new DiskError('CLOSED', this.path, 'was closed')
  }

  checkWritable(): void {
    this.#checkOpen()
    if (this.readOnly) throw new DiskError('READ_ONLY', this.path, 'is open read-only')
  }

  #checkRange(offset: number, length: number): void {
    this.#checkOpen()
    if (offset >= 0 && length >= 0 && offset + length <= this.sizeBytes && Number.isSafeInteger(offset)) return
    throw new DiskError('OUT_OF_RANGE', this.path, `bytes ${offset} to ${offset + length} are outside the disk`)
  }
}

function refuseUnlessClean(header: Header, path: string): void {
  if ((header.incompatibleFeatures & INCOMPAT_CORRUPT) !== 0) {
    throw new DiskError(
      'MARKED_CORRUPT',
      path,
      "is marked corrupt: it opens read-only, or after 'vitrine disk check --repair all'",
    )
  }
  if ((header.incompatibleFeatures & INCOMPAT_DIRTY) !== 0) {
    throw new DiskError(
      'DIRTY',
      path,
      "was not closed and its refcounts are stale: run 'vitrine disk check --repair all'",
    )
  }
}
