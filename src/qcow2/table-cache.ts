/**
 * A write-back cache for pieces of metadata tables, set-associative and of fixed size. A piece (L2 slice, refcount
 * slice) is at most 4 KiB, so that a miss reads little and a flush writes little. The key is its offset in the file.
 *
 * The cache never writes by itself except through `writeDirty`: what may be written when is the engine's business
 * (README, "Ordering"). When every way of a set is dirty, `onPressure` has to clean some.
 */
import { alignedBytes } from '../host/aligned.ts'
import { viewOver } from './bytes.ts'
import type { Storage } from './storage.ts'

export const MAX_PIECE_BYTES = 4096
const WAYS = 8

export class TableCache {
  readonly pieceBytes: number
  /** Empty until there is something to hold: of a chain's layers some are never asked, and a disk that is not written needs no refcounts. */
  bytes: Uint8Array = new Uint8Array(0)
  view = viewOver(this.bytes)
  dirtyCount = 0
  readonly #storage: Storage
  readonly #onPressure: () => void
  readonly #sets: number
  readonly #tags: Float64Array
  readonly #used: Uint32Array
  readonly #dirty: Uint8Array
  #clock = 0

  constructor(storage: Storage, pieceBytes: number, capacityBytes: number, onPressure: () => void) {
    this.#storage = storage
    this.pieceBytes = pieceBytes
    this.#onPressure = onPressure
    this.#sets = 2 ** Math.max(0, Math.floor(Math.log2(capacityBytes / (pieceBytes * WAYS))))
    const slots = this.#sets * WAYS
    this.#tags = new Float64Array(slots).fill(-1)
    this.#used = new Uint32Array(slots)
    this.#dirty = new Uint8Array(slots)
  }

  get slots(): number {
    return this.#tags.length
  }

  /** The slot that holds the piece at `offset`, or -1. */
  find(offset: number): number {
    const first = this.#firstSlot(offset)
    for (let slot = first; slot < first + WAYS; slot++) {
      if (this.#tags[slot] === offset) {
        this.#used[slot] = ++this.#clock
        return slot
      }
    }
    return -1
  }

  /** The slot with the piece at `offset`, read from the file when it is not here. Valid until the next call. */
  load(offset: number): number {
    const found = this.find(offset)
    if (found >= 0) return found
    const slot = this.#take(offset)
    this.#tags[slot] = -1
    this.#storage.read(this.piece(slot), offset)
    this.#tags[slot] = offset
    return slot
  }

  /** A slot for a piece that is all zeros in the file or not there yet; nothing is read. */
  create(offset: number): number {
    let slot = this.find(offset)
    if (slot < 0) slot = this.#take(offset)
    this.piece(slot).fill(0)
    this.#tags[slot] = offset
    return slot
  }

  markDirty(slot: number): void {
    if (this.#dirty[slot] === 1) return
    this.#dirty[slot] = 1
    this.dirtyCount++
  }

  piece(slot: number): Uint8Array {
    return this.bytes.subarray(slot * this.pieceBytes, (slot + 1) * this.pieceBytes)
  }

  /** Writes the dirty pieces that `wanted` picks, in file order. They are clean afterwards. */
  writeDirty(wanted?: (offset: number) => boolean): void {
    if (this.dirtyCount === 0) return
    const slots: number[] = []
    for (let slot = 0; slot < this.#dirty.length; slot++) {
      if (this.#dirty[slot] === 1 && (!wanted || wanted(this.#tags[slot]!))) slots.push(slot)
    }
    slots.sort((a, b) => this.#tags[a]! - this.#tags[b]!)
    for (const slot of slots) {
      this.#storage.write(this.piece(slot), this.#tags[slot]!)
      this.#dirty[slot] = 0
      this.dirtyCount--
    }
  }

  /** Forgets what is cached of a range of the file, dirty or not: its clusters have another use now. */
  drop(offset: number, length: number): void {
    for (let at = offset; at < offset + length; at += this.pieceBytes) {
      const slot = this.find(at)
      if (slot < 0) continue
      this.#tags[slot] = -1
      this.#used[slot] = 0
      if (this.#dirty[slot] === 1) this.dirtyCount--
      this.#dirty[slot] = 0
    }
  }

  dropAll(): void {
    this.#tags.fill(-1)
    this.#used.fill(0)
    this.#dirty.fill(0)
    this.dirtyCount = 0
  }

  #firstSlot(offset: number): number {
    // Neighbouring pieces go to neighbouring sets; the odd multiplier spreads tables that are a power of two apart.
    const piece = Math.floor(offset / this.pieceBytes)
    return ((piece + Math.floor(piece / 8191) * 31) % this.#sets) * WAYS
  }

  #take(offset: number): number {
    if (this.bytes.length === 0) {
      this.bytes = alignedBytes(this.slots * this.pieceBytes)
      this.view = viewOver(this.bytes)
    }
    let slot = this.#oldestClean(offset)
    if (slot < 0) {
      this.#onPressure()
      slot = this.#oldestClean(offset)
      if (slot < 0) throw new Error('metadata cache: a set stayed dirty after a write-back')
    }
    this.#used[slot] = ++this.#clock
    return slot
  }

  #oldestClean(offset: number): number {
    const first = this.#firstSlot(offset)
    let best = -1
    for (let slot = first; slot < first + WAYS; slot++) {
      if (this.#dirty[slot] === 0 && (best < 0 || this.#used[slot]! < this.#used[best]!)) best = slot
    }
    return best
  }
}
