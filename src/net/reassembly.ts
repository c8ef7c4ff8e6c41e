/**
 * IP fragments of the guest, put together: RFC 791 and 8200, with the holes of RFC 815 kept as a bitmap of eight-byte
 * blocks. Fragments that overlap end the whole packet (RFC 5722, and for IPv4 alike); few packets at once, each for a
 * limited time, and each of at most 64 KiB.
 */
import { IoVector } from '../host/io-vector.ts'
import { sameAddress } from './addresses.ts'
import { invert, sumBytes } from './checksum.ts'
import type { NetCore } from './core.ts'
import { ETHERNET } from './link.ts'
import { ETHERTYPE_IP6, type Packet } from './packet.ts'

const MAX_PACKETS = 16
const MAX_PAYLOAD = 65_535
const LIFE_MS = 30_000
const BLOCK = 8

class PartialPacket {
  readonly #memory = new Uint8Array(new SharedArrayBuffer(ETHERNET + 40 + MAX_PAYLOAD + 1))
  readonly frame = new IoVector(this.#memory, 4)
  readonly #have = new Uint8Array(MAX_PAYLOAD / BLOCK + 1)
  readonly source = new Uint8Array(16)
  readonly destination = new Uint8Array(16)
  id = 0
  protocol = 0
  headerLength = 0
  used = false
  /** Ended by an overlap: what still comes of it is dropped until its time is over. */
  poisoned = false
  until = 0
  #total = -1
  #received = 0

  begin(packet: Packet, until: number): void {
    this.source.set(packet.source)
    this.destination.set(packet.destination)
    this.id = packet.fragmentId
    this.protocol = packet.protocol
    this.headerLength = packet.etherType === ETHERTYPE_IP6 ? 40 : 20
    this.used = true
    this.poisoned = false
    this.until = until
    this.#total = -1
    this.#received = 0
    this.#have.fill(0)
    // The first twenty or forty bytes of the header; options and extension headers have done their work.
    for (let i = 0; i < ETHERNET + this.headerLength; i++) this.#memory[i] = packet.bytes[i]!
  }

  is(packet: Packet): boolean {
    if (this.id !== packet.fragmentId || this.headerLength !== (packet.etherType === ETHERTYPE_IP6 ? 40 : 20))
      return false
    if (this.headerLength === 20 && this.protocol !== packet.protocol) return false
    return sameAddress(this.source, packet.source) && sameAddress(this.destination, packet.destination)
  }

  /** False: it breaks the rules, and the packet with it. */
  add(packet: Packet, frame: IoVector): boolean {
    const { fragmentOffset: offset, transportLength: length, moreFragments: more } = packet
    const end = offset + length
    if (length === 0 || end > MAX_PAYLOAD - this.headerLength || (more && length % BLOCK !== 0)) return false
    if (this.#total >= 0 && (end > this.#total || (!more && end !== this.#total))) return false
    const [first, last] = [offset / BLOCK, Math.ceil(end / BLOCK)]
    let known = 0
    for (let i = first; i < last; i++) known += this.#have[i]!
    // A fragment that came twice is no harm; half of one is.
    if (known === last - first) return true
    if (known > 0) return false
    if (!more) {
      for (let i = last; i < this.#have.length; i++) if (this.#have[i] === 1) return false
      this.#total = end
    }
    this.#have.fill(1, first, last)
    this.#received += length
    const at = ETHERNET + this.headerLength + offset
    frame.copyTo(this.#memory.subarray(at, at + length), packet.transportAt)
    if (offset === 0) this.protocol = packet.protocol
    return true
  }

  get complete(): boolean {
    return this.#received === this.#total
  }

  /** The whole packet as a frame that is no fragment. */
  finish(): IoVector {
    const bytes = this.#memory
    const view = new DataView(bytes.buffer)
    if (this.headerLength === 20) {
      bytes[ETHERNET] = 0x45
      view.setUint16(ETHERNET + 2, 20 + this.#total)
      view.setUint16(ETHERNET + 6, 0)
      view.setUint16(ETHERNET + 10, 0)
      view.setUint16(ETHERNET + 10, invert(sumBytes(bytes, ETHERNET, 20)))
    } else {
      view.setUint16(ETHERNET + 4, this.#total)
      bytes[ETHERNET + 6] = this.protocol
    }
    this.frame.clear()
    this.frame.push(0, ETHERNET + this.headerLength + this.#total)
    this.used = false
    return this.frame
  }
}

export class Reassembly {
  readonly #core: NetCore
  readonly #partials: PartialPacket[] = []

  constructor(core: NetCore) {
    this.#core = core
  }

  get waiting(): number {
    return this.#partials.filter(({ used }) => used).length
  }

  /** Takes a fragment; the whole packet's frame when it was the last one missing. Valid until the next call. */
  add(packet: Packet, frame: IoVector): IoVector | undefined {
    const { counters } = this.#core
    const partial = this.#find(packet)
    if (partial.poisoned || !partial.add(packet, frame)) {
      counters.fragmentsDropped++
      partial.poisoned = true
      return undefined
    }
    if (!partial.complete) return undefined
    counters.reassembled++
    return partial.finish()
  }

  #find(packet: Packet): PartialPacket {
    const now = this.#core.clock()
    let free: PartialPacket | undefined
    let oldest: PartialPacket | undefined
    for (const partial of this.#partials) {
      if (partial.used && partial.until <= now) this.#drop(partial)
      if (!partial.used) free = partial
      else if (partial.is(packet)) return partial
      else if (oldest === undefined || partial.until < oldest.until) oldest = partial
    }
    if (free === undefined && this.#partials.length < MAX_PACKETS) {
      free = new PartialPacket()
      this.#partials.push(free)
    }
    if (free === undefined) {
      this.#drop(oldest!)
      free = oldest!
    }
    free.begin(packet, now + LIFE_MS)
    return free
  }

  #drop(partial: PartialPacket): void {
    if (!partial.poisoned) this.#core.counters.fragmentsDropped++
    partial.used = false
  }

  close(): void {
    this.#partials.length = 0
  }
}
