/** Records frames in the pcap format (draft-ietf-opsawg-pcap), which tshark and tcpdump read. */
import { closeSync, openSync, writeSync } from 'node:fs'

const MAGIC_MICROSECONDS = 0xa1b2_c3d4
const LINKTYPE_ETHERNET = 1
const SNAP = 0x4_0000

export class PcapWriter {
  readonly #fd: number
  readonly #header = new Uint8Array(24)
  readonly #view = new DataView(this.#header.buffer)

  constructor(path: string) {
    this.#fd = openSync(path, 'w', 0o600)
    this.#view.setUint32(0, MAGIC_MICROSECONDS, true)
    this.#view.setUint32(4, 0x0004_0002, true)
    this.#view.setUint32(16, SNAP, true)
    this.#view.setUint32(20, LINKTYPE_ETHERNET, true)
    writeSync(this.#fd, this.#header)
  }

  /** One frame, now. */
  record(frame: Uint8Array): void {
    const now = Date.now()
    this.#view.setUint32(0, Math.floor(now / 1000), true)
    this.#view.setUint32(4, (now % 1000) * 1000, true)
    this.#view.setUint32(8, frame.length, true)
    this.#view.setUint32(12, frame.length, true)
    writeSync(this.#fd, this.#header, 0, 16)
    writeSync(this.#fd, frame)
  }

  close(): void {
    closeSync(this.#fd)
  }
}
