/** The DNS forwarder through the stack, with a resolver of the test's own: what answers allow, deny, and how long they are kept. */
import { createSocket } from 'node:dgram'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { parseAddress } from '../addresses.ts'
import { DNS4, GUEST4, type NetworkPolicy } from '../description.ts'
import { RawGuest, udpFrame } from '../testing/raw-guest.ts'
import * as dns from './message.ts'

interface Made {
  readonly name: string
  readonly type: number
  readonly ttl?: number
  readonly data: readonly number[]
}
interface Zone {
  readonly code?: number
  readonly answer?: readonly Made[]
  readonly authority?: readonly Made[]
  readonly additional?: readonly Made[]
}

const wireName = (name: string): number[] =>
  name === '' ? [0] : [...name.split('.').flatMap(label => [label.length, ...Buffer.from(label)]), 0]
const four = (name: string, address: string, ttl?: number): Made => ({
  ...{ name, type: dns.TYPE_A, data: address.split('.').map(Number) },
  ...(ttl === undefined ? {} : { ttl }),
})
const alias = (name: string, to: string): Made => ({ name, type: dns.TYPE_CNAME, data: wireName(to) })
const soa = (ttl: number, minimum: number): Made => ({
  ...{ name: 'example', type: dns.TYPE_SOA, ttl },
  data: [
    ...wireName('ns.example'),
    ...wireName('root.example'),
    ...new Array<number>(16).fill(0),
    0,
    0,
    minimum >> 8,
    minimum & 255,
  ],
})
const written = ({ name, type, ttl = 300, data }: Made): number[] => [
  ...[...wireName(name), 0, type, 0, 1, 0, 0, ttl >> 8, ttl & 255],
  ...[data.length >> 8, data.length & 255, ...data],
]

function answerOf(query: Uint8Array, { code = 0, answer = [], authority = [], additional = [] }: Zone): Uint8Array {
  const { end } = dns.readQuestion(query)!
  // Resolvers that know better write names as they have them.
  const question = Buffer.from(Buffer.from(query.subarray(12, end)).toString('latin1').toLowerCase(), 'latin1')
  return Uint8Array.from([
    ...[query[0]!, query[1]!, 0x81, 0x80 | code, 0, 1],
    ...[0, answer.length, 0, authority.length, 0, additional.length, ...question],
    ...[...answer, ...authority, ...additional].flatMap(written),
  ])
}

let resolver: ReturnType<typeof createSocket>
let guest: RawGuest | undefined
let asked: string[]
let zones: { [name: string]: Zone }

beforeEach(async () => {
  asked = []
  zones = {}
  resolver = createSocket('udp4')
  resolver.on('message', (query, from) => {
    const { name } = dns.readQuestion(query)!
    asked.push(name)
    const zone = zones[name]
    if (zone !== undefined) resolver.send(answerOf(query, zone), from.port, from.address)
  })
  await new Promise<void>(resolve => resolver.bind(0, '127.0.0.1', resolve))
})

afterEach(() => {
  guest?.close()
  guest = undefined
  resolver.close()
})

function start(policy: NetworkPolicy): RawGuest {
  guest = new RawGuest({ policy, resolvers: ['127.0.0.1'] }, undefined, { resolverPort: resolver.address().port })
  return guest
}

interface Asked {
  readonly type?: number
  /** With EDNS; `do`: with DNSSEC's records. */
  readonly edns?: 'plain' | 'do'
}

/** Asks as the guest, and gives the answer's bytes. */
async function ask(name: string, { type = dns.TYPE_A, edns }: Asked = {}): Promise<Uint8Array> {
  const extra = edns === undefined ? [] : [0, 0, 41, 16, 0, 0, 0, edns === 'do' ? 0x80 : 0, 0, 0, 0]
  const query = [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, extra.length === 0 ? 0 : 1]
  guest!.frame(
    udpFrame(GUEST4, 5000, 53, Uint8Array.from([...query, ...wireName(name), 0, type, 0, 1, ...extra]), DNS4),
  )
  let answer: Uint8Array | undefined
  await guest!.turn(() => {
    answer = guest!.frames().find(frame => frame[12] === 8 && frame[23] === 17)
    return answer !== undefined
  })
  const message = answer!.slice(42)
  expect([message[0], message[1]]).toEqual([0x12, 0x34])
  return message
}

const codeOf = (message: Uint8Array): number => message[3]! & 15
const may = (address: string): boolean => guest!.stack.policy.mayConnect(parseAddress(address))

