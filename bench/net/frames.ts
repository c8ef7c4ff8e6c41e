/**
 * Frames through the stack without any guest: a client made of bytes that sends and takes large segments, as a card with
 * offloads does, on one side; a program that discards or produces bytes on the other. Beside it: copying the same bytes in memory.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { IoVector } from '../../src/host/io-vector.ts'
import { PollSet } from '../../src/host/poll.ts'
import { GATEWAY4, GUEST4 } from '../../src/net/description.ts'
import { ALL_OFFLOADS, GSO_TCPV4, MAX_FRAME, NEEDS_CHECKSUM, type OffloadHeader } from '../../src/net/link.ts'
import { NetworkStack } from '../../src/net/stack.ts'
import { writeHeaders } from '../../src/net/writer.ts'
import type { Metric, Sample } from '../harness/benchmark.ts'

const MACS = { guest: Uint8Array.from([0x52, 0x55, 10, 0, 2, 2]), gateway: Uint8Array.from([2, 0, 0, 0, 0, 1]) }
const HEADERS = 14 + 20 + 20
const MSS = 1460
const SEGMENT = 44 * MSS
const UP_BYTES = 512 << 20
const DOWN_BYTES = 512 << 20
const LIMIT_MS = 60_000
const [SYN, ACK] = [2, 16]
const PORTS = { sink: 15_301, source: 15_302 }

export const FRAME_METRICS: readonly Metric[] = [
  { name: 'frames: up, 64 KiB', unit: 'GB/s', better: 'higher' },
  { name: 'frames: down, 64 KiB', unit: 'GB/s', better: 'higher' },
]

/** The guest's end of one connection. */
class FrameClient {
  readonly #stack = new NetworkStack({ policy: { allow: ['host.vitrine.internal'] } })
  readonly #poll = new PollSet()
  readonly #memory = new Uint8Array(new SharedArrayBuffer(4 * MAX_FRAME))
  readonly #view = new DataView(this.#memory.buffer)
  readonly #out = new IoVector(this.#memory)
  readonly #in = new IoVector(this.#memory)
  readonly #header: OffloadHeader = {
    ...{ flags: NEEDS_CHECKSUM, gsoType: 0, headerLength: HEADERS },
    ...{ gsoSize: MSS, checksumStart: 34, checksumOffset: 16 },
  }
  readonly #answer: OffloadHeader = { ...this.#header }
  readonly #port: number
  #sequence = 1
  #acknowledged = 0
  #window = 0
  #received = 0
  /** Data that came since the last acknowledgment of ours. */
  #fresh = 0

  constructor(port: number) {
    this.#port = port
    this.#stack.start(this.#poll, () => {}, ALL_OFFLOADS)
  }

  #send(flags: number, length: number): void {
    const at = writeHeaders(this.#memory, this.#view, MACS, GUEST4, GATEWAY4, 6, 20 + length, 64)
    const syn = (flags & SYN) !== 0
    this.#view.setUint16(at, 40_000)
    this.#view.setUint16(at + 2, this.#port)
    this.#view.setUint32(at + 4, this.#sequence >>> 0)
    this.#view.setUint32(at + 8, this.#received >>> 0)
    this.#memory[at + 12] = syn ? 0x70 : 0x50
    this.#memory[at + 13] = flags
    this.#view.setUint16(at + 14, 65_535)
    if (syn) this.#memory.set([2, 4, MSS >> 8, MSS & 255, 3, 3, 7, 0], at + 20)
    this.#out.clear()
    this.#out.push(0, HEADERS + (syn ? 8 : 0) + length)
    this.#header.gsoType = length > MSS ? GSO_TCPV4 : 0
    if (syn) {
      this.#view.setUint16(16, 48)
      this.#header.flags = NEEDS_CHECKSUM
      // The IP header was made for no options.
      writeHeaders(this.#memory, this.#view, MACS, GUEST4, GATEWAY4, 6, 28, 64)
    }
    this.#stack.send(this.#out, this.#header)
    this.#sequence += length + (syn ? 1 : 0)
    this.#fresh = 0
  }

  /** Takes all frames that are there. */
  #take(): void {
    for (let length = this.#stack.nextLength; length > 0; length = this.#stack.nextLength) {
      const at = 2 * MAX_FRAME
      this.#in.clear()
      // As a driver with merged buffers gives it: pieces of a page and a half.
      for (let done = 0; done < length; done += 1536) this.#in.push(at + done, Math.min(1536, length - done))
      this.#stack.receive(this.#in, this.#answer)
      const tcp = at + 34
      const data = length - 34 - (this.#memory[tcp + 12]! >> 4) * 4
      const flags = this.#memory[tcp + 13]!
      this.#acknowledged = this.#view.getUint32(tcp + 8)
      this.#window = this.#view.getUint16(tcp + 14) << ((flags & SYN) !== 0 ? 0 : 7)
      if ((flags & SYN) !== 0) this.#received = this.#view.getUint32(tcp + 4) + 1
      else {
        this.#received = (this.#received + data) >>> 0
        this.#fresh += data
      }
      if (this.#fresh >= 2 * SEGMENT) this.#send(ACK, 0)
    }
    if (this.#fresh > 0) this.#send(ACK, 0)
  }

  #until(done: () => boolean): void {
    const end = performance.now() + LIMIT_MS
    while (!done()) {
      if (performance.now() > end) throw new Error('the stack did not move the bytes in time')
      this.#take()
      if (!done() && this.#poll.wait(0) === 0) this.#poll.wait(1)
    }
  }

  connect(): void {
    this.#send(SYN, 0)
    this.#until(() => this.#acknowledged === 2)
    this.#send(ACK, 0)
  }

  up(bytes: number): void {
    const begin = this.#sequence
    while (this.#sequence - begin < bytes) {
      const inFlight = (this.#sequence - this.#acknowledged) >>> 0
      if (inFlight + SEGMENT <= this.#window) {
        this.#send(ACK, SEGMENT)
        this.#take()
      } else this.#until(() => ((this.#sequence - this.#acknowledged) >>> 0) + SEGMENT <= this.#window)
    }
    this.#until(() => this.#acknowledged === this.#sequence >>> 0)
  }

  down(bytes: number): void {
    const begin = this.#received
    this.#until(() => (this.#received - begin) >>> 0 >= bytes)
  }

  close(): void {
    this.#stack.close()
  }
}

/** One that discards what it gets and one that sends zeros, each for any number of connections, one after the other. */
export async function startFramePeers(): Promise<ChildProcess[]> {
  const listen = (port: number): string => `TCP-LISTEN:${port},bind=127.0.0.1,reuseaddr,fork`
  const peers = [
    spawn('socat', ['-u', '-b', '1048576', listen(PORTS.sink), 'OPEN:/dev/null'], { stdio: 'ignore' }),
    spawn('socat', ['-U', '-b', '1048576', listen(PORTS.source), 'OPEN:/dev/zero'], { stdio: 'ignore' }),
  ]
  await new Promise(resolve => setTimeout(resolve, 500))
  return peers
}

function timed(work: () => void): number {
  const begin = performance.now()
  work()
  return (performance.now() - begin) / 1000
}

export function sampleFrames(): Sample {
  const sample: Record<string, number> = {}
  for (const [name, port, bytes] of [
    [FRAME_METRICS[0]!.name, PORTS.sink, UP_BYTES],
    [FRAME_METRICS[1]!.name, PORTS.source, DOWN_BYTES],
  ] as const) {
    const client = new FrameClient(port)
    try {
      client.connect()
      const seconds = timed(() => (port === PORTS.sink ? client.up(bytes) : client.down(bytes)))
      sample[name] = bytes / seconds / 1e9
    } finally {
      client.close()
    }
  }
  return sample
}

/** The same bytes, from one place in memory to another, in pieces of the same size. */
export function sampleMemcpy(): Sample {
  const memory = new Uint8Array(new SharedArrayBuffer(64 << 20))
  const half = memory.length / 2
  const seconds = timed(() => {
    for (let done = 0, at = 0; done < UP_BYTES; done += SEGMENT, at = (at + SEGMENT) % (half - SEGMENT)) {
      memory.copyWithin(half + at, at, at + SEGMENT)
    }
  })
  return Object.fromEntries(FRAME_METRICS.map(({ name }) => [name, UP_BYTES / seconds / 1e9]))
}
