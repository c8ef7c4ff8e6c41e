import { createHash } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { createConnection, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Duplex } from 'node:stream'
import { afterAll, afterEach, beforeEach, describe, expect, it } from 'vitest'
import { STATUS_NEEDS_RESET } from '../mmio/registers.ts'
import { restoreTransport, saveTransport } from '../mmio/state.ts'
import { DeviceBench } from '../testing/bench.ts'
import { GUEST_CID, packetBytes, VsockDriver } from '../testing/vsock-driver.ts'
import { BUFFER_BYTES } from './config.ts'
import { Connection } from './connection.ts'
import { VsockDevice } from './device.ts'
import { connectToGuest, listenForGuest } from './host-api.ts'
import {
  NO_RECEIVE,
  NO_SEND,
  OP_CREDIT_REQUEST,
  OP_CREDIT_UPDATE,
  OP_REQUEST,
  OP_RESPONSE,
  OP_RST,
  OP_RW,
  OP_SHUTDOWN,
} from './packet.ts'
import { ConnectionTable } from './table.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-vsock-'))
const path = join(folder, 'v.sock')
afterAll(() => rmSync(folder, { recursive: true }))

let bench: DeviceBench<VsockDevice>
let guest: VsockDriver
let servers: Server[] = []
let streams: Duplex[] = []

beforeEach(() => {
  bench = new DeviceBench(new VsockDevice({ cid: GUEST_CID, path }), { sizeMib: 64 })
  guest = new VsockDriver(bench)
})
afterEach(() => {
  for (const stream of streams) stream.destroy()
  for (const server of servers) server.close()
  servers = []
  streams = []
  bench.close()
  expect(bench.errors).toEqual([])
})

/** What the long transfer carries each way: 1024 for the long way. */
const MEBIBYTES = Number(process.env.VITRINE_VSOCK_MIB ?? 8)

const ports = { srcPort: 1000, dstPort: 52 }

/** The host listens on 52; the guest connects from 1000. The host's end. */
async function guestConnects(): Promise<Duplex> {
  const accepted: Duplex[] = []
  servers.push(await listenForGuest(path, 52, stream => void accepted.push(stream)))
  guest.send({ op: OP_REQUEST, ...ports })
  await guest.expect(OP_RESPONSE)
  while (accepted.length === 0) await guest.settle(1)
  streams.push(accepted[0]!)
  accepted[0]!.on('error', () => {})
  return accepted[0]!
}

/** The guest listens on 77; the host connects. */
async function hostConnects(): Promise<{ stream: Duplex; hostPort: number }> {
  const connecting = connectToGuest(path, 77)
  const request = await guest.expect(OP_REQUEST)
  expect(request).toMatchObject({ dstPort: 77, bufAlloc: BUFFER_BYTES })
  guest.send({ op: OP_RESPONSE, srcPort: 77, dstPort: request.srcPort })
  const stream = await connecting
  streams.push(stream)
  stream.on('error', () => {})
  return { stream, hostPort: request.srcPort }
}

