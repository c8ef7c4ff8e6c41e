/** A TCP header with its options (RFC 9293, 3.1; RFC 7323; RFC 2018), read from a private copy. */
export const FIN = 1
export const SYN = 2
export const RST = 4
export const PSH = 8
export const ACK = 16
export const TCP_HEADER = 20
export const MAX_SACK = 4

/** The distance from `b` to `a` in sequence space, negative when `a` is before it. */
export const distance = (a: number, b: number): number => (a - b) | 0
export const advance = (sequence: number, by: number): number => (sequence + by) >>> 0

export class Segment {
  sourcePort = 0
  destinationPort = 0
  sequence = 0
  acknowledgment = 0
  flags = 0
  window = 0
  headerLength = 0
  /** Of the payload. */
  length = 0
  /** 0: not given. */
  mss = 0
  /** -1: not given. */
  scale = -1
  sackPermitted = false
  readonly sack = new Uint32Array(MAX_SACK * 2)
  sackCount = 0

  /** Reads the header at `at` of `bytes`, of which `length` bytes belong to the segment; false when malformed. */
  parse(bytes: Uint8Array, view: DataView, at: number, available: number, length: number): boolean {
    if (length < TCP_HEADER || at + TCP_HEADER > available) return false
    this.headerLength = (bytes[at + 12]! >> 4) * 4
    if (this.headerLength < TCP_HEADER || this.headerLength > length || at + this.headerLength > available) return false
    this.sourcePort = view.getUint16(at)
    this.destinationPort = view.getUint16(at + 2)
    this.sequence = view.getUint32(at + 4)
    this.acknowledgment = view.getUint32(at + 8)
    this.flags = bytes[at + 13]! & 0x3f
    this.window = view.getUint16(at + 14)
    this.length = length - this.headerLength
    this.mss = 0
    this.scale = -1
    this.sackPermitted = false
    this.sackCount = 0
    return this.#options(bytes, view, at + TCP_HEADER, at + this.headerLength)
  }

  #options(bytes: Uint8Array, view: DataView, from: number, end: number): boolean {
    let at = from
    while (at < end) {
      const kind = bytes[at]!
      if (kind === 0) return true
      if (kind === 1) {
        at++
        continue
      }
      if (at + 2 > end) return false
      const length = bytes[at + 1]!
      if (length < 2 || at + length > end) return false
      if (kind === 2 && length === 4) this.mss = view.getUint16(at + 2)
      else if (kind === 3 && length === 3) this.scale = Math.min(bytes[at + 2]!, 14)
      else if (kind === 4 && length === 2) this.sackPermitted = true
      else if (kind === 5 && (length - 2) % 8 === 0) this.#sack(view, at + 2, (length - 2) / 8)
      at += length
    }
    return true
  }

  #sack(view: DataView, at: number, count: number): void {
    this.sackCount = Math.min(count, MAX_SACK)
    for (let i = 0; i < this.sackCount * 2; i++) this.sack[i] = view.getUint32(at + i * 4)
  }
}
