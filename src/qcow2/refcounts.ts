/**
 * Refcounts and the allocator on top of them.
 *
 * A refcount may be higher than the truth on disk (a leak), never lower: increments are written before anything that
 * refers to the cluster, decrements are made only after the last reference is durably gone (metadata.ts sees to both).
 * Hence refcount pieces can be written at any time, and only a *new block* has an order of its own: block, barrier,
 * table entry.
 */
import { setU64, viewOver } from './bytes.ts'
import type { ClusterSet } from './cluster-set.ts'
import { DiskError } from './errors.ts'
import type { Geometry } from './geometry.ts'
import { HEADER, MAX_OFFSET } from './layout.ts'
import { planTable } from './refcount-table.ts'
import { checkRefcount, getRefcount, setRefcount } from './refcount-width.ts'
import type { Storage } from './storage.ts'
import { TableCache } from './table-cache.ts'

export class Refcounts {
  /** The first cluster of the last allocation, and whether its clusters are a hole past all that was ever written. */
  runStart = 0
  runIsFresh = false
  readonly cache: TableCache
  readonly #storage: Storage
  readonly #geometry: Geometry
  readonly #path: string
  readonly #metadata: ClusterSet
  /** File offset of each block; 0 when there is none. */
  #table: Float64Array
  #tableOffset: number
  #tableClusters: number
  /** Blocks whose table entry is not written yet. */
  #unlinked: number[] = []
  /** No cluster below is free. */
  #hint = 0
  /** Clusters from here on were never written: they read as zeros. */
  #freshFrom: number
  readonly #entry = new Uint8Array(16)
  readonly #entryView = viewOver(this.#entry)

  constructor(
    storage: Storage,
    geometry: Geometry,
    table: Float64Array,
    tableOffset: number,
    metadata: ClusterSet,
    cacheBytes: number,
    path: string,
  ) {
    this.#storage = storage
    this.#geometry = geometry
    this.#table = table
    this.#tableOffset = tableOffset
    this.#tableClusters = (table.length * 8) / geometry.clusterSize
    this.#metadata = metadata
    this.#path = path
    this.#freshFrom = Math.ceil(storage.size() / geometry.clusterSize)
    this.cache = new TableCache(storage, geometry.pieceBytes, cacheBytes, () => this.cache.writeDirty())
  }

  get tableOffset(): number {
    return this.#tableOffset
  }

  get tableClusters(): number {
    return this.#tableClusters
  }

  get isDirty(): boolean {
    return this.cache.dirtyCount > 0 || this.#unlinked.length > 0
  }

  get(cluster: number): number {
    const { blockEntries, blockPieceEntries, pieceBytes, refcountBits } = this.#geometry
    const index = Math.floor(cluster / blockEntries)
    const block = index < this.#table.length ? this.#table[index]! : 0
    if (block === 0) return 0
    const entry = cluster - index * blockEntries
    const piece = Math.floor(entry / blockPieceEntries)
    const slot = this.cache.load(block + piece * pieceBytes)
    return getRefcount(this.cache.view, slot * pieceBytes, entry - piece * blockPieceEntries, refcountBits)
  }

