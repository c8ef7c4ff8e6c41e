/** Small parts by themselves: rates, recordings on a full disk, keep-alive, saved state that is not ours. */
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { IoVector } from '../host/io-vector.ts'
import { PcapWriter } from './pcap.ts'
import { RateLimit } from './rate-limit.ts'
import { NetworkStack } from './stack.ts'
import { RawGuest } from './testing/raw-guest.ts'

describe('a rate limit', () => {
  it('passes what its rate says over time, however large the frames', () => {
    for (const frame of [60, 1514, 65_000]) {
      let now = 0
      const limit = new RateLimit(() => now)
      limit.set(1_000_000)
      let passed = 0
      for (now = 0; now < 10_000; now++) {
        while (limit.wait() === 0) {
          limit.take(frame)
          passed += frame
        }
      }
      expect(passed).toBeGreaterThan(9_900_000)
      expect(passed).toBeLessThan(10_200_000)
    }
  })

  it('says when the next frame may go', () => {
    let now = 0
    const limit = new RateLimit(() => now)
    limit.set(10_000)
    limit.take(13_000)
    expect(limit.wait()).toBeCloseTo(1000)
    now = 999
    expect(limit.wait()).toBeGreaterThan(0)
    now = 1001
    expect(limit.wait()).toBe(0)
    limit.set(Number.POSITIVE_INFINITY)
    limit.take(1e12)
    expect(limit.wait()).toBe(0)
  })

  it('cannot be nothing', () => {
    const refused = expect.objectContaining({ code: 'BAD_DESCRIPTION' })
    for (const rate of [0, -1, 100, Number.NaN, Number.POSITIVE_INFINITY])
      expect(() => new NetworkStack({ bandwidth: { toGuest: rate } })).toThrow(refused)
  })
})

describe('a recording', () => {
  it('ends when its disk is full, and counts what it lost', () => {
    const memory = new Uint8Array(new SharedArrayBuffer(4096))
    const frame = new IoVector(memory)
    frame.push(0, 1000)
    const pcap = new PcapWriter('/dev/full')
    for (let i = 0; i < 3000; i++) pcap.record(frame)
    pcap.close()
    expect(pcap.lost).toBe(3000)
  })

  it('says where it cannot be', () => {
    const folder = mkdtempSync(join(tmpdir(), 'vitrine-pcap-'))
    expect(() => new PcapWriter(folder)).toThrow(expect.objectContaining({ code: 'RECORDING' }))
    rmSync(folder, { recursive: true })
  })
})

describe('a silent connection', () => {
  it('is asked after two hours, and reset when nobody answers (3.8.4)', async () => {
    const guest = new RawGuest()
    const hosts: Socket[] = []
    const server = createServer(socket => hosts.push(socket.on('error', () => {})))
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    const { port } = server.address() as { port: number }
    guest.tcp({ to: port, seq: 1000, flags: 'S' })
    const syn = (await guest.until(segment => segment.flags.includes('S'))).at(-1)!
    guest.tcp({ to: port, seq: 1001, ack: syn.seq + 1 })
    await guest.turn(() => hosts.length === 1)
    guest.segments()
    guest.later(7_100_000)
    expect(guest.segments()).toEqual([])
    guest.later(200_000)
    // A segment from before what it has: any TCP answers that.
    expect(guest.segments()).toMatchObject([{ flags: 'A', seq: syn.seq, data: '' }])
    guest.tcp({ to: port, seq: 1001, ack: syn.seq + 1 })
    guest.later(7_100_000)
    expect(guest.segments()).toEqual([])
    for (let i = 0; i < 12; i++) guest.later(60_000)
    expect(guest.segments().at(-1)!.flags).toContain('R')
    expect(guest.stack.tcp.table.all.size).toBe(0)
    expect(guest.stack.core.counters.keepAlives).toBeGreaterThan(5)
    guest.close()
    for (const host of hosts) host.destroy()
    server.close()
  })
})

describe('saved state', () => {
  it('is not believed when it is damaged', () => {
    const flow = { guest: '10.0.2.15', guestPort: 1, remote: '10.0.2.2', remotePort: 2, next: 3, expected: 4 }
    const good = { mac: '02:00:00:00:00:01', flows: [flow] }
    const stack = new NetworkStack()
    expect(() => stack.restore(good)).not.toThrow()
    for (const bad of [
      null,
      {},
      { mac: 'x', flows: [] },
      { ...good, flows: [{ ...flow, guest: 'x' }] },
      { ...good, flows: [{ ...flow, next: -1 }] },
      { ...good, flows: [{ ...flow, guestPort: 65_536 }] },
      { ...good, flows: [null] },
      { ...good, flows: new Array(5000).fill(flow) },
    ])
      expect(() => stack.restore(bad)).toThrow(/damaged|no IP address|no MAC/)
    stack.close()
  })
})