describe('vsock connections', () => {
  it('says its CID', () => {
    expect([bench.driver.config(0), bench.driver.config(4)]).toEqual([GUEST_CID, 0])
  })

  it('carries bytes from the guest to a listener of the host and back', async () => {
    const stream = await guestConnects()
    const heard: Buffer[] = []
    stream.on('data', (chunk: Buffer) => heard.push(chunk))
    guest.send({ op: OP_RW, ...ports, data: Buffer.from('hello from the guest') })
    stream.write('and back')
    const packet = await guest.expect(OP_RW)
    expect(Buffer.from(packet.data).toString()).toBe('and back')
    expect(packet).toMatchObject({ srcPort: 52, dstPort: 1000, fwdCnt: 20 })
    await guest.settle()
    expect(Buffer.concat(heard).toString()).toBe('hello from the guest')
  })

  it('connects from the host to a port of the guest, with data sent along at once', async () => {
    const raw = createConnection({ path, allowHalfOpen: true })
    raw.on('error', () => {})
    streams.push(raw)
    const answers: Buffer[] = []
    raw.on('data', (chunk: Buffer) => answers.push(chunk))
    raw.write('CONNECT 77\nearly')
    const request = await guest.expect(OP_REQUEST)
    guest.send({ op: OP_RESPONSE, srcPort: 77, dstPort: request.srcPort })
    const packet = await guest.expect(OP_RW)
    expect(Buffer.from(packet.data).toString()).toBe('early')
    await guest.settle()
    expect(Buffer.concat(answers).toString()).toBe(`OK ${request.srcPort}\n`)
  })

  it('refuses where nobody listens, in both directions', async () => {
    guest.send({ op: OP_REQUEST, srcPort: 5, dstPort: 999 })
    expect(await guest.expect(OP_RST)).toMatchObject({ srcPort: 999, dstPort: 5 })
    const connecting = connectToGuest(path, 78)
    const request = await guest.expect(OP_REQUEST)
    guest.send({ op: OP_RST, srcPort: 78, dstPort: request.srcPort })
    await expect(connecting).rejects.toMatchObject({ code: 'NOT_CONNECTED' })
  })

  it.each(['nonsense\n', 'CONNECT x\n', 'CONNECT 99999999999\n', 'C'.repeat(100)])('hangs up on %j', async line => {
    const raw = createConnection({ path })
    streams.push(raw)
    let closed = false
    raw.on('error', () => {})
    raw.on('close', () => {
      closed = true
    })
    raw.write(line)
    for (let i = 0; i < 200 && !closed; i++) await guest.settle(1)
    expect(closed).toBe(true)
    expect(guest.received).toEqual([])
  })

  it('gives up on a guest that does not answer, and on a process that names no port', async () => {
    bench.close()
    bench = new DeviceBench(new VsockDevice({ cid: GUEST_CID, path, connectTimeoutMs: 150 }), { sizeMib: 64 })
    guest = new VsockDriver(bench)
    const silent = createConnection(path)
    const ended = new Promise<void>(resolve => silent.on('close', () => resolve()))
    const refused = expect(connectToGuest(path, 77)).rejects.toThrow(/did not answer/)
    const request = await guest.expect(OP_REQUEST)
    expect(await guest.expect(OP_RST)).toMatchObject({ srcPort: request.srcPort, dstPort: 77 })
    await refused
    while (!silent.destroyed) await guest.settle(1)
    await ended
    expect(bench.metrics).toMatchObject({ timedOut: 1, connections: 0 })
    // An answer that comes too late is to nobody; and others are served as before.
    guest.send({ op: OP_RESPONSE, srcPort: 77, dstPort: request.srcPort })
    await guest.expect(OP_RST)
    const { stream, hostPort } = await hostConnects()
    // Connected is connected: the time is not running any more.
    for (let i = 0; i < 20; i++) await guest.settle(10)
    stream.write('hello')
    expect(await guest.expect(OP_RW)).toMatchObject({ dstPort: 77, srcPort: hostPort })
  })

  it('gives up on a device whose guest has no driver', async () => {
    bench.driver.reset()
    await expect(connectToGuest(path, 77, { timeoutMs: 100 })).rejects.toThrow(/no answer in 0.1 s/)
  })

  it('never sends more than the guest has room for', async () => {
    const { stream, hostPort } = await hostConnects()
    guest.send({ op: OP_CREDIT_UPDATE, srcPort: 77, dstPort: hostPort, bufAlloc: 10_000, fwdCnt: 0 })
    stream.write(new Uint8Array(50_000).fill(7))
    await guest.settle(50)
    const count = (): number => guest.received.filter(p => p.op === OP_RW).reduce((sum, p) => sum + p.data.length, 0)
    expect(count()).toBe(10_000)
    guest.send({ op: OP_CREDIT_UPDATE, srcPort: 77, dstPort: hostPort, bufAlloc: 10_000, fwdCnt: 6000 })
    await guest.settle(50)
    expect(count()).toBe(16_000)
    // A guest that claims to have forwarded what it never got has no credit at all.
    guest.send({ op: OP_CREDIT_UPDATE, srcPort: 77, dstPort: hostPort, bufAlloc: 10_000, fwdCnt: 3_000_000 })
    await guest.settle(50)
    expect(count()).toBe(16_000)
  })

  it('keeps what a stalled reader does not take, up to the credit, then resets a guest that goes on', async () => {
    const stream = await guestConnects()
    stream.pause()
    const chunk = new Uint8Array(16_384).fill(1)
    let sent = 0
    let fwdCnt = 0
    // Within its credit the guest fills the socket and then our buffer.
    for (;;) {
      for (const packet of guest.received.splice(0)) fwdCnt = packet.fwdCnt
      if (sent - fwdCnt + chunk.length > BUFFER_BYTES) {
        guest.send({ op: OP_CREDIT_REQUEST, ...ports })
        fwdCnt = (await guest.expect(OP_CREDIT_UPDATE)).fwdCnt
        if (sent - fwdCnt + chunk.length > BUFFER_BYTES) break
      }
      guest.send({ op: OP_RW, ...ports, data: chunk })
      sent += chunk.length
    }
    expect(bench.metrics.bufferedBytes).toBe(BUFFER_BYTES)
    // The reader goes on: everything arrives, and the buffer is given back.
    let heard = 0
    stream.on('data', (data: Buffer) => {
      heard += data.length
    })
    stream.resume()
    while (heard < sent) await guest.settle(1)
    expect(bench.metrics.bufferedBytes).toBe(0)
    stream.pause()
    for (let i = 0; i < 200 && bench.metrics.connections === 1; i++) guest.send({ op: OP_RW, ...ports, data: chunk })
    await guest.expect(OP_RST)
    expect(bench.metrics).toMatchObject({ bufferedBytes: 0, connections: 0, guestFaults: 0 })
  })

  it('half-closes from the guest', async () => {
    const stream = await guestConnects()
    const heard: Buffer[] = []
    let ended = false
    stream.on('data', (chunk: Buffer) => heard.push(chunk))
    stream.on('end', () => {
      ended = true
    })
    guest.send({ op: OP_RW, ...ports, data: Buffer.from('last words') })
    guest.send({ op: OP_SHUTDOWN, ...ports, flags: NO_SEND })
    while (!ended) await guest.settle(1)
    expect(Buffer.concat(heard).toString()).toBe('last words')
    stream.end('still answering')
    expect(Buffer.from((await guest.expect(OP_RW)).data).toString()).toBe('still answering')
    // Both directions are over: the device says so, and the guest's RST is the end of it.
    let flags = 0
    while (flags !== (NO_SEND | NO_RECEIVE)) flags |= (await guest.expect(OP_SHUTDOWN)).flags
    guest.send({ op: OP_RST, ...ports })
    expect(bench.metrics.connections).toBe(0)
  })

  it('half-closes from the host', async () => {
    const { stream, hostPort } = await hostConnects()
    const heard: Buffer[] = []
    stream.on('data', (chunk: Buffer) => heard.push(chunk))
    stream.end('request')
    expect(Buffer.from((await guest.expect(OP_RW)).data).toString()).toBe('request')
    expect((await guest.expect(OP_SHUTDOWN)).flags).toBe(NO_SEND)
    guest.send({ op: OP_RW, srcPort: 77, dstPort: hostPort, data: Buffer.from('response') })
    guest.send({ op: OP_SHUTDOWN, srcPort: 77, dstPort: hostPort, flags: NO_SEND | NO_RECEIVE })
    await guest.expect(OP_RST)
    await guest.settle()
    expect(Buffer.concat(heard).toString()).toBe('response')
    expect(bench.metrics.connections).toBe(0)
  })

  it('delivers what was sent before a close, however slow the reader', async () => {
    const stream = await guestConnects()
    stream.pause()
    const data = new Uint8Array(60_000)
    let sent = 0
    while (bench.metrics.bufferedBytes === 0) {
      guest.send({ op: OP_RW, ...ports, data: data.fill(sent & 255) })
      sent += data.length
    }
    guest.send({ op: OP_RST, ...ports })
    expect(bench.metrics.connections).toBe(0)
    let heard = 0
    let ended = false
    stream.on('data', (chunk: Buffer) => {
      heard += chunk.length
    })
    stream.on('end', () => {
      ended = true
    })
    stream.resume()
    while (!ended) await guest.settle(1)
    expect(heard).toBe(sent)
    expect(bench.metrics.bufferedBytes).toBe(0)
  })

  it('tells the guest when the host end vanishes', async () => {
    const stream = await guestConnects()
    stream.destroy()
    let flags = 0
    while (flags !== (NO_SEND | NO_RECEIVE)) flags |= (await guest.expect(OP_SHUTDOWN)).flags
    guest.send({ op: OP_RST, ...ports })
    expect(bench.metrics.connections).toBe(0)
  })

  it(
    'carries megabytes both ways, unharmed, while the guest keeps to its credit',
    async () => {
      const { stream, hostPort } = await hostConnects()
      const total = MEBIBYTES * 2 ** 20
      const block = Uint8Array.from({ length: 65536 }, (_, i) => (i * 31 + (i >> 8)) & 255)
      const sums = {
        out: createHash('sha256'),
        host: createHash('sha256'),
        in: createHash('sha256'),
        guest: createHash('sha256'),
      }
      let hostHeard = 0
      stream.on('data', (chunk: Buffer) => {
        sums.host.update(chunk)
        hostHeard += chunk.length
      })
      let written = 0
      const feed = (): void => {
        while (written < total) {
          sums.in.update(block)
          written += block.length
          if (!stream.write(block)) {
            stream.once('drain', feed)
            return
          }
        }
      }
      feed()
      let guestSent = 0
      let guestHeard = 0
      let hostFwd = 0
      while (guestHeard < total || hostHeard < total) {
        await guest.settle(1)
        for (const packet of guest.received.splice(0)) {
          hostFwd = packet.fwdCnt
          if (packet.op !== OP_RW) continue
          sums.guest.update(packet.data)
          guestHeard += packet.data.length
        }
        const credit = { srcPort: 77, dstPort: hostPort, bufAlloc: 1 << 18, fwdCnt: guestHeard }
        if (guestSent < total && BUFFER_BYTES - (guestSent - hostFwd) >= block.length) {
          sums.out.update(block)
          guest.send({ op: OP_RW, ...credit, data: block })
          guestSent += block.length
        } else guest.send({ op: OP_CREDIT_UPDATE, ...credit })
      }
      expect(sums.host.digest('hex')).toBe(sums.out.digest('hex'))
      expect(sums.guest.digest('hex')).toBe(sums.in.digest('hex'))
      expect(bench.metrics).toMatchObject({ bytesToHost: total, bytesToGuest: total, badPackets: 0 })
    },
    30_000 + MEBIBYTES * 1000,
  )

  it('opens and closes a thousand connections and keeps nothing of them', async () => {
    const accepted: Duplex[] = []
    servers.push(
      await listenForGuest(path, 52, stream => {
        accepted.push(stream)
        stream.on('error', () => {})
        stream.on('data', () => {})
        stream.on('end', () => stream.end())
      }),
    )
    for (let i = 0; i < 1000; i++) {
      const own = { srcPort: 2000 + i, dstPort: 52 }
      guest.send({ op: OP_REQUEST, ...own })
      guest.send({ op: OP_RW, ...own, data: Buffer.from([i & 255]) })
      guest.send({ op: OP_SHUTDOWN, ...own, flags: NO_SEND | NO_RECEIVE })
      // Node accepts about one connection a turn.
      await guest.settle(2)
    }
    await guest.settle(50)
    expect(bench.metrics).toMatchObject({ connections: 0, opened: 1000, bufferedBytes: 0, guestFaults: 0 })
    expect(guest.received.filter(packet => packet.op === OP_RST)).toHaveLength(1000)
    expect(accepted).toHaveLength(1000)
  })
})

