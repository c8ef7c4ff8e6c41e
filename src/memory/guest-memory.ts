/**
 * Guest RAM: one shared WebAssembly memory that every thread of a machine sees, addressed by guest-physical address.
 *
 * Every address and length that a guest had a hand in goes through `offsetOf`, which is the only place that decides
 * whether a range is RAM. Addresses are plain numbers: 53 bits are enough.
 */
import { MAX_RAM_MIB, MIB, MIN_RAM_MIB, MMIO_HOLE_END, MMIO_HOLE_START, RAM_OFFSET } from './layout.ts'

const WASM_PAGE = 65536

export type MemoryErrorCode = 'BAD_SIZE' | 'OUT_OF_RANGE'

export class MemoryError extends Error {
  readonly code: MemoryErrorCode
  constructor(code: MemoryErrorCode, message: string) {
    super(message)
    this.name = 'MemoryError'
    this.code = code
  }
}

/** A run of RAM as the guest sees it and where it is in the shared memory. */
export interface RamRegion {
  /** Guest-physical address. */
  readonly address: number
  readonly size: number
  /** Offset in the shared memory. */
  readonly offset: number
}

export class GuestMemory {
  readonly wasm: WebAssembly.Memory
  /** RAM size in bytes. */
  readonly size: number
  /** The whole shared memory, our own part included. */
  readonly bytes: Uint8Array
  readonly view: DataView
  /** Ranges of the shared memory that a boot mapped from files: they hold something though nobody wrote it. This thread's list. */
  readonly loaded: { readonly offset: number; readonly length: number }[] = []
  readonly #lowSize: number

  private constructor(wasm: WebAssembly.Memory, size: number) {
    this.wasm = wasm
    this.size = size
    this.bytes = new Uint8Array(wasm.buffer)
    this.view = new DataView(wasm.buffer)
    this.#lowSize = Math.min(size, MMIO_HOLE_START)
  }

  static create(sizeMib: number): GuestMemory {
    if (!Number.isInteger(sizeMib) || sizeMib < MIN_RAM_MIB || sizeMib > MAX_RAM_MIB) {
      throw new MemoryError(
        'BAD_SIZE',
        `guest memory of ${sizeMib} MiB is not possible: give a whole number of MiB from ${MIN_RAM_MIB} to ${MAX_RAM_MIB}`,
      )
    }
    const pages = (RAM_OFFSET + sizeMib * MIB) / WASM_PAGE
    return new GuestMemory(new WebAssembly.Memory({ initial: pages, maximum: pages, shared: true }), sizeMib * MIB)
  }

  /** Another thread's view of a memory that `create` made: workers receive `wasm` in a message. */
  static attach(wasm: WebAssembly.Memory): GuestMemory {
    return new GuestMemory(wasm, wasm.buffer.byteLength - RAM_OFFSET)
  }

  /** RAM in guest-physical order: one region below the MMIO hole and, in a large guest, one from 4 GiB. */
  get regions(): readonly RamRegion[] {
    const low = { address: 0, size: this.#lowSize, offset: RAM_OFFSET }
    if (this.size === this.#lowSize) return [low]
    return [low, { address: MMIO_HOLE_END, size: this.size - this.#lowSize, offset: RAM_OFFSET + this.#lowSize }]
  }

  /** The offset of `length` bytes at guest-physical `address` in the shared memory, or -1 if not all of it is RAM. */
  offsetOf(address: number, length: number): number {
    if (!(length >= 0 && address >= 0)) return -1
    const end = address + length
    if (end <= this.#lowSize) return RAM_OFFSET + address
    const highSize = this.size - this.#lowSize
    if (highSize > 0 && address >= MMIO_HOLE_END && end <= MMIO_HOLE_END + highSize) {
      return RAM_OFFSET + MMIO_HOLE_START + (address - MMIO_HOLE_END)
    }
    return -1
  }

  /** Like `offsetOf`, but throws. For our own addresses; devices test `offsetOf` themselves. */
  requireOffset(address: number, length: number): number {
    const offset = this.offsetOf(address, length)
    if (offset < 0) {
      throw new MemoryError(
        'OUT_OF_RANGE',
        `guest-physical 0x${address.toString(16)}+0x${length.toString(16)} is not all RAM (${this.size / MIB} MiB)`,
      )
    }
    return offset
  }

  /** A view of guest memory, without a copy. */
  slice(address: number, length: number): Uint8Array {
    const offset = this.requireOffset(address, length)
    return this.bytes.subarray(offset, offset + length)
  }

  write(address: number, data: Uint8Array): void {
    this.bytes.set(data, this.requireOffset(address, data.length))
  }

  readU8(address: number): number {
    return this.view.getUint8(this.requireOffset(address, 1))
  }
  readU16(address: number): number {
    return this.view.getUint16(this.requireOffset(address, 2), true)
  }
  readU32(address: number): number {
    return this.view.getUint32(this.requireOffset(address, 4), true)
  }
  readU64(address: number): bigint {
    return this.view.getBigUint64(this.requireOffset(address, 8), true)
  }
  writeU8(address: number, value: number): void {
    this.view.setUint8(this.requireOffset(address, 1), value)
  }
  writeU16(address: number, value: number): void {
    this.view.setUint16(this.requireOffset(address, 2), value, true)
  }
  writeU32(address: number, value: number): void {
    this.view.setUint32(this.requireOffset(address, 4), value, true)
  }
  writeU64(address: number, value: bigint): void {
    this.view.setBigUint64(this.requireOffset(address, 8), value, true)
  }
}
