/**
 * From disk offsets to file offsets through L1 and L2 ("Cluster mapping"). The L1 table is in memory whole (32 MiB at
 * most), L2 tables are cached in pieces. `lookup` leaves its answer in fields, so that a request allocates nothing.
 */
import { setU64, viewOver } from './bytes.ts'
import type { ClusterSet } from './cluster-set.ts'
import { DiskError } from './errors.ts'
import type { Geometry } from './geometry.ts'
import type { Header } from './header.ts'
import { HI_COMPRESSED, HI_COPIED, HI_OFFSET, LO_OFFSET, LO_ZERO, MAX_OFFSET, TWO_32 } from './layout.ts'
import type { Storage } from './storage.ts'
import { TableCache } from './table-cache.ts'

/** What an entry says. */
export const HOLE = 0
export const DATA = 1
export const ZERO = 2
/** Reads as zeros, and has a cluster of its own ready. */
export const ZERO_ALLOCATED = 3
export const COMPRESSED = 4

export class Mapping {
  /** The answer of `lookup`: what the run is, where it starts in the file, and its length in bytes. */
  kind = HOLE
  host = 0
  length = 0
  /** True when the clusters of a DATA or ZERO_ALLOCATED run may be written in place (refcount 1). */
  copied = false
  /** For COMPRESSED: the bytes from `host` that hold the cluster. */
  compressedBytes = 0
  readonly cache: TableCache
  /** File offset of each L2 table; 0 when there is none. */
  tables: Float64Array
  tableCopied: Uint8Array
  /** L1 entries that differ from the file's, and the offsets of L2 tables that the file does not refer to yet. */
  readonly unlinked = new Set<number>()
  readonly newTables = new Set<number>()
  readonly #storage: Storage
  readonly #geometry: Geometry
  readonly #version: number
  readonly #path: string
  readonly #entry = new Uint8Array(8)

  constructor(
    storage: Storage,
    header: Header,
    geometry: Geometry,
    cacheBytes: number,
    onPressure: () => void,
    path: string,
  ) {
    this.#storage = storage
    this.#geometry = geometry
    this.#version = header.version
    this.#path = path
    this.cache = new TableCache(storage, geometry.pieceBytes, cacheBytes, onPressure)
    this.tables = new Float64Array(header.l1Size)
    this.tableCopied = new Uint8Array(header.l1Size)
    this.#readL1(header)
  }

  get isDirty(): boolean {
    return this.cache.dirtyCount > 0 || this.unlinked.size > 0
  }

  /** Finds the run of like clusters that starts at byte `offset`, at most `max` bytes of it. */
  lookup(offset: number, max: number): void {
    const { clusterSize, l2Entries, l2PieceEntries, pieceBytes } = this.#geometry
    const cluster = Math.floor(offset / clusterSize)
    const within = offset - cluster * clusterSize
    const l1Index = Math.floor(cluster / l2Entries)
    const l2Index = cluster - l1Index * l2Entries
    const table = this.tables[l1Index]!
    if (table === 0) {
      this.kind = HOLE
      this.host = 0
      this.copied = false
      this.length = Math.min(max, (l2Entries - l2Index) * clusterSize - within)
      return
    }
    const piece = Math.floor(l2Index / l2PieceEntries)
    const first = l2Index - piece * l2PieceEntries
    let at = this.cache.load(table + piece * pieceBytes) * pieceBytes + first * 8
    const { view } = this.cache
    const end = at + (l2PieceEntries - first) * 8
    this.#decode(view.getUint32(at), view.getUint32(at + 4))
    let length = clusterSize - within
    const { kind, copied, host } = this
    if (kind !== COMPRESSED) {
      let next = host + clusterSize
      for (at += 8; length < max && at < end; at += 8) {
        const hi = view.getUint32(at)
        const lo = view.getUint32(at + 4)
        // The common case, told apart without decoding: the same flags, and the cluster right after.
        if (kind === DATA) {
          if ((hi & HI_COMPRESSED) !== 0 || (lo & LO_ZERO) !== 0 || hi >>> 31 !== (copied ? 1 : 0)) break
          if ((hi & HI_OFFSET) * TWO_32 + ((lo & LO_OFFSET) >>> 0) !== next) break
          next += clusterSize
        } else if (kind === HOLE) {
          if (hi !== 0 || lo !== 0) break
        } else if (kind === ZERO) {
          if (lo !== LO_ZERO || hi !== 0) break
        } else break
        length += clusterSize
      }
      if (kind === DATA || kind === ZERO_ALLOCATED) this.host = host + within
    }
    this.length = Math.min(max, length)
  }

