/** A guest's vsock driver, as far as tests need one: packets out, packets in, and credit kept by hand. */
import { HEADER_SIZE, OP_RW, PacketHeader } from '../vsock/packet.ts'
import type { DeviceBench } from './bench.ts'
import type { Segment } from './driver.ts'

export interface GuestPacket {
  readonly op: number
  /** Ports as the packet has them: from the host. */
  readonly srcPort: number
  readonly dstPort: number
  readonly flags: number
  readonly bufAlloc: number
  readonly fwdCnt: number
  readonly data: Uint8Array
}

export interface PacketFields {
  readonly op: number
  readonly srcPort: number
  readonly dstPort: number
  readonly data?: Uint8Array
  readonly flags?: number
  readonly bufAlloc?: number
  readonly fwdCnt?: number
  readonly srcCid?: number
  readonly dstCid?: number
  readonly type?: number
  readonly length?: number
}

export const GUEST_CID = 42

export function packetBytes(fields: PacketFields): Uint8Array {
  const header = new Uint8Array(HEADER_SIZE)
  const view = new DataView(header.buffer)
  view.setBigUint64(0, BigInt(fields.srcCid ?? GUEST_CID), true)
  view.setBigUint64(8, BigInt(fields.dstCid ?? 2), true)
  view.setUint32(16, fields.srcPort, true)
  view.setUint32(20, fields.dstPort, true)
  view.setUint32(24, fields.length ?? fields.data?.length ?? 0, true)
  view.setUint16(28, fields.type ?? 1, true)
  view.setUint16(30, fields.op, true)
  view.setUint32(32, fields.flags ?? 0, true)
  view.setUint32(36, fields.bufAlloc ?? 1 << 18, true)
  view.setUint32(40, fields.fwdCnt ?? 0, true)
  return header
}

export class VsockDriver {
  readonly bench: DeviceBench
  readonly received: GuestPacket[] = []
  readonly #buffers = new Map<number, Segment>()
  readonly #header = new PacketHeader()
  readonly #bufferSize: number
  #tx: Segment | undefined

  /** Starts the device and gives it `buffers` receive buffers. */
  constructor(bench: DeviceBench, buffers = 32, bufferSize = 4096 + HEADER_SIZE) {
    this.bench = bench
    this.#bufferSize = bufferSize
    bench.driver.start(3)
    this.supply(buffers)
  }

  /** More receive buffers. */
  supply(count: number): void {
    const [rx] = this.bench.driver.queues
    for (let i = 0; i < count; i++) {
      const space = this.bench.driver.space(this.#bufferSize)
      this.#buffers.set(rx!.add([space]), space)
    }
    rx!.kick()
  }

  send(fields: PacketFields): void {
    const { driver } = this.bench
    const tx = driver.queues[1]!
    const parts = [driver.buffer(packetBytes(fields))]
    if (fields.data !== undefined && fields.data.length > 0) {
      // One data buffer, used again: everything is done when `run` has returned.
      this.#tx ??= driver.space(65536)
      driver.memory.slice(this.#tx.address, fields.data.length).set(fields.data)
      parts.push({ address: this.#tx.address, length: fields.data.length })
    }
    tx.add(parts)
    tx.kick()
    this.bench.run()
    tx.takeUsed()
    this.collect()
  }

  /** Takes what has arrived; gives the buffers back if `recycle`. */
  collect(recycle = true): void {
    const { driver } = this.bench
    const rx = driver.queues[0]!
    const free: Segment[] = []
    for (const used of rx.takeUsed()) {
      const space = this.#buffers.get(used.id)!
      this.#buffers.delete(used.id)
      const bytes = driver.bytes({ address: space.address, length: used.length })
      this.#header.bytes.set(bytes.subarray(0, HEADER_SIZE))
      const { op, srcPort, dstPort, flags, bufAlloc, fwdCnt, length } = this.#header
      this.received.push({ op, srcPort, dstPort, flags, bufAlloc, fwdCnt, data: bytes.slice(HEADER_SIZE) })
      if (op === OP_RW && length !== used.length - HEADER_SIZE)
        throw new Error('a packet of another length than its data')
      if (recycle) free.push(space)
    }
    for (const space of free) this.#buffers.set(rx.add([space]), space)
    rx.kick()
  }

  /** Lets the device and Node's own loop run until a packet of this kind has come; takes it. */
  async expect(op: number, timeoutMs = 5000): Promise<GuestPacket> {
    const end = Date.now() + timeoutMs
    for (;;) {
      this.bench.run()
      this.collect()
      const at = this.received.findIndex(packet => packet.op === op)
      if (at >= 0) return this.received.splice(at, 1)[0]!
      if (Date.now() > end) throw new Error(`no packet of kind ${op} came; there are ${this.received.map(p => p.op)}`)
      await new Promise(resolve => setImmediate(resolve))
    }
  }

  /** Lets both sides run for a while. */
  async settle(rounds = 20): Promise<void> {
    for (let i = 0; i < rounds; i++) {
      this.bench.run()
      this.collect()
      await new Promise(resolve => setImmediate(resolve))
    }
  }
}