describe('vsock, with a guest that does not keep to the rules', () => {
  it('ignores packets of another CID, and answers other types and unknown connections with RST', async () => {
    guest.send({ op: OP_RW, ...ports, srcCid: 43 })
    guest.send({ op: OP_RW, ...ports, dstCid: 3 })
    guest.send({ op: OP_RW, ...ports, srcCid: 2 ** 40 })
    expect(guest.received).toEqual([])
    expect(bench.metrics.badPackets).toBe(3)
    guest.send({ op: OP_RW, ...ports, type: 9 })
    guest.send({ op: OP_RW, ...ports })
    guest.send({ op: OP_RST, ...ports })
    await guest.settle()
    expect(guest.received.map(packet => packet.op)).toEqual([OP_RST, OP_RST])
  })

  it('resets a connection whose packet claims more than its buffers hold, or has an unknown operation', async () => {
    await guestConnects()
    guest.send({ op: OP_RW, ...ports, data: new Uint8Array(10), length: 11 })
    await guest.expect(OP_RST)
    guest.send({ op: OP_REQUEST, ...ports })
    await guest.expect(OP_RESPONSE)
    guest.send({ op: 99, ...ports })
    await guest.expect(OP_RST)
    guest.send({ op: OP_REQUEST, ...ports })
    await guest.expect(OP_RESPONSE)
    guest.send({ op: OP_REQUEST, ...ports })
    await guest.expect(OP_RST)
    expect(bench.metrics).toMatchObject({ connections: 0, guestFaults: 0 })
  })

  it('keeps nothing of connections that go before their turn at the receive queue came', () => {
    const table = new ConnectionTable(4)
    const connections = [1, 2, 3].map(port => new Connection(-1, 52, port, 'open'))
    for (const connection of connections) {
      table.add(connection)
      table.enqueue(connection)
    }
    table.remove(connections[1]!)
    expect([table.nextTurn(), table.nextTurn(), table.nextTurn()]).toEqual([connections[0], connections[2], undefined])
    for (const connection of connections) table.enqueue(connection)
    for (const connection of [connections[0]!, connections[2]!]) table.remove(connection)
    expect([table.size, table.nextTurn(), table.hasTurn]).toEqual([0, connections[1], false])
  })

  it('takes a length that is shorter than the buffers as said', async () => {
    const stream = await guestConnects()
    const heard: Buffer[] = []
    stream.on('data', (chunk: Buffer) => heard.push(chunk))
    guest.send({ op: OP_RW, ...ports, data: Buffer.from('all of this'), length: 3 })
    guest.send({ op: OP_RW, ...ports, data: Buffer.from('none'), length: 0 })
    await guest.settle()
    expect(Buffer.concat(heard).toString()).toBe('all')
    expect(bench.metrics).toMatchObject({ connections: 1, badPackets: 0, bytesToHost: 3 })
  })

  it.each([2 ** 31, 2 ** 32 - BUFFER_BYTES, 2 ** 32 - 4096, 2 ** 32 - 45])(
    'resets a connection whose packet of %d bytes is all there, in memory that is given again and again',
    async length => {
      const stream = await guestConnects()
      stream.pause()
      const { driver } = bench
      const tx = driver.queues[1]!
      const block = new Uint8Array(32768)
      // Until the socket is full and the device keeps something: counters that wrap are amid their range then.
      for (let i = 0; i < 64 && bench.metrics.bufferedBytes === 0; i++) {
        guest.send({ op: OP_RW, ...ports, data: block })
      }
      expect(bench.metrics.bufferedBytes).toBe(BUFFER_BYTES)
      const parts = [driver.buffer(packetBytes({ op: OP_RW, ...ports, length }))]
      const most = bench.memory.size - 0x10_0000
      for (let left = length; left > 0; left -= most) parts.push({ address: 0x10_0000, length: Math.min(left, most) })
      tx.add(parts, true)
      tx.ring()
      bench.run()
      await guest.expect(OP_RST)
      expect(bench.metrics).toMatchObject({ connections: 0, bufferedBytes: 0 })
      expect(bench.errors).toEqual([])
    },
  )

  it('needs a reset after a packet without a whole header, and after a receive buffer that holds none', () => {
    const { driver } = bench
    driver.queues[1]!.add([driver.buffer(new Uint8Array(43))])
    driver.queues[1]!.kick()
    bench.run()
    expect(driver.status & STATUS_NEEDS_RESET).toBe(STATUS_NEEDS_RESET)
    const again = new VsockDriver(bench, 1, 43)
    again.send({ op: OP_RW, ...ports })
    expect(driver.status & STATUS_NEEDS_RESET).toBe(STATUS_NEEDS_RESET)
  })

  it('stops taking packets while there is no room for the answers, and goes on when there is', async () => {
    bench.driver.reset()
    guest = new VsockDriver(bench, 0)
    for (let i = 0; i < 100; i++) guest.send({ op: OP_RW, srcPort: i, dstPort: 1 })
    expect(bench.metrics.packetsToHost).toBe(64)
    guest.supply(100)
    await guest.settle()
    expect(bench.metrics.packetsToHost).toBe(100)
    expect(guest.received).toHaveLength(100)
  })

  it('refuses more connections than it may have', async () => {
    bench.close()
    bench = new DeviceBench(new VsockDevice({ cid: GUEST_CID, path, maxConnections: 3 }))
    guest = new VsockDriver(bench)
    servers.push(await listenForGuest(path, 52, stream => void streams.push(stream)))
    for (let i = 0; i < 5; i++) guest.send({ op: OP_REQUEST, srcPort: i, dstPort: 52 })
    await guest.settle()
    expect(guest.received.map(packet => packet.op).sort()).toEqual([
      OP_RESPONSE,
      OP_RESPONSE,
      OP_RESPONSE,
      OP_RST,
      OP_RST,
    ])
  })
})