  /** What the entry of one cluster says, without looking further. */
  lookupCluster(cluster: number): void {
    this.lookup(cluster * this.#geometry.clusterSize, 1)
  }

  #decode(hi: number, lo: number): void {
    const { clusterSize, compressedShift } = this.#geometry
    this.copied = (hi & HI_COPIED) !== 0
    if ((hi & HI_COMPRESSED) !== 0) {
      this.kind = COMPRESSED
      this.copied = false
      const sectors = ((hi & 0x3fffffff) >>> compressedShift) + 1
      this.host = (hi & ((2 ** compressedShift - 1) >>> 0)) * TWO_32 + lo
      this.compressedBytes = sectors * 512 - (lo & 511)
      if (this.host > MAX_OFFSET - 2 * clusterSize) throw this.#damaged(`a compressed cluster is at ${this.host}`)
      return
    }
    this.host = (hi & HI_OFFSET) * TWO_32 + ((lo & LO_OFFSET) >>> 0)
    if ((lo & LO_ZERO) !== 0) {
      if (this.#version < 3) throw this.#damaged('a version 2 image has a zero cluster')
      this.kind = this.host === 0 ? ZERO : ZERO_ALLOCATED
    } else this.kind = this.host === 0 ? HOLE : DATA
    if (this.host % clusterSize !== 0 || this.host > MAX_OFFSET - clusterSize) {
      throw this.#damaged(`a cluster is at ${this.host}, not at a cluster boundary`)
    }
  }

  /** Writes an entry; its table must be there and writable. */
  setEntry(cluster: number, hi: number, lo: number): void {
    const { l2Entries, l2PieceEntries, pieceBytes } = this.#geometry
    const l1Index = Math.floor(cluster / l2Entries)
    const l2Index = cluster - l1Index * l2Entries
    const piece = Math.floor(l2Index / l2PieceEntries)
    const slot = this.cache.load(this.tables[l1Index]! + piece * pieceBytes)
    const at = slot * pieceBytes + (l2Index - piece * l2PieceEntries) * 8
    this.cache.view.setUint32(at, hi)
    this.cache.view.setUint32(at + 4, lo)
    this.cache.markDirty(slot)
  }

  /** Puts a new L2 table under an L1 entry, in memory; `writeLinks` brings it to the file. */
  setTable(l1Index: number, offset: number): void {
    this.tables[l1Index] = offset
    this.tableCopied[l1Index] = 1
    this.unlinked.add(l1Index)
    this.newTables.add(offset)
  }

  /** Writes L2 pieces of tables that nothing in the file refers to: safe at any time. */
  writeNewTables(): void {
    if (this.newTables.size === 0) return
    const { clusterSize } = this.#geometry
    this.cache.writeDirty(offset => this.newTables.has(Math.floor(offset / clusterSize) * clusterSize))
  }

  /** Writes the other pieces and the L1 entries: only after a barrier that made what they refer to durable. */
  writeLinks(l1TableOffset: number): void {
    this.cache.writeDirty()
    for (const index of this.unlinked) {
      this.encodeL1(this.#entry, 0, index)
      this.#storage.write(this.#entry, l1TableOffset + index * 8)
    }
    this.unlinked.clear()
    this.newTables.clear()
  }

  encodeL1(target: Uint8Array, at: number, index: number): void {
    const view = viewOver(target)
    setU64(view, at, this.tables[index]!)
    if (this.tableCopied[index] === 1) view.setUint32(at, (view.getUint32(at) | HI_COPIED) >>> 0)
  }

  /** More L1 entries, in memory. */
  growL1(entries: number): void {
    const tables = new Float64Array(entries)
    tables.set(this.tables)
    const copied = new Uint8Array(entries)
    copied.set(this.tableCopied)
    this.tables = tables
    this.tableCopied = copied
  }

  #readL1(header: Header): void {
    const bytes = new Uint8Array(header.l1Size * 8)
    this.#storage.read(bytes, header.l1TableOffset)
    const view = viewOver(bytes)
    const { clusterSize } = this.#geometry
    for (let i = 0; i < header.l1Size; i++) {
      const hi = view.getUint32(i * 8)
      const offset = (hi & HI_OFFSET) * TWO_32 + ((view.getUint32(i * 8 + 4) & LO_OFFSET) >>> 0)
      if (offset % clusterSize !== 0 || offset > MAX_OFFSET - clusterSize) {
        throw this.#damaged(`L1 entry ${i} points to ${offset}, not to a cluster boundary`)
      }
      this.tables[i] = offset
      this.tableCopied[i] = hi >>> 31
    }
  }

  /** Enters all L2 tables in the set of metadata clusters; false when one that claims to be unshared is there already. */
  addTablesTo(metadata: ClusterSet): boolean {
    let distinct = true
    for (let i = 0; i < this.tables.length; i++) {
      const offset = this.tables[i]!
      if (offset === 0) continue
      const added = metadata.add(offset / this.#geometry.clusterSize)
      if (!added && this.tableCopied[i] === 1) distinct = false
    }
    return distinct
  }

  #damaged(what: string): DiskError {
    return new DiskError('CORRUPT', this.#path, `is damaged: ${what}; run 'vitrine disk check --repair all' on it`)
  }
}
