/** Guests that flood, spoof, open flows without end, or send pieces of packets: each is limited and counted. */
import { createSocket } from 'node:dgram'
import { readdirSync } from 'node:fs'
import { createServer, type Server } from 'node:net'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { parseAddress } from './addresses.ts'
import { invert, sumBytes } from './checksum.ts'
import { GATEWAY4, GUEST4 } from './description.ts'
import { RawGuest, tcpFrame, udpFrame } from './testing/raw-guest.ts'
import { writeHeaders } from './writer.ts'

const MACS = { guest: Uint8Array.from([0x52, 0x55, 10, 0, 2, 2]), gateway: Uint8Array.from([2, 0, 0, 0, 0, 1]) }
let guest: RawGuest
let server: Server
let port = 0

/** A resolver of the test's own that never answers: questions go nowhere else. */
let resolver: ReturnType<typeof createSocket>

beforeEach(async () => {
  resolver = createSocket('udp4')
  await new Promise<void>(resolve => resolver.bind(0, '127.0.0.1', resolve))
  const policy = { allow: ['host.vitrine.internal', '127.0.0.0/8'] }
  const options = { resolverPort: resolver.address().port }
  guest = new RawGuest({ policy, resolvers: ['127.0.0.1'] }, undefined, options)
  server = createServer(socket => socket.on('error', () => {}))
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  port = (server.address() as { port: number }).port
})

afterEach(() => {
  guest.close()
  server.close()
  resolver.close()
})

const descriptors = (): number => readdirSync('/proc/self/fd').length

/** A fragment of a UDP packet: `offset` in bytes. */
function fragment(id: number, offset: number, length: number, more: boolean, fill = 0): Uint8Array {
  const bytes = new Uint8Array(34 + length).fill(fill, 34)
  const view = new DataView(bytes.buffer)
  writeHeaders(bytes, view, MACS, GUEST4, GATEWAY4, 17, length, 64)
  view.setUint16(18, id)
  view.setUint16(20, (offset / 8) | (more ? 0x2000 : 0))
  view.setUint16(24, 0)
  view.setUint16(24, invert(sumBytes(bytes, 14, 20)))
  return bytes
}

