/** The header in front of every frame, read from the guest with suspicion and written for it: VIRTIO 1.2, 5.1.6. */
import type { IoVector } from '../../host/io-vector.ts'
import { NET_HEADER } from './config.ts'
import { FLAG_NEEDS_CSUM, type FrameHeader, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6 } from './link.ts'

export class NetHeader implements FrameHeader {
  flags = 0
  gsoType = 0
  headerLength = 0
  gsoSize = 0
  checksumStart = 0
  checksumOffset = 0
  readonly #bytes = new Uint8Array(NET_HEADER)
  readonly #view = new DataView(this.#bytes.buffer)

  clear(): void {
    this.flags = 0
    this.gsoType = GSO_NONE
    this.headerLength = 0
    this.gsoSize = 0
    this.checksumStart = 0
    this.checksumOffset = 0
  }

  /** Copies it from the start of a list that has at least NET_HEADER bytes. */
  load(list: IoVector): void {
    if (list.lengths[0]! < NET_HEADER) list.copyTo(this.#bytes)
    else for (let i = 0; i < NET_HEADER; i++) this.#bytes[i] = list.memory[list.offsets[0]! + i]!
    this.flags = this.#bytes[0]!
    this.gsoType = this.#bytes[1]!
    this.headerLength = this.#view.getUint16(2, true)
    this.gsoSize = this.#view.getUint16(4, true)
    this.checksumStart = this.#view.getUint16(6, true)
    this.checksumOffset = this.#view.getUint16(8, true)
  }

  store(list: IoVector, buffers: number): void {
    this.#bytes[0] = this.flags
    this.#bytes[1] = this.gsoType
    this.#view.setUint16(2, this.headerLength, true)
    this.#view.setUint16(4, this.gsoSize, true)
    this.#view.setUint16(6, this.checksumStart, true)
    this.#view.setUint16(8, this.checksumOffset, true)
    this.#view.setUint16(10, buffers, true)
    if (list.lengths[0]! < NET_HEADER) list.copyFrom(this.#bytes)
    else for (let i = 0; i < NET_HEADER; i++) list.memory[list.offsets[0]! + i] = this.#bytes[i]!
  }

  /** Whether what it asks for makes sense for a frame of `length` bytes, with what was negotiated. */
  plausible(length: number, checksum: boolean, segmentation4: boolean, segmentation6: boolean): boolean {
    const needsChecksum = (this.flags & FLAG_NEEDS_CSUM) !== 0
    if (needsChecksum && (!checksum || this.checksumStart + this.checksumOffset + 2 > length)) return false
    const type = this.gsoType & ~GSO_ECN
    if (type === GSO_NONE) return true
    if (!needsChecksum || this.gsoSize === 0 || this.headerLength > length) return false
    return (type === GSO_TCPV4 && segmentation4) || (type === GSO_TCPV6 && segmentation6)
  }
}
