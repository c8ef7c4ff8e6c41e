/**
 * One block request: VIRTIO 1.2, section 5.2.6. A header of 16 readable bytes, data, and a status byte at the very end of
 * the writable part; no assumption is made about how they are spread over descriptors (2.7.4).
 */
import { IoVector } from '../../host/io-vector.ts'
import type { GuestMemory } from '../../memory/guest-memory.ts'
import { GuestFault } from '../errors.ts'
import type { BlockBackend } from './backend.ts'
import { capacitySectors, MAX_RANGE_SECTORS, MAX_RANGES, SECTOR } from './config.ts'
import * as metric from './metrics.ts'

const T_IN = 0
const T_OUT = 1
const T_FLUSH = 4
const T_GET_ID = 8
const T_DISCARD = 11
const T_WRITE_ZEROES = 13

export const S_OK = 0
export const S_IOERR = 1
export const S_UNSUPP = 2

const HEADER_SIZE = 16
const ID_SIZE = 20
const RANGE_SIZE = 16
const RANGE_UNMAP = 1
const TWO_32 = 0x1_0000_0000

/** Executes requests, one at a time, with buffers that are made once. */
export class BlkRequests {
  readonly readable: IoVector
  readonly writable: IoVector
  /** The last request was for ranges, which are worth many reads and writes: others have their turn after it. */
  isLong = false
  /** The bytes that the last request wrote into guest memory, its status included. */
  written = 0
  readonly #backend: BlockBackend
  readonly #capacity: number
  readonly #counters: Float64Array
  readonly #onError: (error: unknown) => void
  readonly #writesThrough: () => boolean
  readonly #memory: Uint8Array
  readonly #data: IoVector
  readonly #id = new Uint8Array(ID_SIZE)
  readonly #header = new Uint8Array(HEADER_SIZE)
  readonly #headerView = new DataView(this.#header.buffer)
  readonly #ranges = new Uint8Array(MAX_RANGES * RANGE_SIZE)
  readonly #rangesView = new DataView(this.#ranges.buffer)

  constructor(
    memory: GuestMemory,
    backend: BlockBackend,
    serial: string,
    counters: Float64Array,
    onError: (error: unknown) => void,
    /** Every write is flushed at once: the driver cannot or does not want to flush by itself (5.2.6.2). */
    writesThrough: () => boolean,
  ) {
    this.readable = new IoVector(memory.bytes)
    this.writable = new IoVector(memory.bytes)
    this.#data = new IoVector(memory.bytes)
    this.#memory = memory.bytes
    this.#backend = backend
    this.#capacity = capacitySectors(backend)
    this.#counters = counters
    this.#onError = onError
    this.#writesThrough = writesThrough
    new TextEncoder().encodeInto(serial, this.#id)
  }

  /** Executes the request in `readable` and `writable` and writes its status. Throws GuestFault if it has no such parts. */
  execute(): void {
    const { readable, writable } = this
    if (readable.byteLength < HEADER_SIZE) throw new GuestFault('request-shape', 'a block request without its header')
    if (writable.byteLength < 1) throw new GuestFault('request-shape', 'a block request without a status byte')
    this.#copyHeader()
    this.isLong = false
    let status: number
    try {
      status = this.#perform(this.#headerView.getUint32(0, true))
    } catch (error) {
      this.#onError(error)
      status = S_IOERR
    }
    if (status === S_IOERR) this.#counters[metric.IO_ERRORS]! += 1
    else if (status === S_UNSUPP) this.#counters[metric.UNSUPPORTED]! += 1
    this.written = writable.byteLength
    const last = writable.count - 1
    this.#memory[writable.offsets[last]! + writable.lengths[last]! - 1] = status
  }

  /** Copied once: the guest may change it while we work. */
  #copyHeader(): void {
    const { offsets, lengths } = this.readable
    if (lengths[0]! < HEADER_SIZE) {
      this.readable.copyTo(this.#header)
      return
    }
    const from = offsets[0]!
    for (let i = 0; i < HEADER_SIZE; i++) this.#header[i] = this.#memory[from + i]!
  }

  #perform(type: number): number {
    switch (type) {
      case T_IN:
        return this.#read()
      case T_OUT:
        return this.#write()
      case T_FLUSH:
        this.#counters[metric.FLUSHES]! += 1
        this.#backend.flush()
        return S_OK
      case T_GET_ID:
        return this.#getId()
      case T_DISCARD:
      case T_WRITE_ZEROES:
        return this.#eachRange(type)
      default:
        return S_UNSUPP
    }
  }