describe('a hostile guest', () => {
  it('opens connections without end: a table of 4096, the rest is refused and counted', {
    timeout: 30_000,
  }, async () => {
    for (let i = 0; i < 6000; i++) {
      guest.tcp({ from: 1024 + (i % 60_000), to: port, seq: i, flags: 'S' })
      if (i % 256 === 0) guest.frames()
    }
    expect(guest.stack.tcp.table.all.size).toBeLessThanOrEqual(4096)
    expect(guest.stack.core.counters.flowsRefused).toBeGreaterThanOrEqual(6000 - 4096)
  })

  it('opens a million UDP flows: a table of 1024, the idlest gives way', { timeout: 60_000 }, () => {
    const before = descriptors()
    const payload = new Uint8Array(1)
    const count = process.env.VITRINE_LONG ? 1_000_000 : 5000
    for (let i = 0; i < count; i++) {
      const remote = parseAddress(`127.${1 + (i >> 16)}.${(i >> 8) & 255}.${i & 255}`)
      guest.frame(udpFrame(GUEST4, 1024 + (i % 50_000), 9, payload, remote))
      if (i % 256 === 0) guest.frames()
    }
    expect(guest.stack.udp.table.all.size).toBeLessThanOrEqual(1024)
    expect(descriptors() - before).toBeLessThanOrEqual(1100)
    expect(guest.stack.core.counters.udpEvicted).toBeGreaterThan(count - 1100)
  })

  it('spoofs: nothing of it leaves', () => {
    for (const source of ['10.0.2.2', '10.0.2.3', '127.0.0.1', '8.8.8.8', '255.255.255.255', '10.0.2.16'])
      guest.frame(udpFrame(parseAddress(source), 1000, 9, new Uint8Array(4)))
    expect(guest.stack.core.counters.spoofed).toBe(6)
    expect(guest.stack.udp.table.all.size).toBe(0)
    expect(guest.frames()).toEqual([])
  })

  it('asks for names without end: 256 at a time, the rest is answered with a failure', () => {
    const name = [7, ...Buffer.from('example'), 3, ...Buffer.from('org'), 0]
    for (let i = 0; i < 5000; i++) {
      const query = Uint8Array.from([i >> 8, i & 255, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, ...name, 0, 1, 0, 1])
      query[13] = 97 + (i % 26)
      query[14] = 97 + (Math.floor(i / 26) % 26)
      guest.stack.policy.change('full')
      guest.frame(udpFrame(GUEST4, 1000, 53, query, parseAddress('10.0.2.3')))
      guest.frames()
    }
    expect(guest.stack.dns.pending).toBeLessThanOrEqual(256)
    expect(guest.stack.core.counters.dnsFailed).toBeGreaterThan(4000)
  })

  it('sends first fragments without end: 16 packets wait, none is put together', () => {
    for (let i = 0; i < 5000; i++) guest.frame(fragment(i, 0, 1480, true))
    expect(guest.stack.reassembly.waiting).toBe(16)
    expect(guest.stack.core.counters).toMatchObject({ fragments: 5000, fragmentsDropped: 4984, reassembled: 0 })
    guest.now += 31_000
    guest.frame(fragment(60_000, 0, 1480, true))
    expect(guest.stack.reassembly.waiting).toBe(1)
  })

  it('sends fragments that overlap, run over the end or come after it: the packet is lost, nothing else', () => {
    const { counters } = guest.stack.core
    const dropped = (): number => counters.fragmentsDropped
    guest.frame(fragment(1, 0, 64, true))
    guest.frame(fragment(1, 32, 64, true, 1))
    expect(dropped()).toBe(1)
    // What was damaged once stays so.
    guest.frame(fragment(1, 64, 64, false))
    expect(dropped()).toBe(2)
    guest.frame(fragment(2, 65_528, 1480, false))
    expect(dropped()).toBe(3)
    guest.frame(fragment(3, 64, 64, false))
    guest.frame(fragment(3, 128, 64, true))
    expect(dropped()).toBe(4)
    guest.frame(fragment(4, 0, 61, true))
    expect(dropped()).toBe(5)
    // The same one twice is no harm.
    guest.frame(fragment(5, 0, 64, true))
    guest.frame(fragment(5, 0, 64, true))
    guest.frame(fragment(5, 64, 8, false))
    expect(counters.reassembled).toBe(1)
  })

  it('never reads: what waits for it is bounded, and counted when it is lost', () => {
    for (let i = 0; i < 20_000; i++) guest.tcp({ from: 1024 + i, to: 1, seq: 1, flags: 'A' })
    expect(guest.stack.core.ring.count).toBeLessThanOrEqual(1024)
    expect(guest.stack.core.counters.queueFull).toBeGreaterThan(18_000)
  })

  it('sends a connection that only waits a reset after a restore, with the right number', async () => {
    let host: import('node:net').Socket | undefined
    server.on('connection', socket => {
      host = socket
    })
    guest.tcp({ to: port, seq: 1000, flags: 'S' })
    const syn = (await guest.until(segment => segment.flags.includes('S'))).at(-1)!
    guest.tcp({ to: port, seq: 1001, ack: syn.seq + 1 })
    await guest.turn(() => host !== undefined)
    host!.write('hello')
    await guest.until(segment => segment.data === 'hello')
    guest.tcp({ to: port, seq: 1001, ack: syn.seq + 6 })
    const saved = JSON.parse(JSON.stringify(guest.stack.save()))
    // A card is restored after its driver's queues have been started.
    const late = new RawGuest({})
    late.stack.restore(saved)
    expect(late.segments()).toMatchObject([{ from: port, to: 40_000, flags: 'RA' }])
    late.close()
    const restored = new RawGuest({}, saved)
    const [reset] = restored.segments()
    expect(reset).toMatchObject({ from: port, to: 40_000, seq: (syn.seq + 6) >>> 0, ack: 1001, flags: 'RA' })
    // And one that speaks is told at once.
    restored.frame(tcpFrame({ to: port, seq: 1001, ack: syn.seq + 6, data: 'still there?' }))
    expect(restored.segments()).toMatchObject([{ seq: (syn.seq + 6) >>> 0, flags: 'R' }])
    restored.close()
    host!.destroy()
  })

  it('is spoken to by the address that it was saved with, and by its own when it has taken that', () => {
    const arp = (): string => {
      const request = new Uint8Array(42)
      request.set([255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 9, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9])
      request.set([10, 0, 2, 15, 0, 0, 0, 0, 0, 0, 10, 0, 2, 2], 28)
      restored.frame(request)
      return Buffer.from(restored.frames().at(-1)!.subarray(0, 6)).toString('hex')
    }
    const restored = new RawGuest({ guestMac: '02:00:00:00:00:02' }, { mac: '02:00:00:00:00:01', flows: [] })
    expect(arp()).toBe('020000000001')
    restored.stack.guestNamed()
    expect(arp()).toBe('020000000002')
    restored.close()
  })
})
