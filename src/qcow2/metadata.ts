/**
 * All metadata of one open image, and the order in which it reaches the disk (README, "Ordering"):
 *
 *   1. refcount pieces, and L2 tables that nothing refers to yet     (leaks at worst)
 *   2. barrier: what follows refers only to durable things
 *   3. L2 pieces, L1 entries
 *   4. barrier: the writes of the guest are durable
 *   5. references that step 3 dropped are given back, in memory; their refcounts go out with the next step 1
 */
import { HostError } from '../host/errors.ts'
import { viewOver } from './bytes.ts'
import { ClusterSet } from './cluster-set.ts'
import { DiskError } from './errors.ts'
import { type Geometry, geometryOf } from './geometry.ts'
import type { Header } from './header.ts'
import { HEADER, HI_COPIED } from './layout.ts'
import { COMPRESSED, DATA, Mapping, ZERO_ALLOCATED } from './mapping.ts'
import { readRefcountTable } from './refcount-table.ts'
import { Refcounts } from './refcounts.ts'
import { readSnapshots, type Snapshot } from './snapshots.ts'
import type { Storage } from './storage.ts'

export interface CacheSizes {
  /** Bytes of L2 entries kept in memory: each 8 bytes cover a cluster. */
  readonly l2CacheBytes?: number
  readonly refcountCacheBytes?: number
}

const DEFAULT_L2_CACHE = 4 * 1024 * 1024
const DEFAULT_REFCOUNT_CACHE = 512 * 1024
/** Clusters, and bytes of them, waiting to be freed before a write-back is forced, so that their space is used again. */
const MAX_PENDING_FREES = 16384
const MAX_PENDING_BYTES = 1024 * 1024 * 1024

export class Metadata {
  readonly storage: Storage
  readonly path: string
  readonly header: Header
  readonly geometry: Geometry
  readonly mapping: Mapping
  readonly snapshots: readonly Snapshot[]
  /** Clusters that hold metadata: guest data is never written to one, whatever an entry says. */
  readonly protectedClusters = new ClusterSet()
  readonly #writable: boolean
  #refcounts: Refcounts | undefined
  #pendingFrees: number[] = []

  constructor(storage: Storage, header: Header, path: string, writable: boolean, sizes: CacheSizes = {}) {
    this.storage = storage
    this.path = path
    this.header = header
    this.geometry = geometryOf(header)
    this.#writable = writable
    // A small disk needs no more cache than it has entries.
    const allEntries = Math.ceil(header.size / this.geometry.clusterSize) * 8
    const wanted = Math.min(sizes.l2CacheBytes ?? DEFAULT_L2_CACHE, Math.max(allEntries * 2, 65536))
    this.mapping = new Mapping(storage, header, this.geometry, wanted, () => this.writeBack(), path)
    this.snapshots = readSnapshots(storage, header, path)
    if (writable) this.#openRefcounts(sizes.refcountCacheBytes ?? DEFAULT_REFCOUNT_CACHE)
  }

