/** Writes frames for the guest: ethernet and IP headers in front of what the protocols put in. One scratch buffer. */
import { isMapped } from './addresses.ts'
import { invert, pseudoSum, sumBytes } from './checksum.ts'
import { ETHERNET, MAX_FRAME } from './link.ts'
import { ETHERTYPE_IP4, ETHERTYPE_IP6 } from './packet.ts'

export const HOP_LIMIT = 64

/** Writes the ethernet and IP headers of a packet whose transport part has `length` bytes; where that part goes. */
export function writeHeaders(
  bytes: Uint8Array,
  view: DataView,
  macs: { readonly gateway: Uint8Array; readonly guest: Uint8Array },
  source: Uint8Array,
  destination: Uint8Array,
  protocol: number,
  length: number,
  hopLimit: number,
): number {
  for (let i = 0; i < 6; i++) {
    bytes[i] = macs.guest[i]!
    bytes[6 + i] = macs.gateway[i]!
  }
  if (!isMapped(source)) {
    view.setUint16(12, ETHERTYPE_IP6)
    view.setUint32(ETHERNET, 0x6000_0000)
    view.setUint16(ETHERNET + 4, length)
    bytes[ETHERNET + 6] = protocol
    bytes[ETHERNET + 7] = hopLimit
    for (let i = 0; i < 16; i++) {
      bytes[ETHERNET + 8 + i] = source[i]!
      bytes[ETHERNET + 24 + i] = destination[i]!
    }
    return ETHERNET + 40
  }
  view.setUint16(12, ETHERTYPE_IP4)
  view.setUint16(ETHERNET, 0x4500)
  view.setUint16(ETHERNET + 2, 20 + length)
  // No identification: a packet that is never to be fragmented needs none (RFC 6864).
  view.setUint16(ETHERNET + 4, 0)
  view.setUint16(ETHERNET + 6, 0x4000)
  bytes[ETHERNET + 8] = hopLimit
  bytes[ETHERNET + 9] = protocol
  view.setUint16(ETHERNET + 10, 0)
  for (let i = 0; i < 4; i++) {
    bytes[ETHERNET + 12 + i] = source[12 + i]!
    bytes[ETHERNET + 16 + i] = destination[12 + i]!
  }
  view.setUint16(ETHERNET + 10, invert(sumBytes(bytes, ETHERNET, 20)))
  return ETHERNET + 20
}

export class FrameWriter {
  readonly bytes = new Uint8Array(MAX_FRAME + 64)
  readonly view = new DataView(this.bytes.buffer)
  readonly macs = { gateway: new Uint8Array(6), guest: new Uint8Array(6).fill(255) }
  #source: Uint8Array = new Uint8Array(16)
  #destination: Uint8Array = new Uint8Array(16)
  #protocol = 0
  #at = 0
  #length = 0

  /** Where the transport part of a packet starts, for a payload to be put in before its headers are. */
  static transportAt(source: Uint8Array): number {
    return ETHERNET + (isMapped(source) ? 20 : 40)
  }

  begin(source: Uint8Array, destination: Uint8Array, protocol: number, length: number, hopLimit = HOP_LIMIT): number {
    this.#source = source
    this.#destination = destination
    this.#protocol = protocol
    this.#length = length
    this.#at = writeHeaders(this.bytes, this.view, this.macs, source, destination, protocol, length, hopLimit)
    return this.#at
  }

  /** Fills in the checksum `offset` bytes into the transport part; the length of the frame. */
  finish(offset: number, pseudo = true): number {
    const { view } = this
    view.setUint16(this.#at + offset, 0)
    const start = pseudo ? pseudoSum(this.#source, this.#destination, this.#protocol, this.#length) : 0
    const sum = invert(sumBytes(this.bytes, this.#at, this.#length, start))
    // UDP says 0xffff for zero, which means that there is none (RFC 768).
    view.setUint16(this.#at + offset, sum === 0 && this.#protocol === 17 ? 0xffff : sum)
    return this.#at + this.#length
  }
}
