/** RFC 9293 for connections that the host opens into the guest, and for what is rare: options, urgent data, wrap-around, old segments. */
import { connect, createServer, type Server, type Socket } from 'node:net'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { RawGuest, type TcpSeen } from '../testing/raw-guest.ts'

let guest: RawGuest
let server: Server
let sockets: Socket[]
let accepted: Socket | undefined
let heard = ''
let port = 0

beforeEach(async () => {
  guest = new RawGuest()
  sockets = []
  accepted = undefined
  heard = ''
  server = createServer({ noDelay: true }, socket => {
    accepted = watched(socket)
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  port = (server.address() as { port: number }).port
})

afterEach(() => {
  guest.close()
  for (const socket of sockets) socket.destroy()
  server.close()
})

function watched(socket: Socket): Socket {
  sockets.push(socket)
  socket.on('data', data => {
    heard += data.toString('latin1')
  })
  return socket.on('error', () => {})
}

const has = (flags: string) => (segment: TcpSeen) => [...flags].every(flag => segment.flags.includes(flag))
const flowCount = (): number => guest.stack.tcp.table.all.size
const theFlow = () => [...guest.stack.tcp.table.all][0]!

/** Somebody connects to a port of the host that leads to port 80 of the guest: the SYN that the guest sees. */
async function visit(): Promise<{ syn: TcpSeen; visitor: Socket; closed: () => boolean }> {
  const [opened] = guest.stack.ports.add({ host: 0, guest: 80 })
  let over = false
  const visitor = watched(connect(opened!.host, '127.0.0.1')).on('close', () => {
    over = true
  })
  const [syn] = await guest.until(has('S'))
  return { syn: syn!, visitor, closed: () => over }
}

/** An answer of the guest's to the SYN's sender. */
const answer = (syn: TcpSeen, fields: Parameters<RawGuest['tcp']>[0]): void =>
  guest.tcp({ from: syn.to, to: syn.from, ack: (syn.seq + 1) >>> 0, ...fields })

/** The guest opens a connection to the server, beginning at number `first`. */
async function open(first: number, more: Parameters<RawGuest['tcp']>[0] = {}): Promise<number> {
  guest.tcp({ to: port, seq: first, flags: 'S', ...more })
  const { seq } = (await guest.until(has('SA'))).at(-1)!
  guest.tcp({ to: port, seq: first + 1, ack: seq + 1 })
  await guest.turn(() => accepted !== undefined)
  guest.segments()
  return (seq + 1) >>> 0
}

describe('TCP, a connection into the guest', () => {
  it('offers its options, is answered, and carries what was said before (3.5, 3.10.7.3)', async () => {
    const { syn, visitor } = await visit()
    expect(syn.options).toEqual([2, 4, 1460 >> 8, 1460 & 255, 1, 3, 3, 7, 1, 1, 4, 2])
    expect(syn).toMatchObject({ to: 80, flags: 'S', ack: 0 })
    visitor.write('early')
    answer(syn, { seq: 700, flags: 'SA', options: [2, 4, 5, 0xb4] })
    const said = await guest.until(({ data }) => data === 'early')
    expect(said.at(-1)).toMatchObject({ seq: (syn.seq + 1) >>> 0, ack: 701 })
    answer(syn, { seq: 701, ack: syn.seq + 6, data: 'welcome' })
    await guest.turn(() => heard === 'welcome')
  })

  it('asks again when nobody answers, and gives up', async () => {
    const { syn, closed } = await visit()
    guest.later(1000)
    expect(guest.segments()).toMatchObject([{ flags: 'S', seq: syn.seq }])
    for (let i = 0; i < 8; i++) guest.later(70_000)
    expect(flowCount()).toBe(0)
    await guest.turn(closed)
  })

  it('is refused by a reset with the right number, and by no other (3.10.7.3)', async () => {
    const { syn, closed } = await visit()
    answer(syn, { seq: 0, ack: syn.seq + 99, flags: 'RA' })
    answer(syn, { seq: 0, flags: 'R' })
    expect(flowCount()).toBe(1)
    answer(syn, { seq: 0, flags: 'RA' })
    expect(flowCount()).toBe(0)
    await guest.turn(closed)
  })

  it('resets what the guest still has of an older connection, and goes on with its own (figure 9)', async () => {
    const { syn } = await visit()
    answer(syn, { seq: 5000, ack: 123_456, flags: 'A' })
    expect(guest.segments()).toMatchObject([{ flags: 'R', seq: 123_456, to: 80 }])
    expect(flowCount()).toBe(1)
    answer(syn, { seq: 700, flags: 'SA' })
    expect(theFlow().state).toBe(3)
  })

  it('opens from both sides at once (figure 7)', async () => {
    const { syn } = await visit()
    answer(syn, { seq: 700, ack: 0, flags: 'S' })
    expect(guest.segments()).toMatchObject([{ flags: 'SA', seq: syn.seq, ack: 701 }])
    answer(syn, { seq: 700, flags: 'SA' })
    expect(theFlow().state).toBe(3)
  })
})

describe('TCP, what is rare', () => {
  it('does not take an acknowledgment of something else for the third of three (3.10.7.4)', async () => {
    guest.tcp({ to: port, seq: 1000, flags: 'S' })
    const { seq } = (await guest.until(has('SA'))).at(-1)!
    guest.tcp({ to: port, seq: 1001, ack: seq + 500, flags: 'A' })
    expect(guest.segments()).toMatchObject([{ flags: 'R', seq: (seq + 500) >>> 0 }])
    expect(theFlow().state).toBe(2)
    guest.tcp({ to: port, seq: 1001, ack: seq + 1, flags: 'A' })
    expect(theFlow().state).toBe(3)
  })

  it('counts over the end of the numbers (3.4)', async () => {
    const ack = await open(0xffff_fff0)
    guest.tcp({ to: port, seq: 0xffff_fff1, ack, data: '0123456789abcdefghij' })
    expect(guest.segments()).toMatchObject([{ ack: 5 }])
    guest.tcp({ to: port, seq: 9, ack, data: 'late' })
    expect(guest.segments()).toMatchObject([{ ack: 5 }])
    guest.tcp({ to: port, seq: 5, ack, data: 'then' })
    expect(guest.segments()).toMatchObject([{ ack: 13 }])
    await guest.turn(() => heard.length === 28)
    expect(heard).toBe('0123456789abcdefghijthenlate')
  })

  it('passes urgent data on in its place, and skips options that it does not know (3.1, 3.8.5)', async () => {
    const ack = await open(1000, { options: [8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 254, 4, 1, 2] })
    guest.tcp({ to: port, seq: 1001, ack, flags: 'PAU', data: 'urgent', options: [253, 6, 1, 2, 3, 4] })
    expect(guest.segments()).toMatchObject([{ ack: 1007 }])
    await guest.turn(() => heard === 'urgent')
  })

  it('keeps to what the guest can take: its MSS, 536 without one, its scaled window, a window that shrinks (3.7.1, 3.8.6)', async () => {
    const ack = await open(1000, { options: [2, 4, 0, 200, 3, 3, 2] })
    guest.tcp({ to: port, seq: 1001, ack, window: 150 })
    accepted!.write('x'.repeat(2000))
    const first = await guest.until(segment => ((segment.seq - ack) | 0) + segment.data.length >= 600)
    expect(first.map(({ data }) => data.length)).toEqual([200, 200, 200])
    // 150 << 2 were in flight. The guest takes the right back to send what was not sent.
    guest.tcp({ to: port, seq: 1001, ack: ack + 400, window: 50 })
    expect(guest.segments()).toEqual([])
    guest.tcp({ to: port, seq: 1001, ack: ack + 600, window: 100 })
    expect(guest.segments().map(({ data }) => data.length)).toEqual([200, 200])
  })

  it('sends no crumbs into a window that opens by crumbs (3.8.6.2.1)', async () => {
    const ack = await open(1000, { options: [2, 4, 5, 0xb4] })
    guest.tcp({ to: port, seq: 1001, ack, window: 4000 })
    accepted!.write('x'.repeat(20_000))
    await guest.until(segment => ((segment.seq - ack) | 0) + segment.data.length >= 2920)
    for (const window of [10, 100, 300]) {
      guest.tcp({ to: port, seq: 1001, ack: ack + 1460, window: 2540 + window })
      expect(guest.segments()).toEqual([])
    }
    guest.tcp({ to: port, seq: 1001, ack: ack + 1460, window: 4000 })
    expect(guest.segments().map(({ data }) => data.length)).toEqual([1460])
  })

  it('lets a new connection follow on one that waits in TIME-WAIT (3.6.1)', async () => {
    let ack = await open(1000)
    accepted!.end()
    await guest.until(has('F'))
    ack = (ack + 1) >>> 0
    guest.tcp({ to: port, seq: 1001, ack, flags: 'FA' })
    expect(theFlow().state).toBe(9)
    // An old SYN is answered with where things are; one beyond the last number begins anew.
    guest.segments()
    guest.tcp({ to: port, seq: 900, flags: 'S' })
    expect(guest.segments()).toMatchObject([{ flags: 'A', ack: 1002 }])
    accepted = undefined
    await open(50_000)
    expect(theFlow().state).toBe(3)
    expect(flowCount()).toBe(1)
  })

  it('resets the host when the guest sends after it was closed there (3.6.1)', async () => {
    const ack = await open(1000)
    accepted!.resetAndDestroy()
    expect((await guest.until(has('R'))).at(-1)).toMatchObject({ ack: 1001 })
    guest.tcp({ to: port, seq: 1001, ack, data: 'anybody?' })
    expect(guest.segments()).toMatchObject([{ flags: 'R', seq: ack }])
  })
})