  get refcounts(): Refcounts {
    if (!this.#refcounts) throw new DiskError('READ_ONLY', this.path, 'is open read-only')
    return this.#refcounts
  }

  #openRefcounts(cacheBytes: number): void {
    const { header, geometry, storage, path, protectedClusters } = this
    const cluster = (offset: number): number => offset / geometry.clusterSize
    const clusters = (bytes: number): number => Math.ceil(bytes / geometry.clusterSize)
    const onBad = (index: number, offset: number): never => {
      throw this.damaged(`refcount table entry ${index} points to ${offset}`)
    }
    const blocks: number[] = []
    const table = readRefcountTable(storage, header, onBad, blocks)
    let distinct = protectedClusters.add(0)
    distinct = protectedClusters.addRange(cluster(header.l1TableOffset), clusters(header.l1Size * 8)) && distinct
    distinct = protectedClusters.addRange(cluster(header.refcountTableOffset), header.refcountTableClusters) && distinct
    // Of the table's thousands of entries a few, at every start, before anything is fast.
    for (const block of blocks) distinct = protectedClusters.add(cluster(block)) && distinct
    distinct = this.mapping.addTablesTo(protectedClusters) && distinct
    if (!distinct) throw this.damaged('tables of its metadata overlap')
    const fileClusters = clusters(storage.size())
    protectedClusters.setRanges(
      this.snapshots.map(({ name, l1TableOffset, l1Size }) => {
        const range = { first: cluster(l1TableOffset), count: clusters(l1Size * 8) }
        if (range.first + range.count <= fileClusters || range.count === 0) return range
        throw this.damaged(`the L1 table of its snapshot '${name}' is past the end of the file`)
      }),
    )
    this.#refcounts = new Refcounts(
      storage,
      geometry,
      table,
      header.refcountTableOffset,
      protectedClusters,
      cacheBytes,
      path,
    )
  }

  /** Makes sure that the L2 table of `cluster` exists and is this disk's alone, so that its entries can be set. */
  ensureTable(cluster: number): void {
    const { mapping, refcounts, storage } = this
    const { clusterSize, l2Entries } = this.geometry
    const l1Index = Math.floor(cluster / l2Entries)
    const old = mapping.tables[l1Index]!
    if (old !== 0 && mapping.tableCopied[l1Index] === 1) return
    refcounts.allocate(1)
    const home = refcounts.runStart
    const offset = home * clusterSize
    try {
      mapping.cache.drop(offset, clusterSize)
      if (old !== 0) {
        const copy = new Uint8Array(clusterSize)
        storage.read(copy, old)
        storage.write(copy, offset)
      } else if (!refcounts.runIsFresh) storage.zero(offset, clusterSize)
    } catch (error) {
      refcounts.release(home, 1)
      throw error
    }
    mapping.setTable(l1Index, offset)
    this.protectedClusters.add(home)
    if (old !== 0) {
      // Shared with a snapshot: what stays there is metadata still, so it stays protected.
      this.#pendingFrees.push(old / clusterSize)
    }
  }

  /** Points `count` clusters of the disk to clusters of the file in a row, whose bytes are already written. */
  link(cluster: number, hostCluster: number, count: number): void {
    const { clusterSize } = this.geometry
    for (let i = 0; i < count; i++) {
      const offset = (hostCluster + i) * clusterSize
      this.replaceEntry(cluster + i, (HI_COPIED | Math.floor(offset / 0x1_0000_0000)) >>> 0, offset % 0x1_0000_0000)
    }
  }

  /** Sets an entry, and remembers to free what the old one held once the new one is durable. */
  replaceEntry(cluster: number, hi: number, lo: number): void {
    this.ensureTable(cluster)
    const { mapping } = this
    mapping.lookupCluster(cluster)
    const { kind, host, compressedBytes } = mapping
    mapping.setEntry(cluster, hi, lo)
    if (kind === DATA || kind === ZERO_ALLOCATED) {
      const { clusterSize } = this.geometry
      const kept = (hi & 0x00ffffff) * 0x1_0000_0000 + ((lo & 0xfffffe00) >>> 0)
      if (kept !== host || (hi & 0x40000000) !== 0) this.#pendingFrees.push(host / clusterSize)
    } else if (kind === COMPRESSED) this.#pendCompressed(host, compressedBytes)
    if (this.#pendingFrees.length >= Math.min(MAX_PENDING_FREES, MAX_PENDING_BYTES / this.geometry.clusterSize)) {
      this.writeBack()
    }
  }

  /** Clusters wait to be freed: a write-back would make room for others. */
  get hasPendingFrees(): boolean {
    return this.#pendingFrees.length > 0
  }

  /** Writes back all metadata with the barriers it needs; everything the guest wrote before is durable afterwards. */
  writeBack(): void {
    const { mapping } = this
    const refcounts = this.#refcounts
    if (!this.#writable || !refcounts) return
    if (refcounts.isDirty) refcounts.writeBack()
    if (mapping.isDirty) {
      mapping.writeNewTables()
      this.storage.flush()
      mapping.writeLinks(this.header.l1TableOffset)
    }
    this.storage.flush()
    this.#applyFrees(refcounts)
  }

  /** Gives references back after their going is durable. Used by `writeBack` and by whoever moves a table. */
  #applyFrees(refcounts: Refcounts): void {
    if (this.#pendingFrees.length === 0) return
    const frees = this.#pendingFrees.sort((a, b) => a - b)
    this.#pendingFrees = []
    let runStart = 0
    let runLength = 0
    for (const cluster of frees) {
      if (!refcounts.free(cluster)) continue
      this.protectedClusters.delete(cluster)
      if (runLength > 0 && cluster === runStart + runLength) runLength++
      else {
        this.#giveBack(runStart, runLength)
        runStart = cluster
        runLength = 1
      }
    }
    this.#giveBack(runStart, runLength)
  }

  /** Lets the file system have the space of free clusters. It is an optimisation: that it fails changes nothing. */
  #giveBack(cluster: number, count: number): void {
    if (count === 0) return
    try {
      this.storage.giveBack(cluster * this.geometry.clusterSize, count * this.geometry.clusterSize)
    } catch (error) {
      if (!(error instanceof HostError)) throw error
    }
  }

  pendFree(cluster: number, count = 1): void {
    for (let i = 0; i < count; i++) this.#pendingFrees.push(cluster + i)
  }

  #pendCompressed(host: number, bytes: number): void {
    const { clusterSize } = this.geometry
    const first = Math.floor(host / clusterSize)
    const last = Math.floor((host + bytes - 1) / clusterSize)
    for (let cluster = first; cluster <= last; cluster++) this.#pendingFrees.push(cluster)
  }

  /** Brings fields of the header (all in its first sector) to the file, atomically; durable on return. */
  writeHeaderFields(change: (view: DataView) => void): void {
    const sector = new Uint8Array(Math.min(512, this.geometry.clusterSize))
    this.storage.read(sector, 0)
    change(viewOver(sector))
    this.storage.write(sector, 0)
    this.storage.flush()
  }

  setFeatures(incompatible: number, autoclear: number): void {
    if (this.header.version < 3) return
    this.writeHeaderFields(view => {
      view.setUint32(HEADER.incompatibleFeatures + 4, incompatible)
      view.setUint32(HEADER.autoclearFeatures, 0)
      view.setUint32(HEADER.autoclearFeatures + 4, autoclear)
    })
    this.header.incompatibleFeatures = incompatible
    this.header.autoclearFeatures = autoclear
  }

  damaged(what: string): DiskError {
    return new DiskError('CORRUPT', this.path, `is damaged: ${what}; run 'vitrine disk check --repair all' on it`)
  }
}
