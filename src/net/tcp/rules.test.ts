/** RFC 9293 rule by rule, with segments written by hand, a clock of the test's own, and a real socket on loopback. */
import { createServer, type Server, type Socket } from 'node:net'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { RawGuest, type TcpSeen, tcpFrame } from '../testing/raw-guest.ts'

let guest: RawGuest
let server: Server
let host: Socket | undefined
let heard = ''
let hostEnded = false
let hostClosed = false
let port = 0
/** Our numbers: the guest's next, and what it expects. */
let seq = 0
let ack = 0

beforeEach(async () => {
  guest = new RawGuest()
  host = undefined
  heard = ''
  hostEnded = false
  hostClosed = false
  server = createServer({ allowHalfOpen: true, noDelay: true }, socket => {
    host = socket
    socket.on('data', data => {
      heard += data.toString('latin1')
    })
    socket.on('end', () => {
      hostEnded = true
    })
    socket.on('error', () => {})
    socket.on('close', () => {
      hostClosed = true
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  port = (server.address() as { port: number }).port
})

afterEach(() => {
  guest.close()
  host?.destroy()
  server.close()
})

const SYN_OPTIONS = [2, 4, 5, 0xb4, 4, 2, 3, 3, 0]
const has = (flags: string) => (segment: TcpSeen) => [...flags].every(flag => segment.flags.includes(flag))
const send = (fields: Parameters<RawGuest['tcp']>[0]): void => guest.tcp({ to: port, seq, ack, ...fields })
const flowCount = (): number => guest.stack.tcp.table.all.size
const theFlow = () => [...guest.stack.tcp.table.all][0]!

/** Three segments, and the host's socket. */
async function open(window = 65_535): Promise<TcpSeen> {
  guest.tcp({ to: port, seq: 1000, flags: 'S', options: SYN_OPTIONS, window })
  const answer = (await guest.until(has('SA'))).at(-1)!
  seq = 1001
  ack = (answer.seq + 1) >>> 0
  send({ window })
  await guest.turn(() => host !== undefined)
  return answer
}

describe('TCP, rule by rule', () => {
  it('answers a SYN once the host is connected, with its options (3.7.1, RFC 7323, RFC 2018)', async () => {
    const answer = await open()
    expect(answer).toMatchObject({ ack: 1001, flags: 'SA', to: 40_000, from: port })
    expect(answer.options).toEqual([2, 4, 1460 >> 8, 1460 & 255, 1, 3, 3, 7, 1, 1, 4, 2])
    expect(theFlow().state).toBe(3)
  })

  it('offers no options that the SYN did not have', async () => {
    guest.tcp({ to: port, seq: 5, flags: 'S' })
    expect((await guest.until(has('SA')))[0]!.options).toEqual([2, 4, 1460 >> 8, 1460 & 255])
    expect(theFlow().mss).toBe(536)
  })

  it('refuses with a reset when the host refuses (3.10.7.1)', async () => {
    server.close()
    guest.tcp({ to: port, seq: 77, flags: 'S' })
    expect((await guest.until(has('R')))[0]).toMatchObject({ flags: 'RA', ack: 78 })
    expect(flowCount()).toBe(0)
  })

  it('answers a segment of no connection with a reset, a reset with nothing (3.5.2)', () => {
    guest.tcp({ to: port, seq: 9, ack: 4242, flags: 'A' })
    guest.tcp({ to: port, seq: 9, ack: 4242, flags: 'R' })
    expect(guest.segments()).toMatchObject([{ flags: 'R', seq: 4242 }])
    guest.tcp({ to: port, seq: 9, flags: 'F', data: 'abc' })
    expect(guest.segments()).toMatchObject([{ flags: 'RA', seq: 0, ack: 13 }])
  })

  it('sends its SYN-ACK again when asked again, and when not answered; then gives up', async () => {
    guest.tcp({ to: port, seq: 1000, flags: 'S', options: SYN_OPTIONS })
    const first = (await guest.until(has('SA')))[0]!
    guest.tcp({ to: port, seq: 1000, flags: 'S', options: SYN_OPTIONS })
    expect(guest.segments()).toMatchObject([{ flags: 'SA', seq: first.seq }])
    for (let wait = 1000, i = 0; i < 6; i++, wait *= 2) {
      guest.later(wait - 1)
      expect(guest.segments()).toEqual([])
      guest.later(1)
      expect(guest.segments()).toMatchObject([{ flags: 'SA', seq: first.seq }])
    }
    guest.later(64_000)
    expect(guest.segments()).toMatchObject([{ flags: 'RA' }])
    expect(flowCount()).toBe(0)
  })

  it('passes data on and acknowledges it (3.10.7.4)', async () => {
    await open()
    send({ data: 'hello', flags: 'PA' })
    expect(guest.segments()).toMatchObject([{ flags: 'A', ack: 1006, data: '' }])
    await guest.turn(() => heard === 'hello')
    host!.write('world')
    expect((await guest.until(({ data }) => data !== '')).at(-1)).toMatchObject({ seq: ack, ack: 1006, data: 'world' })
  })

  it('lets an acknowledgment ride on a prompt answer, and sends it alone after a moment (3.8.6.3)', async () => {
    await open()
    send({ data: 'one' })
    expect(guest.segments()).toMatchObject([{ ack: 1004, data: '' }])
    host!.write('1')
    await guest.until(({ data }) => data === '1')
    // The host answered within the moment, by the test's clock: from now on its answers are waited for.
    ack = (ack + 1) >>> 0
    seq = 1004
    send({ data: 'two' })
    expect(guest.segments()).toEqual([])
    host!.write('2')
    expect(await guest.until(({ data }) => data === '2')).toMatchObject([{ ack: 1007, data: '2' }])
    ack = (ack + 1) >>> 0
    seq = 1007
    send({ data: 'three' })
    expect(guest.segments()).toEqual([])
    guest.later(2)
    expect(guest.segments()).toMatchObject([{ ack: 1012, data: '' }])
    // That was not prompt. A full segment is never made to wait,
    // nor one that comes out of order.
    seq = 1012
    send({ data: 'four' })
    expect(guest.segments()).toMatchObject([{ ack: 1016, data: '' }])
    theFlow().prompt = true
    seq = 1016
    send({ data: 'x'.repeat(1460) })
    expect(guest.segments()).toMatchObject([{ ack: 2476, data: '' }])
    send({ seq: 3000, data: 'ahead' })
    expect(guest.segments()).toMatchObject([{ ack: 2476, data: '' }])
  })

  it('keeps what is out of order, says so, and puts it in order (3.10.7.4, RFC 2018)', async () => {
    await open()
    send({ seq: 1006, data: 'world' })
    const [first] = guest.segments()
    expect(first).toMatchObject({ ack: 1001 })
    expect(first!.options).toEqual([1, 1, 5, 10, 0, 0, 3, 238, 0, 0, 3, 243])
    send({ seq: 1021, data: 'later' })
    // The newest range first.
    expect(guest.segments()[0]!.options.slice(0, 12)).toEqual([1, 1, 5, 18, 0, 0, 3, 253, 0, 0, 4, 2])
    send({ seq: 1001, data: 'hello' })
    expect(guest.segments()).toMatchObject([{ ack: 1011 }])
    // Overlapping on both sides.
    send({ seq: 1009, data: 'ld, again and ' })
    expect(guest.segments()).toMatchObject([{ ack: 1026, options: [] }])
    await guest.turn(() => heard.length === 25)
    // Where both said something, either may be believed.
    expect(heard).toMatch(/^helloworld, again an(d |la)ter$/)
    expect(guest.stack.tcp.held).toBe(0)
  })

  it('acknowledges old data again, and does not pass it on twice', async () => {
    await open()
    send({ data: 'once' })
    send({ data: 'once' })
    const all = guest.segments()
    expect(all.at(-1)).toMatchObject({ ack: 1005 })
    await guest.settle()
    expect(heard).toBe('once')
  })

  it('takes no data beyond its window', async () => {
    await open()
    send({ seq: 1001 + (1 << 20), data: 'far' })
    expect(guest.segments()).toMatchObject([{ ack: 1001, options: [] }])
  })

  it('believes a reset only at the exact number, and challenges others (RFC 5961, 3.2)', async () => {
    await open()
    send({ seq: 1100, flags: 'R' })
    expect(guest.segments()).toMatchObject([{ flags: 'A', ack: 1001 }])
    expect(flowCount()).toBe(1)
    send({ seq: 900, flags: 'R' })
    expect(guest.segments()).toEqual([])
    send({ flags: 'R' })
    expect(flowCount()).toBe(0)
    await guest.turn(() => hostClosed)
  })

  it('challenges a SYN in the middle (RFC 5961, 4), a hundred times a second at most', async () => {
    await open()
    for (let i = 0; i < 150; i++) {
      send({ flags: 'S', seq: 1001 })
      guest.segments()
    }
    expect(guest.stack.core.counters.challengeAcks).toBe(100)
    expect(flowCount()).toBe(1)
  })

  it('does not believe an acknowledgment of what was not sent', async () => {
    await open()
    send({ ack: ack + 1000, data: 'x' })
    expect(guest.segments()).toMatchObject([{ flags: 'A', ack: 1001 }])
    await guest.settle()
    expect(heard).toBe('')
  })

  it('sends again what is not acknowledged, ever later, and then resets (RFC 6298)', async () => {
    await open()
    host!.write('data')
    await guest.until(({ data }) => data === 'data')
    const wait = theFlow().roundTrip.timeout
    guest.later(wait - 1)
    expect(guest.segments()).toEqual([])
    guest.later(1)
    expect(guest.segments()).toMatchObject([{ seq: ack, data: 'data' }])
    guest.later(wait * 2 - 1)
    expect(guest.segments()).toEqual([])
    guest.later(1)
    expect(guest.segments()).toMatchObject([{ seq: ack, data: 'data' }])
    for (let i = 0; i < 10; i++) guest.later(60_000)
    expect(guest.segments().at(-1)!.flags).toContain('R')
    await guest.turn(() => hostClosed)
  })

  it('sends a hole again after three duplicates, and only the hole (RFC 5681, 6675)', async () => {
    await open()
    host!.write('abcdefgh'.repeat(1000))
    const sent = await guest.until(segment => ((segment.seq - ack) >>> 0) + segment.data.length === 8000)
    const [lost, next] = sent.filter(({ data }) => data !== '')
    const end = (ack + 8000) >>> 0
    const word = (value: number): number[] => [value >>> 24, (value >> 16) & 255, (value >> 8) & 255, value & 255]
    for (let i = 0; i < 3; i++) send({ options: [1, 1, 5, 10, ...word(next!.seq), ...word(end)] })
    const again = guest.segments()
    expect(again).toMatchObject([{ seq: ack, data: lost!.data }])
    send({ ack: end })
    expect(guest.segments()).toEqual([])
    expect(theFlow().available).toBe(0)
  })

  it('sends again what it took from the host already, in part or with what came behind it', async () => {
    await open()
    host!.write('little')
    expect((await guest.until(has('P'))).at(-1)).toMatchObject({ seq: ack, data: 'little' })
    // The host has more to say while the guest has acknowledged nothing: that stays in the host's socket.
    const more = 'more'.repeat(1000)
    host!.write(more)
    await guest.turn(() => theFlow().available === 4006)
    expect(theFlow().taken.length).toBe(6)
    guest.segments()
    // All of it is lost, and goes again in segments that know no border between the two.
    guest.later(theFlow().deadline - guest.now)
    expect(guest.segments()[0]).toMatchObject({ seq: ack, data: `little${more}`.slice(0, 1460) })
    ack = (ack + 4) >>> 0
    send({})
    expect([theFlow().taken.length, theFlow().available]).toEqual([2, 4002])
    guest.segments()
    guest.later(theFlow().deadline - guest.now)
    expect(guest.segments()[0]).toMatchObject({ seq: ack, data: `le${more}`.slice(0, 1460) })
    ack = (ack + 1000) >>> 0
    send({})
    expect([theFlow().taken.length, theFlow().available]).toEqual([0, 3002])
    send({ ack: (ack + 3002) >>> 0 })
    host!.end()
    await guest.until(has('F'))
    expect([theFlow().available, theFlow().ended]).toEqual([0, true])
  })

  it('takes no more than a little, and all of what is more than that arrives', async () => {
    await open()
    const text = Array.from({ length: 2000 }, (_, i) => String(i).padStart(4, '0')).join('')
    host!.end(text)
    let seen = ''
    await guest.turn(() => {
      for (const { seq: at, data, flags } of guest.segments()) {
        expect((at - ack) >>> 0).toBe(seen.length)
        seen += data
        if (flags.includes('F')) return true
      }
      return false
    })
    expect(theFlow().taken.length).toBeLessThanOrEqual(2048)
    expect(seen).toBe(text)
  })

  it('waits for a closed window, asks whether it is open, and goes on (3.8.6.1)', async () => {
    await open(0)
    host!.write('waiting')
    await guest.turn(() => theFlow().available === 7)
    expect(guest.segments().filter(({ data }) => data !== '')).toEqual([])
    guest.later(theFlow().deadline - guest.now)
    expect(guest.segments()).toMatchObject([{ seq: (ack - 1) >>> 0, data: '' }])
    send({ window: 4 })
    expect(guest.segments()).toMatchObject([{ seq: ack, data: 'wait' }])
    ack = (ack + 4) >>> 0
    send({ window: 100 })
    expect(guest.segments()).toMatchObject([{ seq: ack, data: 'ing' }])
  })

  it('lets the guest end first, and the host speak on (3.6, half-close)', async () => {
    await open()
    send({ flags: 'FA', data: 'bye' })
    expect(guest.segments()).toMatchObject([{ ack: 1005 }])
    await guest.turn(() => hostEnded)
    expect(heard).toBe('bye')
    host!.end('last words')
    const last = await guest.until(has('F'))
    expect(last.map(({ data }) => data).join('')).toBe('last words')
    seq = 1005
    send({ ack: (ack + 11) >>> 0 })
    expect(flowCount()).toBe(0)
  })

  it('takes a FIN that came before its data', async () => {
    await open()
    send({ seq: 1004, flags: 'FA', data: 'end' })
    expect(guest.segments()).toMatchObject([{ ack: 1001 }])
    send({ data: 'the' })
    expect(guest.segments()).toMatchObject([{ ack: 1008 }])
    await guest.turn(() => hostEnded)
    expect(heard).toBe('theend')
  })

  it('ends after the host, waits in TIME-WAIT, answers a late FIN there (3.10.7.4)', async () => {
    await open()
    host!.end()
    await guest.until(has('F'))
    ack = (ack + 1) >>> 0
    send({ data: 'still here' })
    expect(theFlow().state).toBe(5)
    await guest.turn(() => heard === 'still here')
    seq = 1011
    send({ flags: 'FA' })
    expect(guest.segments().at(-1)).toMatchObject({ ack: 1012 })
    send({ flags: 'FA' })
    expect(guest.segments()).toMatchObject([{ ack: 1012 }])
    guest.later(2000)
    expect(flowCount()).toBe(0)
  })

  it('ends on both sides at once (figure 13)', async () => {
    await open()
    host!.end()
    await guest.until(has('F'))
    send({ flags: 'FA' })
    expect(theFlow().state).toBe(7)
    expect(guest.segments()).toMatchObject([{ ack: 1002 }])
    seq = 1002
    send({ ack: (ack + 1) >>> 0 })
    expect(theFlow().state).toBe(9)
  })

  it('drops segments with bad checksums, offsets and options, and counts them', () => {
    const good = tcpFrame({ to: port, flags: 'S' })
    const damage = (at: number, value: number): Uint8Array => {
      const bytes = good.slice()
      bytes[at] = value
      return bytes
    }
    guest.frame(damage(38, 99))
    expect(guest.stack.core.counters.badChecksum).toBe(1)
    guest.tcp({ to: port, flags: 'S', options: [2, 40, 0, 0] })
    guest.tcp({ to: port, flags: 'S', options: [2, 0, 0, 0] })
    guest.tcp({ to: port, flags: 'S', options: [1, 1, 1, 8] })
    expect(guest.stack.core.counters.malformed).toBe(3)
    expect(flowCount()).toBe(0)
  })
})
