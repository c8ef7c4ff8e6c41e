/** A guest made of bytes: sends segments that are written by hand, reads what comes back, and owns the clock. */
import { IoVector } from '../../host/io-vector.ts'
import { PollSet } from '../../host/poll.ts'
import { invert, pseudoSum, sumBytes } from '../checksum.ts'
import type { Plain } from '../control.ts'
import { GATEWAY4, GUEST4, type NetworkDescription } from '../description.ts'
import { type GuestOffloads, MAX_FRAME, type OffloadHeader } from '../link.ts'
import { NetworkStack, type StackOptions } from '../stack.ts'
import { writeHeaders } from '../writer.ts'

export const NO_OFFLOADS: GuestOffloads = { checksum: false, segments4: false, segments6: false }
const MACS = { guest: Uint8Array.from([0x52, 0x55, 10, 0, 2, 2]), gateway: Uint8Array.from([2, 0, 0, 0, 0, 1]) }

export interface TcpFields {
  readonly from?: number
  readonly to?: number
  readonly seq?: number
  readonly ack?: number
  readonly flags?: string
  readonly window?: number
  readonly options?: readonly number[]
  readonly data?: string | Uint8Array
}

export interface TcpSeen {
  readonly from: number
  readonly to: number
  readonly seq: number
  readonly ack: number
  readonly flags: string
  readonly window: number
  readonly options: readonly number[]
  readonly data: string
}

const FLAGS = 'FSRPAU'
const newHeader = (): OffloadHeader => ({
  flags: 0,
  gsoType: 0,
  headerLength: 0,
  gsoSize: 0,
  checksumStart: 0,
  checksumOffset: 0,
})

/** A frame of the guest's with one TCP segment. */
export function tcpFrame(fields: TcpFields): Uint8Array {
  const data =
    typeof fields.data === 'string' ? new TextEncoder().encode(fields.data) : (fields.data ?? new Uint8Array(0))
  const options = [...(fields.options ?? [])]
  while (options.length % 4 !== 0) options.push(1)
  const length = 20 + options.length + data.length
  const bytes = new Uint8Array(34 + length)
  const view = new DataView(bytes.buffer)
  const at = writeHeaders(bytes, view, MACS, GUEST4, GATEWAY4, 6, length, 64)
  view.setUint16(at, fields.from ?? 40_000)
  view.setUint16(at + 2, fields.to ?? 80)
  view.setUint32(at + 4, (fields.seq ?? 0) >>> 0)
  view.setUint32(at + 8, (fields.ack ?? 0) >>> 0)
  bytes[at + 12] = ((20 + options.length) / 4) << 4
  bytes[at + 13] = [...(fields.flags ?? 'A')].reduce((sum, flag) => sum | (1 << FLAGS.indexOf(flag)), 0)
  view.setUint16(at + 14, fields.window ?? 65_535)
  bytes.set(options, at + 20)
  bytes.set(data, at + 20 + options.length)
  view.setUint16(at + 16, invert(sumBytes(bytes, at, length, pseudoSum(GUEST4, GATEWAY4, 6, length))))
  return bytes
}

/** A frame of the guest's with one IPv4 datagram. */
export function udpFrame(
  source: Uint8Array,
  from: number,
  to: number,
  payload: Uint8Array,
  remote = GATEWAY4,
): Uint8Array {
  const length = 8 + payload.length
  const bytes = new Uint8Array(34 + length)
  const view = new DataView(bytes.buffer)
  const at = writeHeaders(bytes, view, MACS, source, remote, 17, length, 64)
  view.setUint16(at, from)
  view.setUint16(at + 2, to)
  view.setUint16(at + 4, length)
  bytes.set(payload, at + 8)
  view.setUint16(at + 6, invert(sumBytes(bytes, at, length, pseudoSum(source, remote, 17, length))))
  return bytes
}

