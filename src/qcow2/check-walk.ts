/**
 * Visits every reference of an image, each L2 table once: tables shared by snapshots are counted with their number of
 * owners, so a hostile image cannot make the same table be read a million times.
 */
import { getU64, viewOver } from './bytes.ts'
import type { CheckReport } from './check-report.ts'
import { DiskError } from './errors.ts'
import { type Geometry, geometryOf } from './geometry.ts'
import { bitmapDirectory, type Header } from './header.ts'
import { HI_COMPRESSED, HI_OFFSET, LO_OFFSET, LO_ZERO, TWO_32 } from './layout.ts'
import { readRefcountTable } from './refcount-table.ts'
import { ReferenceCounts } from './reference-counts.ts'
import { readSnapshots } from './snapshots.ts'
import type { Storage } from './storage.ts'

const DEFAULT_MEMORY = 512 * 1024 * 1024
/** What an L2 table costs in `tables`. */
const TABLE_BYTES = 128
const MAX_SNAPSHOT_L1_BYTES = 1024 * 1024 * 1024

/** An L2 table, how many L1 entries lead to it, and the one of the active L1 table, if any. */
export interface TableUse {
  owners: number
  /** The index in the active L1 table, or -1. */
  active: number
}

/** A table entry that is wrong in itself: where it is in the file, and what should be there instead. */
export interface BadEntry {
  readonly position: number
  readonly hi: number
  readonly lo: number
}

/** Entries to nowhere that one repair sets right. */
const MAX_BAD_ENTRIES = 100_000

export interface WalkOptions {
  readonly maxMemoryBytes?: number
  readonly onProgress?: (done: number, total: number) => void
}

export class ReferenceWalk {
  readonly counts: ReferenceCounts
  readonly tables = new Map<number, TableUse>()
  /** The first of them: a repair that would need more is refused. */
  readonly badEntries: BadEntry[] = []
  badEntryCount = 0
  readonly geometry: Geometry
  refcountBlocks: Float64Array = new Float64Array(0)
  /** References to the refcount structures themselves, which a rebuild replaces. */
  readonly refcountClusters: number[] = []
  readonly #storage: Storage
  readonly #header: Header
  readonly #report: CheckReport
  readonly #path: string
  readonly #fileClusters: number
  readonly #hasBacking: boolean
  readonly #maxTables: number

  constructor(storage: Storage, header: Header, report: CheckReport, path: string, options: WalkOptions = {}) {
    this.#storage = storage
    this.#header = header
    this.#report = report
    this.#path = path
    this.geometry = geometryOf(header)
    this.#hasBacking = header.backingFile !== undefined
    this.#fileClusters = Math.ceil(storage.size() / this.geometry.clusterSize)
    const memory = options.maxMemoryBytes ?? DEFAULT_MEMORY
    this.counts = new ReferenceCounts(path, memory)
    this.#maxTables = Math.max(1, Math.floor(memory / TABLE_BYTES))
    report.totalClusters = Math.ceil(header.size / this.geometry.clusterSize)
    this.#countBytes('the header', 0, 1)
    this.#walkActiveL1()
    this.#walkSnapshots()
    this.#walkTables(options.onProgress)
    this.#walkBitmaps()
    this.#walkRefcounts()
  }