describe('vsock, when the guest starts again', () => {
  it('ends every connection at a reset, mid-stream, and serves the new driver', async () => {
    const stream = await guestConnects()
    let closed = false
    stream.on('data', () => {})
    stream.on('close', () => {
      closed = true
    })
    stream.on('end', () => stream.end())
    stream.write(new Uint8Array(1 << 20))
    await guest.settle(3)
    bench.driver.reset()
    for (let i = 0; i < 100 && !closed; i++) await new Promise(resolve => setImmediate(resolve))
    expect(closed).toBe(true)
    expect(bench.metrics.connections).toBe(0)
    guest = new VsockDriver(bench)
    const { stream: next } = await hostConnects()
    next.write('x')
    expect((await guest.expect(OP_RW)).data).toEqual(new Uint8Array([120]))
  })

  it('is saved, and restored with a transport reset event and another CID', async () => {
    await guestConnects()
    const { driver } = bench
    const event = driver.space(4)
    driver.queues[2]!.add([event])
    driver.queues[2]!.kick()
    bench.run()
    const saved = saveTransport(bench.transport)
    const copy = new DeviceBench(new VsockDevice({ cid: 77, path: `${path}2` }), { memory: bench.memory, index: 1 })
    restoreTransport(copy.transport, saved)
    copy.run()
    expect(driver.queues[2]!.takeUsed()).toEqual([{ id: expect.any(Number), length: 4 }])
    expect(driver.bytes(event)).toEqual(new Uint8Array(4))
    expect(copy.driver.config(0)).toBe(77)
    expect(copy.metrics.connections).toBe(0)
    copy.close()
  })

  it.each([
    ['a buffer that only it may read', 4, false, 4],
    ['a buffer that is too short', 3, true, 4],
    ['a buffer that is not memory', 4, true, 2 ** 40],
  ])('needs a reset when the event of a restore meets %s', async (_, length, write, address) => {
    const { driver } = bench
    const event = driver.space(4)
    driver.queues[2]!.add([{ address: address === 4 ? event.address : address, length, write }])
    driver.queues[2]!.kick()
    bench.run()
    const copy = new DeviceBench(new VsockDevice({ cid: 77, path: `${path}3` }), { memory: bench.memory, index: 1 })
    restoreTransport(copy.transport, saveTransport(bench.transport))
    copy.run()
    expect(driver.bytes(event)).toEqual(new Uint8Array(4).fill(0xee))
    expect(copy.driver.status & STATUS_NEEDS_RESET).toBe(STATUS_NEEDS_RESET)
    expect([copy.metrics.guestFaults, copy.errors]).toEqual([1, []])
    copy.close()
  })
})