export class RawGuest {
  readonly stack: NetworkStack
  readonly poll = new PollSet()
  now = 1000
  readonly #memory = new Uint8Array(new SharedArrayBuffer(2 * MAX_FRAME))
  readonly #vector = new IoVector(this.#memory)
  readonly #seen: Uint8Array[] = []

  /** `saved`: what an earlier stack's `save` gave. */
  constructor(
    description: NetworkDescription = { policy: { allow: ['host.vitrine.internal'] } },
    saved?: Plain,
    options: StackOptions = {},
  ) {
    this.stack = new NetworkStack(description, { clock: () => this.now, ...options })
    if (saved !== undefined) this.stack.restore(saved)
    this.stack.start(this.poll, () => {}, NO_OFFLOADS)
  }

  frame(bytes: Uint8Array): void {
    this.#memory.set(bytes)
    this.#vector.clear()
    this.#vector.push(0, bytes.length)
    this.stack.send(this.#vector, newHeader())
  }

  tcp(fields: TcpFields): void {
    this.frame(tcpFrame(fields))
  }

  /** All frames that the stack has for the guest now. */
  frames(): Uint8Array[] {
    for (let i = 0; i < 10_000; i++) {
      const length = this.stack.nextLength
      if (length === 0) break
      this.#vector.clear()
      this.#vector.push(MAX_FRAME, length)
      this.stack.receive(this.#vector, newHeader())
      this.#seen.push(this.#memory.slice(MAX_FRAME, MAX_FRAME + length))
    }
    return this.#seen.splice(0)
  }

  /** The TCP segments among them, each with its checksum verified. */
  segments(): TcpSeen[] {
    return this.frames()
      .filter(frame => frame[12] === 8 && frame[13] === 0 && frame[23] === 6)
      .map(frame => readTcp(frame))
  }

  /** Runs the loops until a segment is there that `wanted` likes; all segments up to then. */
  async until(wanted: (segment: TcpSeen) => boolean, limitMs = 5000): Promise<TcpSeen[]> {
    const all: TcpSeen[] = []
    await this.turn(() => {
      all.push(...this.segments())
      return all.some(wanted)
    }, limitMs)
    return all
  }

  async turn(done: () => boolean, limitMs = 5000): Promise<void> {
    const end = Date.now() + limitMs
    while (!done()) {
      if (Date.now() > end) throw new Error('it did not happen in time')
      this.poll.wait(1)
      await new Promise(resolve => setImmediate(resolve))
    }
  }

  /** A few turns, for something that should not happen. */
  async settle(): Promise<void> {
    const end = Date.now() + 60
    await this.turn(() => Date.now() > end)
  }

  /** Lets time pass for the stack's timers. */
  later(ms: number): void {
    this.now += ms
    this.stack.onTimer(this.now)
  }

  close(): void {
    this.stack.close()
    this.poll.close()
  }
}

function readTcp(frame: Uint8Array): TcpSeen {
  const view = new DataView(frame.buffer, frame.byteOffset)
  const total = view.getUint16(16)
  const at = 34
  const length = total - 20
  if (sumBytes(frame, 14, 20) !== 0xffff) throw new Error('a bad IP checksum')
  if (sumBytes(frame, at, length, pseudoSum(GATEWAY4, GUEST4, 6, length)) !== 0xffff)
    throw new Error('a bad TCP checksum')
  const headerLength = (frame[at + 12]! >> 4) * 4
  return {
    from: view.getUint16(at),
    to: view.getUint16(at + 2),
    seq: view.getUint32(at + 4),
    ack: view.getUint32(at + 8),
    flags: [...FLAGS].filter((_, i) => (frame[at + 13]! & (1 << i)) !== 0).join(''),
    window: view.getUint16(at + 14),
    options: [...frame.subarray(at + 20, at + headerLength)],
    data: new TextDecoder('latin1').decode(frame.subarray(at + headerLength, at + length)),
  }
}
