/**
 * The headers of one frame from the guest, copied out of guest memory before they are looked at: the guest may change
 * its memory at any time, and nothing is believed twice.
 */
import type { IoVector } from '../host/io-vector.ts'
import { sumBytes } from './checksum.ts'
import type { NetCounters } from './counters.ts'
import { ETHERNET } from './link.ts'

export const ETHERTYPE_IP4 = 0x0800
export const ETHERTYPE_ARP = 0x0806
export const ETHERTYPE_IP6 = 0x86dd
export const PROTOCOL_ICMP = 1
export const PROTOCOL_TCP = 6
export const PROTOCOL_UDP = 17
export const PROTOCOL_ICMP6 = 58
/** All the headers that are looked at fit in this many bytes, or the frame is dropped. */
const HEAD = 256
const MAX_EXTENSIONS = 8

export class Packet {
  readonly bytes = new Uint8Array(HEAD)
  readonly view = new DataView(this.bytes.buffer)
  /** How many bytes of the frame are in `bytes`. */
  headLength = 0
  frameLength = 0
  etherType = 0
  protocol = 0
  hopLimit = 0
  readonly source = new Uint8Array(16)
  readonly destination = new Uint8Array(16)
  /** Where the transport header starts in the frame, and how long it is with its payload. */
  transportAt = 0
  transportLength = 0
  /** A piece of a packet: what follows is where it belongs; `protocol` is that of the whole. */
  isFragment = false
  fragmentId = 0
  fragmentOffset = 0
  moreFragments = false

  /** False: dropped and counted. ARP frames are not looked into further. */
  parse(frame: IoVector, counters: NetCounters): boolean {
    this.frameLength = frame.byteLength
    this.headLength = Math.min(HEAD, frame.byteLength)
    copyHead(frame, this.bytes, this.headLength)
    if (this.headLength < ETHERNET) {
      counters.malformed++
      return false
    }
    this.etherType = this.view.getUint16(12)
    this.isFragment = false
    switch (this.etherType) {
      case ETHERTYPE_IP4:
        return this.#parse4(counters)
      case ETHERTYPE_IP6:
        return this.#parse6(counters)
      case ETHERTYPE_ARP:
        return true
      default:
        counters.unknown++
        return false
    }
  }

  /** RFC 791. */
  #parse4(counters: NetCounters): boolean {
    const { view, bytes } = this
    if (this.headLength < ETHERNET + 20) return malformed(counters)
    const headerLength = (bytes[ETHERNET]! & 15) * 4
    const total = view.getUint16(ETHERNET + 2)
    if (bytes[ETHERNET]! >> 4 !== 4 || headerLength < 20 || total < headerLength) return malformed(counters)
    if (ETHERNET + total > this.frameLength || ETHERNET + headerLength > this.headLength) return malformed(counters)
    if (sumBytes(bytes, ETHERNET, headerLength) !== 0xffff) {
      counters.badChecksum++
      return false
    }
    const fragment = view.getUint16(ETHERNET + 6)
    // More fragments, or not the first.
    if ((fragment & 0x3fff) !== 0) {
      counters.fragments++
      this.isFragment = true
      this.fragmentId = view.getUint16(ETHERNET + 4)
      this.fragmentOffset = (fragment & 0x1fff) * 8
      this.moreFragments = (fragment & 0x2000) !== 0
    }
    this.hopLimit = bytes[ETHERNET + 8]!
    this.protocol = bytes[ETHERNET + 9]!
    mapped(bytes, ETHERNET + 12, this.source)
    mapped(bytes, ETHERNET + 16, this.destination)
    this.transportAt = ETHERNET + headerLength
    this.transportLength = total - headerLength
    return true
  }

  /** RFC 8200, with its extension headers. */
  #parse6(counters: NetCounters): boolean {
    const { view, bytes } = this
    if (this.headLength < ETHERNET + 40 || bytes[ETHERNET]! >> 4 !== 6) return malformed(counters)
    const end = ETHERNET + 40 + view.getUint16(ETHERNET + 4)
    if (end > this.frameLength) return malformed(counters)
    this.hopLimit = bytes[ETHERNET + 7]!
    for (let i = 0; i < 16; i++) {
      this.source[i] = bytes[ETHERNET + 8 + i]!
      this.destination[i] = bytes[ETHERNET + 24 + i]!
    }
    let next = bytes[ETHERNET + 6]!
    let at = ETHERNET + 40
    for (let i = 0; isExtension(next); i++) {
      if (i === MAX_EXTENSIONS || at + 8 > Math.min(end, this.headLength)) return malformed(counters)
      // A fragment that is the whole packet (RFC 6946) is one only in name.
      if (next === 44 && (view.getUint16(at + 2) & 0xfff9) !== 0) {
        counters.fragments++
        this.isFragment = true
        this.fragmentId = view.getUint32(at + 4)
        this.fragmentOffset = view.getUint16(at + 2) & 0xfff8
        this.moreFragments = (view.getUint16(at + 2) & 1) !== 0
        // Of what follows only the first fragment knows the meaning.
        next = bytes[at]!
        at += 8
        break
      }
      const length = next === 44 ? 8 : (bytes[at + 1]! + 1) * 8
      next = bytes[at]!
      at += length
    }
    if (at > end || at > this.headLength) return malformed(counters)
    this.protocol = next
    this.transportAt = at
    this.transportLength = end - at
    return true
  }
}

/** Hop-by-hop, routing, fragment, destination options. */
const isExtension = (header: number): boolean => header === 0 || header === 43 || header === 44 || header === 60

function malformed(counters: NetCounters): false {
  counters.malformed++
  return false
}

function mapped(bytes: Uint8Array, at: number, into: Uint8Array): void {
  for (let i = 0; i < 10; i++) into[i] = 0
  into[10] = 255
  into[11] = 255
  for (let i = 0; i < 4; i++) into[12 + i] = bytes[at + i]!
}

/** Copies without making views, for the usual case that the first segment has it all. */
function copyHead(frame: IoVector, into: Uint8Array, length: number): void {
  if (frame.count > 0 && frame.lengths[0]! >= length) {
    const from = frame.offsets[0]!
    for (let i = 0; i < length; i++) into[i] = frame.memory[from + i]!
    return
  }
  frame.copyTo(into.subarray(0, length))
}