  #countBytes(what: string, offset: number, bytes: number, owners = 1): boolean {
    if (bytes === 0) return true
    const { clusterSize } = this.geometry
    const first = Math.floor(offset / clusterSize)
    const last = Math.floor((offset + bytes - 1) / clusterSize)
    if (last >= this.#fileClusters) {
      this.#report.corruption(`${what} at ${offset} is past the end of the file`)
      return false
    }
    for (let cluster = first; cluster <= last; cluster++) this.counts.add(cluster, owners)
    return true
  }

  #walkActiveL1(): void {
    const { l1TableOffset, l1Size } = this.#header
    this.#countBytes('the L1 table', l1TableOffset, l1Size * 8)
    this.#walkL1(l1TableOffset, l1Size, true, 'L1')
  }

  #walkL1(offset: number, entries: number, active: boolean, what: string): void {
    const bytes = new Uint8Array(entries * 8)
    this.#storage.read(bytes, offset)
    const view = viewOver(bytes)
    const { clusterSize } = this.geometry
    for (let i = 0; i < entries; i++) {
      const hi = view.getUint32(i * 8)
      const table = (hi & HI_OFFSET) * TWO_32 + ((view.getUint32(i * 8 + 4) & LO_OFFSET) >>> 0)
      if (table === 0) continue
      if (table % clusterSize !== 0 || table / clusterSize >= this.#fileClusters) {
        this.#report.corruption(`${what} entry ${i} points to ${table}, which is not a cluster of the file`)
        if (active) this.#noteBad({ position: offset + i * 8, hi: 0, lo: 0 })
        continue
      }
      const use = this.tables.get(table)
      if (!use) {
        if (this.tables.size >= this.#maxTables) {
          throw new DiskError('TOO_LARGE', this.#path, 'has too many tables to be checked in the memory allowed')
        }
        this.tables.set(table, { owners: 1, active: active ? i : -1 })
      } else {
        use.owners++
        if (active && use.active >= 0) this.#report.corruption(`${what} entries ${use.active} and ${i} share a table`)
        if (active && use.active < 0) use.active = i
      }
    }
  }

  #walkSnapshots(): void {
    const snapshots = readSnapshots(this.#storage, this.#header, this.#path)
    const last = snapshots.at(-1)
    if (!last) return
    const { snapshotsOffset } = this.#header
    this.#countBytes('the snapshot table', snapshotsOffset, last.entryOffset + last.entryBytes - snapshotsOffset)
    let total = 0
    for (const { l1TableOffset, l1Size, name } of snapshots) {
      total += l1Size * 8
      if (total > MAX_SNAPSHOT_L1_BYTES)
        throw new DiskError('TOO_LARGE', this.#path, 'its snapshots are too large to check')
      if (this.#countBytes(`snapshot '${name}'`, l1TableOffset, l1Size * 8)) {
        this.#walkL1(l1TableOffset, l1Size, false, `snapshot '${name}' L1`)
      }
    }
  }

  #walkTables(onProgress?: (done: number, total: number) => void): void {
    const { clusterSize } = this.geometry
    const bytes = new Uint8Array(clusterSize)
    const view = viewOver(bytes)
    let done = 0
    for (const [table, use] of this.tables) {
      this.counts.add(table / clusterSize, use.owners)
      this.#storage.read(bytes, table)
      this.#walkTable(view, table, use)
      onProgress?.(++done, this.tables.size)
    }
  }

  #walkTable(view: DataView, table: number, use: TableUse): void {
    const { clusterSize, l2Entries, compressedShift } = this.geometry
    const report = this.#report
    const owned = use.active >= 0
    const mask = 2 ** compressedShift - 1
    let next = -1
    for (let i = 0; i < l2Entries; i++) {
      const hi = view.getUint32(i * 8)
      const lo = view.getUint32(i * 8 + 4)
      if (hi === 0 && lo <= LO_ZERO) continue
      if ((hi & HI_COMPRESSED) !== 0) {
        const offset = (hi & mask) * TWO_32 + lo
        const sectors = ((hi & 0x3fffffff) >>> compressedShift) + 1
        if (!this.#countCompressed(offset, sectors * 512 - (lo & 511), use.owners)) this.#bad(table + i * 8)
        else if (owned) {
          report.allocatedClusters++
          report.compressedClusters++
          report.fragmentedClusters++
        }
        continue
      }
      const offset = (hi & HI_OFFSET) * TWO_32 + ((lo & LO_OFFSET) >>> 0)
      if (offset === 0) continue
      const zero = (lo & LO_ZERO) !== 0
      if (offset % clusterSize !== 0 || offset / clusterSize >= this.#fileClusters) {
        report.corruption(
          `L2 entry ${i} of the table at ${table} points to ${offset}, which is not a cluster of the file`,
        )
        this.#bad(table + i * 8)
        continue
      }
      this.counts.add(offset / clusterSize, use.owners)
      if (!owned || zero) continue
      report.allocatedClusters++
      if (next >= 0 && offset !== next) report.fragmentedClusters++
      next = offset + clusterSize
    }
  }

  /** The last sectors of a compressed cluster may be past the end: its length is only known in sectors. */
  #countCompressed(offset: number, bytes: number, owners: number): boolean {
    const { clusterSize } = this.geometry
    const first = Math.floor(offset / clusterSize)
    if (first >= this.#fileClusters) {
      this.#report.corruption(`a compressed cluster at ${offset} is past the end of the file`)
      return false
    }
    const last = Math.floor((offset + bytes - 1) / clusterSize)
    for (let cluster = first; cluster <= last; cluster++) this.counts.add(cluster, owners)
    return true
  }

  #bad(position: number): void {
    const zero = this.#header.version >= 3 && this.#hasBacking
    this.#noteBad({ position, hi: 0, lo: zero ? LO_ZERO : 0 })
  }

  #noteBad(entry: BadEntry): void {
    if (++this.badEntryCount <= MAX_BAD_ENTRIES) this.badEntries.push(entry)
  }

  /** "Bitmaps extension": a directory, a table for each bitmap, and the clusters that the tables list. */
  #walkBitmaps(): void {
    const directory = bitmapDirectory(this.#header)
    if (!directory) return
    const { clusterSize } = this.geometry
    if (directory.bytes > 64 * 1024 * 1024 || !this.#countBytes('the bitmaps', directory.offset, directory.bytes))
      return
    const bytes = new Uint8Array(directory.bytes)
    this.#storage.read(bytes, directory.offset)
    const view = viewOver(bytes)
    for (let i = 0, at = 0; i < directory.count && at + 24 <= bytes.length; i++) {
      const tableOffset = getU64(view, at)
      const entries = view.getUint32(at + 8)
      if (entries * 8 > 64 * 1024 * 1024 || !this.#countBytes(`bitmap ${i}`, tableOffset, entries * 8)) return
      const table = new Uint8Array(entries * 8)
      this.#storage.read(table, tableOffset)
      for (let j = 0; j < entries; j++) {
        const hi = viewOver(table).getUint32(j * 8)
        const offset = (hi & HI_OFFSET) * TWO_32 + ((viewOver(table).getUint32(j * 8 + 4) & LO_OFFSET) >>> 0)
        if (offset !== 0) this.#countBytes(`bitmap ${i}`, offset, clusterSize)
      }
      at += Math.ceil((24 + view.getUint32(at + 20) + view.getUint16(at + 18)) / 8) * 8
    }
  }

  #walkRefcounts(): void {
    const { refcountTableOffset, refcountTableClusters } = this.#header
    const { clusterSize } = this.geometry
    for (let i = 0; i < refcountTableClusters; i++) {
      const offset = refcountTableOffset + i * clusterSize
      if (this.#countBytes('the refcount table', offset, clusterSize)) this.refcountClusters.push(offset / clusterSize)
    }
    this.refcountBlocks = readRefcountTable(this.#storage, this.#header, (index, offset) => {
      this.#report.corruption(`refcount table entry ${index} points to ${offset}, not to a cluster boundary`)
    })
    for (let i = 0; i < this.refcountBlocks.length; i++) {
      const block = this.refcountBlocks[i]!
      if (block === 0) continue
      if (this.#countBytes(`refcount block ${i}`, block, clusterSize)) this.refcountClusters.push(block / clusterSize)
      else this.refcountBlocks[i] = 0
    }
  }
}