  /** The header's sector if `bytes` from there on are whole sectors of the disk, else -1. */
  #sectorFor(bytes: number): number {
    const sector = this.#headerView.getUint32(12, true) * TWO_32 + this.#headerView.getUint32(8, true)
    return bytes % SECTOR === 0 && sector + bytes / SECTOR <= this.#capacity ? sector : -1
  }

  #read(): number {
    const bytes = this.writable.byteLength - 1
    const sector = this.#sectorFor(bytes)
    if (sector < 0) return S_IOERR
    this.#data.setToRangeOf(this.writable, 0, bytes)
    if (bytes > 0) this.#backend.readv(sector * SECTOR, this.#data)
    this.#counters[metric.READS]! += 1
    this.#counters[metric.READ_BYTES]! += bytes
    return S_OK
  }

  #write(): number {
    const bytes = this.readable.byteLength - HEADER_SIZE
    const sector = this.#sectorFor(bytes)
    if (sector < 0 || this.#backend.readOnly) return S_IOERR
    this.#data.setToRangeOf(this.readable, HEADER_SIZE, bytes)
    if (bytes > 0) this.#backend.writev(sector * SECTOR, this.#data)
    this.#counters[metric.WRITES]! += 1
    this.#counters[metric.WRITTEN_BYTES]! += bytes
    if (this.#writesThrough()) this.#backend.flush()
    return S_OK
  }

  #getId(): number {
    if (this.writable.byteLength < ID_SIZE + 1) return S_IOERR
    this.writable.copyFrom(this.#id)
    return S_OK
  }

  /** Discard and write-zeroes: ranges of (sector, count, flags), all checked before any is done. */
  #eachRange(type: number): number {
    const bytes = this.readable.byteLength - HEADER_SIZE
    const backend = this.#backend
    this.isLong = true
    if (backend.readOnly || bytes === 0 || bytes % RANGE_SIZE !== 0 || bytes > MAX_RANGES * RANGE_SIZE) return S_IOERR
    this.readable.copyTo(this.#ranges.subarray(0, bytes), HEADER_SIZE)
    for (let at = 0; at < bytes; at += RANGE_SIZE) {
      const sectors = this.#rangesView.getUint32(at + 8, true)
      const flags = this.#rangesView.getUint32(at + 12, true)
      // Unknown flags, and unmap in a discard, are answered so (5.2.6.2).
      if (flags & ~RANGE_UNMAP || (type === T_DISCARD && flags !== 0)) return S_UNSUPP
      if (sectors > MAX_RANGE_SECTORS || this.#rangeSector(at) + sectors > this.#capacity) return S_IOERR
    }
    for (let at = 0; at < bytes; at += RANGE_SIZE) {
      const length = this.#rangesView.getUint32(at + 8, true) * SECTOR
      const unmap = (this.#rangesView.getUint32(at + 12, true) & RANGE_UNMAP) !== 0
      if (length === 0) continue
      if (type === T_DISCARD) backend.discard(this.#rangeSector(at) * SECTOR, length)
      else backend.writeZeroes(this.#rangeSector(at) * SECTOR, length, unmap)
    }
    this.#counters[type === T_DISCARD ? metric.DISCARDS : metric.WRITE_ZEROES]! += 1
    if (this.#writesThrough()) backend.flush()
    return S_OK
  }

  #rangeSector(at: number): number {
    return this.#rangesView.getUint32(at + 4, true) * TWO_32 + this.#rangesView.getUint32(at, true)
  }
}
