/**
 * The DNS server at 10.0.2.3: answers for names of our own, from the cache, or from the host's resolvers. Each question that
 * leaves has a socket of its own, so that its port is as hard to guess as its number.
 */
import { randomInt } from 'node:crypto'
import { closeFd } from '../../host/file.ts'
import {
  connectSocket,
  EINPROGRESS,
  readSocketBytes,
  SOCK_DGRAM,
  SOCK_STREAM,
  tryOpenSocket,
  writeSocketBytes,
} from '../../host/socket.ts'
import { isMapped, parseAddress } from '../addresses.ts'
import type { EdgeSource, NetCore } from '../core.ts'
import { GATEWAY4, HOST_NAME } from '../description.ts'
import type { Policy } from '../policy.ts'
import { chainOf, lifeOf } from './answer.ts'
import { DnsCache } from './cache.ts'
import * as dns from './message.ts'
import { TcpExchange } from './tcp-exchange.ts'
import { type DnsSession, DnsTcpServer } from './tcp-server.ts'

const MAX_PENDING = 256
const CACHED = 1024
const TRY_MS = 1500
const TCP_TRY_MS = 5000
const TRIES = 4
const MAX_MESSAGE = 65_000
const EAGAIN = 11

/** Who asked; the answer goes back the same way. */
export interface DatagramAsker {
  readonly guest: Uint8Array
  readonly guestPort: number
  readonly server: Uint8Array
}
export type Asker = DatagramAsker | DnsSession

export type Reply = (asker: DatagramAsker, message: Uint8Array) => void

/** Names of our own that come and go: other boxes. */
export type Lookup = (name: string) => Uint8Array | undefined

class Pending implements EdgeSource {
  readonly #forwarder: DnsForwarder
  readonly asker: Asker
  readonly query: Uint8Array
  readonly question: dns.Question
  readonly guestId: number
  id = 0
  fd = -1
  tries = 0
  deadline = 0
  /** Over TCP now, because the answer, `cut`, was not all of it. */
  tcp: TcpExchange | undefined
  cut: Uint8Array | undefined
  readonly edns: dns.Edns

  constructor(forwarder: DnsForwarder, asker: Asker, query: Uint8Array, question: dns.Question) {
    this.#forwarder = forwarder
    this.asker = asker
    this.query = query
    this.question = question
    this.guestId = (query[0]! << 8) | query[1]!
    this.edns = dns.readEdns(query, question)
  }

  onEdge(): void {
    this.#forwarder.onAnswer(this)
  }
}

export class DnsForwarder {
  readonly #core: NetCore
  readonly #policy: Policy
  readonly #reply: Reply
  readonly #lookup: Lookup
  /** Takes the guest's connections to port 53. */
  readonly overTcp: DnsTcpServer
  readonly #cache: DnsCache
  readonly #hosts = new Map<string, Uint8Array[]>()
  readonly #pending = new Set<Pending>()
  readonly #buffer = new Uint8Array(MAX_MESSAGE)
  readonly resolvers: readonly Uint8Array[]
  readonly port: number
  /** A name that the rules forbid was asked for. */
  onDenied: (name: string) => void = () => {}

  constructor(
    core: NetCore,
    policy: Policy,
    resolvers: readonly Uint8Array[],
    hosts: { readonly [name: string]: string },
    reply: Reply,
    port = 53,
    lookup: Lookup = () => undefined,
  ) {
    this.#core = core
    this.#policy = policy
    this.#reply = reply
    this.#lookup = lookup
    this.overTcp = new DnsTcpServer(core, (session, query) => this.ask(session, query))
    this.#cache = new DnsCache(CACHED, core.clock)
    this.resolvers = resolvers
    this.port = port
    for (const [name, address] of Object.entries(hosts)) this.#hosts.set(name.toLowerCase(), [parseAddress(address)])
    // IPv4 only: most servers on a host listen on 127.0.0.1, and many clients do not try a second address.
    this.#hosts.set(HOST_NAME, [GATEWAY4])
  }

  get pending(): number {
    return this.#pending.size
  }

  /** Rules have changed: answers kept under the old ones are no longer given. */
  forget(): void {
    this.#cache.clear()
  }