describe('the DNS forwarder', () => {
  it('ties what was asked for, through its aliases, and nothing that a resolver adds', async () => {
    start({ allow: ['good.example'] })
    zones['good.example'] = {
      answer: [
        ...[alias('good.example', 'cdn.example'), four('cdn.example', '9.0.0.1'), four('other.example', '9.0.0.2')],
        // An alias of somebody else's leads nowhere.
        ...[alias('third.example', 'fourth.example'), four('fourth.example', '9.0.0.3')],
      ],
      authority: [four('good.example', '9.0.0.4')],
      additional: [four('ns.example', '9.0.0.5'), four('good.example', '9.0.0.6')],
    }
    expect(codeOf(await ask('good.example'))).toBe(dns.NO_ERROR)
    const allowed = [1, 2, 3, 4, 5, 6].map(i => may(`9.0.0.${i}`))
    expect(allowed).toEqual([true, false, false, false, false, false])
    // From the cache it is the same.
    await ask('good.example')
    expect(asked).toEqual(['good.example'])
    expect(may('9.0.0.5')).toBe(false)
  })

  it('follows aliases in any order, and not for ever', async () => {
    start({ allow: ['a.example'] })
    const answer = [alias('b.example', 'c.example'), four('c.example', '9.0.0.1'), alias('a.example', 'b.example')]
    zones['a.example'] = { answer: [...answer, alias('c.example', 'a.example')] }
    await ask('a.example')
    expect(may('9.0.0.1')).toBe(true)
  })

  it('refuses an answer that leads through a name that is denied', async () => {
    start({ deny: ['*.ads.example'] })
    const middle = [alias('www.shop.example', 'x.ads.example'), alias('x.ads.example', 'cdn.example')]
    zones['www.shop.example'] = { answer: [...middle, four('cdn.example', '9.0.0.1')] }
    const refused = await ask('WWW.shop.example')
    expect(codeOf(refused)).toBe(dns.REFUSED)
    expect(dns.readRecords(refused, dns.readQuestion(refused)!.end)).toEqual([])
    expect(guest!.stack.denials.latest).toMatchObject([{ protocol: 'dns', target: 'x.ads.example' }])
    expect(guest!.stack.core.counters.denied).toBe(1)
    // Nor is it kept.
    expect(codeOf(await ask('www.shop.example'))).toBe(dns.REFUSED)
    expect(asked).toHaveLength(2)
  })

  it('refuses an answer whose question was denied while it was under way', async () => {
    const { stack } = start('full')
    resolver.removeAllListeners('message')
    resolver.on('message', (query, from) => {
      stack.changePolicy({ deny: ['late.example'] })
      resolver.send(answerOf(query, { answer: [four('late.example', '9.0.0.1')] }), from.port, from.address)
    })
    expect(codeOf(await ask('late.example'))).toBe(dns.REFUSED)
  })

  it('keeps that there is nothing for as long as the SOA says, and not without one (RFC 2308)', async () => {
    const { stack } = start('full')
    zones['none.example'] = { code: dns.NAME_ERROR, authority: [soa(900, 60)] }
    zones['empty.example'] = { authority: [soa(30, 600)] }
    zones['bare.example'] = { code: dns.NAME_ERROR }
    zones['broken.example'] = { code: dns.SERVER_FAILURE, authority: [soa(900, 60)] }
    for (const name of Object.keys(zones)) {
      const first = codeOf(await ask(name))
      expect([name, codeOf(await ask(name))]).toEqual([name, first])
    }
    const twice = ['bare.example', 'bare.example', 'broken.example', 'broken.example']
    expect(asked).toEqual(['none.example', 'empty.example', ...twice])
    guest!.now += 31_000
    const kept = await ask('none.example')
    const [record] = dns.readRecords(kept, dns.readQuestion(kept)!.end)!
    expect(record).toMatchObject({ type: dns.TYPE_SOA, ttl: 29 })
    await ask('empty.example')
    guest!.now += 30_000
    await ask('none.example')
    expect(asked.slice(6)).toEqual(['empty.example', 'none.example'])
    expect(stack.core.counters.dnsCached).toBe(3)
  })

  it('keeps answers with DNSSEC, with EDNS and without apart', async () => {
    start('full')
    zones['a.example'] = { answer: [four('a.example', '9.0.0.1')] }
    for (const edns of [undefined, 'plain', 'do', undefined, 'plain', 'do'] as const) {
      await ask('a.example', edns === undefined ? {} : { edns })
    }
    expect(asked).toHaveLength(3)
  })

  it("answers in the question's own letters, also from the cache", async () => {
    start('full')
    zones['mixed.example'] = { answer: [four('mixed.example', '9.0.0.1')] }
    for (const name of ['MiXed.exAmple', 'mIxED.Example']) {
      const answer = await ask(name)
      expect(Buffer.from(answer.subarray(12, 12 + name.length + 2))).toEqual(Buffer.from(wireName(name)))
    }
    expect(asked).toEqual(['mixed.example'])
  })

  it('takes no question that refers to another place for its name', () => {
    const { stack } = start('full')
    const query = [0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 97, 0xc0, 4, 0, 1, 0, 1]
    guest!.frame(udpFrame(GUEST4, 5000, 53, Uint8Array.from(query), DNS4))
    expect(stack.core.counters.malformed).toBe(1)
    expect(stack.dns.pending).toBe(0)
  })
})
