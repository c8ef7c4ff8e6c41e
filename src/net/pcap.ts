/**
 * Records frames in the pcap format (draft-ietf-opsawg-pcap), which tshark and tcpdump read. Frames are gathered in memory
 * and written many at a time; a disk that is full or gone ends the recording, never the network.
 */
import { closeSync, openSync, writeSync } from 'node:fs'
import type { IoVector } from '../host/io-vector.ts'
import { NetError } from './errors.ts'

const MAGIC_MICROSECONDS = 0xa1b2_c3d4
const LINKTYPE_ETHERNET = 1
const SNAP = 0x4_0000
const RECORD_HEADER = 16
const BUFFER = 1 << 20
/** Somebody may be watching the file grow. */
export const FLUSH_MS = 200

export class PcapWriter {
  readonly path: string
  readonly #fd: number
  readonly #buffer = new Uint8Array(BUFFER)
  readonly #view = new DataView(this.#buffer.buffer)
  #used = 0
  #failed = false
  frames = 0
  /** Frames that could not be written. */
  lost = 0
  #unwritten = 0

  constructor(path: string) {
    this.path = path
    try {
      this.#fd = openSync(path, 'w', 0o600)
    } catch (error) {
      throw new NetError('RECORDING', `packets cannot be recorded in ${path}: ${(error as Error).message}`, {
        cause: error,
      })
    }
    this.#view.setUint32(0, MAGIC_MICROSECONDS, true)
    this.#view.setUint32(4, 0x0004_0002, true)
    this.#view.setUint32(16, SNAP, true)
    this.#view.setUint32(20, LINKTYPE_ETHERNET, true)
    this.#used = 24
    this.flush()
  }

  /** Whether something waits to be written. */
  get waiting(): boolean {
    return this.#used > 0
  }

  /** One frame, now. */
  record(frame: IoVector): void {
    const length = frame.byteLength
    if (this.#used + RECORD_HEADER + length > BUFFER) this.flush()
    if (this.#failed || RECORD_HEADER + length > BUFFER) {
      this.lost++
      return
    }
    const now = performance.timeOrigin + performance.now()
    const at = this.#used
    this.#view.setUint32(at, Math.floor(now / 1000), true)
    this.#view.setUint32(at + 4, Math.floor((now % 1000) * 1000), true)
    this.#view.setUint32(at + 8, length, true)
    this.#view.setUint32(at + 12, length, true)
    frame.copyTo(this.#buffer.subarray(at + RECORD_HEADER, at + RECORD_HEADER + length))
    this.#used = at + RECORD_HEADER + length
    this.frames++
    this.#unwritten++
  }

  flush(): void {
    try {
      for (let at = 0; at < this.#used && !this.#failed; ) at += writeSync(this.#fd, this.#buffer, at, this.#used - at)
    } catch {
      this.#failed = true
      this.lost += this.#unwritten
    }
    this.#used = 0
    this.#unwritten = 0
  }

  close(): void {
    this.flush()
    closeSync(this.#fd)
  }
}