  ask(asker: Asker, query: Uint8Array): void {
    const { counters } = this.#core
    const question = dns.readQuestion(query)
    if (question === undefined || (query[2]! & 0x80) !== 0) {
      counters.malformed++
      if ('reply' in asker) asker.open--
      return
    }
    counters.dnsQueries++
    const own = this.#hosts.get(question.name) ?? this.#neighbour(question.name)
    if (own !== undefined) this.#answer(asker, this.#ownAnswer(query, question, own))
    else if (!this.#policy.mayResolve(question.name)) {
      this.#denied(question.name)
      this.#answer(asker, dns.makeAnswer(query, question, dns.REFUSED))
    } else if (!this.#answerFromCache(asker, query, question)) this.#forward(asker, query, question)
  }

  /** Back the way it came; over UDP only as much as the guest takes. */
  #answer(asker: Asker, message: Uint8Array, limit = Number.POSITIVE_INFINITY, question?: dns.Question): void {
    if ('reply' in asker) asker.reply(message)
    else if (message.length > limit && question !== undefined) this.#reply(asker, dns.cutAnswer(message, question))
    else this.#reply(asker, message)
  }

  #neighbour(name: string): Uint8Array[] | undefined {
    const address = this.#lookup(name)
    return address === undefined ? undefined : [address]
  }

  #ownAnswer(query: Uint8Array, question: dns.Question, own: readonly Uint8Array[]): Uint8Array {
    const addresses: Uint8Array[] = []
    for (const address of own) {
      const four = isMapped(address)
      if (question.class === dns.CLASS_IN && question.type === (four ? dns.TYPE_A : dns.TYPE_AAAA)) {
        addresses.push(four ? address.subarray(12) : address)
      }
    }
    return dns.makeAnswer(query, question, dns.NO_ERROR, addresses)
  }

  #answerFromCache(asker: Asker, query: Uint8Array, question: dns.Question): boolean {
    const { kind, limit } = dns.readEdns(query, question)
    const found = this.#cache.find(`${keyOf(question)}/${kind}`)
    if (found === undefined) return false
    this.#core.counters.dnsCached++
    dns.addressTo(found.message, query, question, (query[0]! << 8) | query[1]!)
    this.#tie(question.name, found.message, found.records)
    this.#answer(asker, found.message, limit, question)
    return true
  }

  #forward(asker: Asker, query: Uint8Array, question: dns.Question): void {
    if (this.#pending.size >= MAX_PENDING) {
      this.#core.counters.dnsFailed++
      this.#answer(asker, dns.makeAnswer(query, question, dns.SERVER_FAILURE))
      return
    }
    const pending = new Pending(this, asker, query.slice(), question)
    this.#pending.add(pending)
    this.#send(pending)
  }

  /** To the next resolver; when all have been tried often enough, the guest is told that it failed. */
  #send(pending: Pending): void {
    this.#closeSocket(pending)
    while (pending.tries < TRIES) {
      const resolver = this.resolvers[pending.tries++ % this.resolvers.length]!
      pending.id = randomInt(0x1_0000)
      pending.query[0] = pending.id >> 8
      pending.query[1] = pending.id & 255
      pending.fd = tryOpenSocket(resolver, SOCK_DGRAM)
      if (pending.fd < 0) continue
      if (connectSocket(pending.fd, resolver, this.port) === 0) {
        this.#core.watch(pending.fd, pending)
        if (writeSocketBytes(pending.fd, pending.query) > 0) {
          pending.deadline = this.#core.clock() + TRY_MS
          this.#core.wakeAt(pending.deadline)
          return
        }
      }
      this.#closeSocket(pending)
    }
    this.#core.counters.dnsFailed++
    this.#finish(pending, dns.makeAnswer(pending.query, pending.question, dns.SERVER_FAILURE))
  }

  onAnswer(pending: Pending): void {
    if (pending.tcp !== undefined) {
      this.#onTcp(pending, pending.tcp)
      return
    }
    for (;;) {
      const length = readSocketBytes(pending.fd, this.#buffer)
      if (length === -EAGAIN) return
      if (length < 0) {
        this.#send(pending)
        return
      }
      // Anything else is not the answer: somebody guesses.
      if (this.#take(pending, this.#buffer.subarray(0, length))) return
    }
  }

  /** The answer itself, or that it has to be asked for over TCP. False: it is not the answer. */
  #take(pending: Pending, message: Uint8Array): boolean {
    const answered = dns.readQuestion(message)
    if (answered === undefined || ((message[0]! << 8) | message[1]!) !== pending.id) return false
    if ((message[2]! & 0x80) === 0 || keyOf(answered) !== keyOf(pending.question)) return false
    if ((message[2]! & (dns.FLAG_TRUNCATED >> 8)) !== 0 && pending.tcp === undefined) {
      pending.cut = dns.cutAnswer(message, answered)
      this.#sendOverTcp(pending)
      return true
    }
    const records = dns.readRecords(message, answered.end)
    if (records === undefined) return false
    if (this.#tie(answered.name, message, records)) {
      const key = `${keyOf(answered)}/${pending.edns.kind}`
      this.#cache.store(key, message, records, lifeOf(answered, message, records))
      this.#finish(pending, message)
    } else this.#finish(pending, dns.makeAnswer(pending.query, pending.question, dns.REFUSED))
    return true
  }

  /** RFC 7766, section 5: an answer that was cut is asked for again, from the same resolver. */
  #sendOverTcp(pending: Pending): void {
    const resolver = this.resolvers[(pending.tries - 1) % this.resolvers.length]!
    this.#closeSocket(pending)
    this.#core.counters.dnsRetriedOverTcp++
    pending.tcp = new TcpExchange(pending.query)
    pending.fd = tryOpenSocket(resolver, SOCK_STREAM)
    const result = pending.fd < 0 ? -1 : connectSocket(pending.fd, resolver, this.port)
    if (result < 0 && result !== -EINPROGRESS) {
      this.#finish(pending, pending.cut!)
      return
    }
    this.#core.watch(pending.fd, pending)
    pending.deadline = this.#core.clock() + TCP_TRY_MS
    this.#core.wakeAt(pending.deadline)
  }

  #onTcp(pending: Pending, exchange: TcpExchange): void {
    const outcome = exchange.step(pending.fd)
    if (outcome === 'more') return
    if (outcome === 'failed' || !this.#take(pending, outcome)) this.#finish(pending, pending.cut!)
  }

  /**
   * Addresses in an answer belong to the name that was asked for, through whatever aliases. False: one of those is denied, or the
   * name itself since it was asked for, and nothing of the answer may be told.
   */
  #tie(name: string, message: Uint8Array, records: readonly dns.DnsRecord[]): boolean {
    const { names, addresses } = chainOf(name, message, records)
    const denied = this.#policy.mayResolve(name) ? names.find(alias => this.#policy.deniesName(alias)) : name
    if (denied !== undefined) {
      this.#denied(denied)
      return false
    }
    for (const { address, ttl } of addresses) this.#policy.tie(names, address, ttl)
    return true
  }

  #denied(name: string): void {
    this.#core.counters.denied++
    this.onDenied(name)
  }

  #finish(pending: Pending, message: Uint8Array): void {
    this.#closeSocket(pending)
    this.#pending.delete(pending)
    dns.addressTo(message, pending.query, pending.question, pending.guestId)
    this.#answer(pending.asker, message, pending.edns.limit, pending.question)
  }

  #closeSocket(pending: Pending): void {
    if (pending.fd < 0) return
    this.#core.unwatch(pending.fd)
    closeFd(pending.fd)
    pending.fd = -1
  }

  onTimer(now: number): void {
    this.overTcp.onTimer(now)
    for (const pending of this.#pending) {
      if (pending.deadline <= now) {
        if (pending.cut !== undefined) this.#finish(pending, pending.cut)
        else this.#send(pending)
      } else this.#core.wakeAt(pending.deadline)
    }
  }

  close(): void {
    this.overTcp.close()
    for (const pending of this.#pending) this.#closeSocket(pending)
    this.#pending.clear()
  }
}

const keyOf = ({ name, type, class: kind }: dns.Question): string => `${type}/${kind}/${name}`