  set(cluster: number, value: number): void {
    const { blockEntries, blockPieceEntries, pieceBytes, refcountBits } = this.#geometry
    checkRefcount(value, refcountBits, cluster, this.#path)
    const index = Math.floor(cluster / blockEntries)
    const block = index < this.#table.length ? this.#table[index]! : 0
    if (block === 0) throw this.#damaged(`cluster ${cluster} has no refcount block`)
    const entry = cluster - index * blockEntries
    const piece = Math.floor(entry / blockPieceEntries)
    const slot = this.cache.load(block + piece * pieceBytes)
    setRefcount(this.cache.view, slot * pieceBytes, entry - piece * blockPieceEntries, refcountBits, value)
    this.cache.markDirty(slot)
  }

  /** Takes 1 to `max` free clusters in a row, `runStart` being the first. Returns how many. */
  allocate(max: number): number {
    let cluster = this.#hint
    for (;;) {
      this.#ensureBlock(cluster)
      if (this.get(cluster) === 0) break
      cluster++
    }
    let count = 1
    while (count < max && this.#hasBlock(cluster + count) && this.get(cluster + count) === 0) count++
    this.#take(cluster, count)
    return count
  }

  /** Takes exactly `count` clusters in a row: for tables that must be contiguous. */
  allocateContiguous(count: number): number {
    let start = this.#hint
    let found = 0
    while (found < count) {
      const cluster = start + found
      this.#ensureBlock(cluster)
      if (this.get(cluster) === 0) found++
      else {
        start = cluster + 1
        found = 0
      }
    }
    const hint = this.#hint
    this.#take(start, count)
    if (start > hint) this.#hint = hint
    return start
  }

  /** Gives back clusters that nothing on disk ever referred to. */
  release(start: number, count: number): void {
    for (let i = 0; i < count; i++) this.set(start + i, this.get(start + i) - 1)
    if (start < this.#hint) this.#hint = start
  }

  /** Drops one reference whose going is durable. True when it was the last. */
  free(cluster: number): boolean {
    const refcount = this.get(cluster)
    if (refcount === 0) throw this.#damaged(`cluster ${cluster} is freed but has no references`)
    this.set(cluster, refcount - 1)
    if (refcount > 1) return false
    if (cluster < this.#hint) this.#hint = cluster
    return true
  }

  /** Writes everything, new blocks before the table entries that name them. No barrier follows. */
  writeBack(): void {
    this.cache.writeDirty()
    if (this.#unlinked.length === 0) return
    this.#storage.flush()
    for (const index of this.#unlinked) {
      setU64(this.#entryView, 0, this.#table[index]!)
      this.#storage.write(this.#entry.subarray(0, 8), this.#tableOffset + index * 8)
    }
    this.#unlinked = []
  }

  #hasBlock(cluster: number): boolean {
    const index = Math.floor(cluster / this.#geometry.blockEntries)
    return index < this.#table.length && this.#table[index] !== 0
  }

  #take(start: number, count: number): void {
    const { clusterSize } = this.#geometry
    if ((start + count) * clusterSize > MAX_OFFSET) {
      throw new DiskError('TOO_LARGE', this.#path, 'the image file cannot grow any further')
    }
    for (let i = 0; i < count; i++) {
      if (this.#metadata.has(start + i)) {
        throw this.#damaged(`cluster ${start + i} holds metadata but counts as free; repair the image`)
      }
      this.set(start + i, 1)
    }
    this.#hint = start + count
    this.runStart = start
    this.runIsFresh = start >= this.#freshFrom
    this.#freshFrom = Math.max(this.#freshFrom, start + count)
  }

  /** Makes sure that `cluster` has a refcount block; a new one sits in the first cluster that it describes. */
  #ensureBlock(cluster: number): void {
    const { blockEntries, clusterSize, pieceBytes, refcountBits } = this.#geometry
    const index = Math.floor(cluster / blockEntries)
    if (index >= this.#table.length) this.#growTable()
    if (this.#table[index] !== 0) return
    const home = index * blockEntries
    const offset = home * clusterSize
    if (this.#metadata.has(home)) throw this.#damaged(`cluster ${home} holds metadata but has no refcount block`)
    if (home < this.#freshFrom) this.#storage.zero(offset, clusterSize)
    this.cache.drop(offset, clusterSize)
    const slot = this.cache.create(offset)
    setRefcount(this.cache.view, slot * pieceBytes, 0, refcountBits, 1)
    this.cache.markDirty(slot)
    this.#freshFrom = Math.max(this.#freshFrom, home + 1)
    this.#metadata.add(home)
    this.#table[index] = offset
    this.#unlinked.push(index)
  }

  /**
   * Moves to a larger refcount table. The new one goes where no block reaches yet, together with the blocks that
   * describe it, and becomes valid by one sector write to the header.
   */
  #growTable(): void {
    const { blockEntries, clusterSize, refcountBits } = this.#geometry
    const plan = planTable(this.#table.length, this.#geometry, this.#path)
    this.cache.writeDirty()
    const table = new Float64Array(plan.entries)
    table.set(this.#table)
    const used = plan.blocks + plan.tableClusters
    const block = new Uint8Array(clusterSize)
    for (let i = 0; i < plan.blocks; i++) {
      block.fill(0)
      const covered = Math.min(blockEntries, used - i * blockEntries)
      for (let j = 0; j < covered; j++) setRefcount(viewOver(block), 0, j, refcountBits, 1)
      const offset = (plan.start + i) * clusterSize
      this.#storage.write(block, offset)
      table[this.#table.length + i] = offset
    }
    const bytes = new Uint8Array(plan.entries * 8)
    for (let i = 0; i < table.length; i++) setU64(viewOver(bytes), i * 8, table[i]!)
    const offset = (plan.start + plan.blocks) * clusterSize
    this.#storage.write(bytes, offset)
    this.#storage.flush()
    setU64(this.#entryView, 0, offset)
    this.#entryView.setUint32(8, plan.tableClusters)
    this.#storage.write(this.#entry.subarray(0, 12), HEADER.refcountTableOffset)
    this.#storage.flush()
    const oldStart = this.#tableOffset / clusterSize
    const oldClusters = this.#tableClusters
    this.#table = table
    this.#tableOffset = offset
    this.#tableClusters = plan.tableClusters
    this.#unlinked = []
    this.#freshFrom = Math.max(this.#freshFrom, plan.start + used)
    this.#metadata.addRange(plan.start, used)
    for (let i = 0; i < oldClusters; i++) {
      this.#metadata.delete(oldStart + i)
      this.free(oldStart + i)
    }
  }

  #damaged(what: string): DiskError {
    return new DiskError('CORRUPT', this.#path, `is damaged: ${what}; run 'vitrine disk check --repair all' on it`)
  }
}
