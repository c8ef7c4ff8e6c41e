/** The packet header of virtio-vsock: VIRTIO 1.2, section 5.10.6. */
import type { IoVector } from '../../host/io-vector.ts'

export const HEADER_SIZE = 44
export const HOST_CID = 2
export const TYPE_STREAM = 1

export const OP_REQUEST = 1
export const OP_RESPONSE = 2
export const OP_RST = 3
export const OP_SHUTDOWN = 4
export const OP_RW = 5
export const OP_CREDIT_UPDATE = 6
export const OP_CREDIT_REQUEST = 7

/** SHUTDOWN flags: the sender of the packet will receive no more, will send no more. */
export const NO_RECEIVE = 1
export const NO_SEND = 2

/** A header in a buffer of its own: read from the guest once, or filled for it. Field offsets are those of the structure. */
export class PacketHeader {
  readonly bytes = new Uint8Array(HEADER_SIZE)
  readonly #view = new DataView(this.bytes.buffer)

  /** Takes a copy of the first bytes of a list that has at least HEADER_SIZE. */
  load(list: IoVector): void {
    const from = list.offsets[0]!
    if (list.lengths[0]! < HEADER_SIZE) list.copyTo(this.bytes)
    else for (let i = 0; i < HEADER_SIZE; i++) this.bytes[i] = list.memory[from + i]!
  }

  /** Puts it at the start of a list. */
  store(list: IoVector): void {
    const to = list.offsets[0]!
    if (list.lengths[0]! < HEADER_SIZE) list.copyFrom(this.bytes)
    else for (let i = 0; i < HEADER_SIZE; i++) list.memory[to + i] = this.bytes[i]!
  }

  /** CIDs are 64 bits of which only 32 are ever used; -1 for one that is larger. */
  get srcCid(): number {
    return this.#view.getUint32(4, true) === 0 ? this.#view.getUint32(0, true) : -1
  }
  get dstCid(): number {
    return this.#view.getUint32(12, true) === 0 ? this.#view.getUint32(8, true) : -1
  }
  get srcPort(): number {
    return this.#view.getUint32(16, true)
  }
  get dstPort(): number {
    return this.#view.getUint32(20, true)
  }
  get length(): number {
    return this.#view.getUint32(24, true)
  }
  get type(): number {
    return this.#view.getUint16(28, true)
  }
  get op(): number {
    return this.#view.getUint16(30, true)
  }
  get flags(): number {
    return this.#view.getUint32(32, true)
  }
  get bufAlloc(): number {
    return this.#view.getUint32(36, true)
  }
  get fwdCnt(): number {
    return this.#view.getUint32(40, true)
  }

  /** Addresses a packet from a port of the host to a port of the guest. */
  address(guestCid: number, hostPort: number, guestPort: number, type = TYPE_STREAM): void {
    const view = this.#view
    view.setUint32(0, HOST_CID, true)
    view.setUint32(4, 0, true)
    view.setUint32(8, guestCid, true)
    view.setUint32(12, 0, true)
    view.setUint32(16, hostPort, true)
    view.setUint32(20, guestPort, true)
    view.setUint16(28, type, true)
  }

  fill(op: number, length: number, flags: number, bufAlloc: number, fwdCnt: number): void {
    const view = this.#view
    view.setUint32(24, length, true)
    view.setUint16(30, op, true)
    view.setUint32(32, flags, true)
    view.setUint32(36, bufAlloc, true)
    view.setUint32(40, fwdCnt, true)
  }
}
