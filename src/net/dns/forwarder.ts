/**
 * The DNS server at 10.0.2.3: answers for names of our own, from the cache, or from the host's resolvers. Each question that
 * leaves has a socket of its own, so that its port is as hard to guess as its number.
 */
import { randomInt } from 'node:crypto'
import { closeFd } from '../../host/file.ts'
import { connectSocket, readSocketBytes, SOCK_DGRAM, tryOpenSocket, writeSocketBytes } from '../../host/socket.ts'
import { isMapped, parseAddress } from '../addresses.ts'
import type { EdgeSource, NetCore } from '../core.ts'
import { GATEWAY4, HOST_NAME } from '../description.ts'
import type { Policy } from '../policy.ts'
import { DnsCache } from './cache.ts'
import * as dns from './message.ts'

const MAX_PENDING = 256
const CACHED = 1024
const TRY_MS = 1500
const TRIES = 4
const MAX_MESSAGE = 65_000
const EAGAIN = 11

/** Who asked; the answer goes back the same way. */
export interface Asker {
  readonly guest: Uint8Array
  readonly guestPort: number
  readonly server: Uint8Array
}

export type Reply = (asker: Asker, message: Uint8Array) => void

class Pending implements EdgeSource {
  readonly #forwarder: DnsForwarder
  readonly asker: Asker
  readonly query: Uint8Array
  readonly question: dns.Question
  readonly guestId: number
  id = 0
  fd = -1
  tag = -1
  tries = 0
  deadline = 0

  constructor(forwarder: DnsForwarder, asker: Asker, query: Uint8Array, question: dns.Question) {
    this.#forwarder = forwarder
    this.asker = asker
    this.query = query
    this.question = question
    this.guestId = (query[0]! << 8) | query[1]!
  }

  onEdge(): void {
    this.#forwarder.onAnswer(this)
  }
}

export class DnsForwarder {
  readonly #core: NetCore
  readonly #policy: Policy
  readonly #reply: Reply
  readonly #cache: DnsCache
  readonly #hosts = new Map<string, Uint8Array[]>()
  readonly #pending = new Set<Pending>()
  readonly #buffer = new Uint8Array(MAX_MESSAGE)
  readonly resolvers: readonly Uint8Array[]
  readonly port: number

  constructor(
    core: NetCore,
    policy: Policy,
    resolvers: readonly Uint8Array[],
    hosts: { readonly [name: string]: string },
    reply: Reply,
    port = 53,
  ) {
    this.#core = core
    this.#policy = policy
    this.#reply = reply
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
      return
    }
    counters.dnsQueries++
    const own = this.#hosts.get(question.name)
    if (own !== undefined) this.#reply(asker, this.#ownAnswer(query, question, own))
    else if (!this.#policy.mayResolve(question.name)) {
      counters.denied++
      this.#reply(asker, dns.makeAnswer(query, question, dns.REFUSED))
    } else if (!this.#answerFromCache(asker, query, question)) this.#forward(asker, query, question)
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
    const found = this.#cache.find(keyOf(question), (query[0]! << 8) | query[1]!)
    if (found === undefined) return false
    this.#core.counters.dnsCached++
    this.#tie(question.name, found.message, found.records)
    this.#reply(asker, found.message)
    return true
  }

  #forward(asker: Asker, query: Uint8Array, question: dns.Question): void {
    if (this.#pending.size >= MAX_PENDING) {
      this.#core.counters.dnsFailed++
      this.#reply(asker, dns.makeAnswer(query, question, dns.SERVER_FAILURE))
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
        pending.tag = this.#core.watch(pending.fd, pending)
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
    for (;;) {
      const length = readSocketBytes(pending.fd, this.#buffer)
      if (length === -EAGAIN) return
      if (length < 0) {
        this.#send(pending)
        return
      }
      const message = this.#buffer.subarray(0, length)
      const answered = dns.readQuestion(message)
      // Anything else is not the answer: somebody guesses.
      if (answered === undefined || ((message[0]! << 8) | message[1]!) !== pending.id) continue
      if ((message[2]! & 0x80) === 0 || keyOf(answered) !== keyOf(pending.question)) continue
      const records = dns.readRecords(message, answered.end)
      const truncated = (message[2]! & (dns.FLAG_TRUNCATED >> 8)) !== 0
      if (records !== undefined) {
        this.#tie(answered.name, message, records)
        if (!truncated && (message[3]! & 15) === dns.NO_ERROR) this.#cache.store(keyOf(answered), message, records)
      } else if (!truncated) continue
      this.#finish(pending, message)
      return
    }
  }

  /** Addresses in an answer belong to the name that was asked for, through whatever aliases. */
  #tie(name: string, message: Uint8Array, records: readonly dns.DnsRecord[]): void {
    for (const { type, ttl, dataAt, dataLength } of records) {
      if (type === dns.TYPE_A && dataLength === 4) {
        this.#policy.tie(name, parseAddress(message.subarray(dataAt, dataAt + 4).join('.')), ttl)
      } else if (type === dns.TYPE_AAAA && dataLength === 16) {
        this.#policy.tie(name, message.slice(dataAt, dataAt + 16), ttl)
      }
    }
  }

  #finish(pending: Pending, message: Uint8Array): void {
    this.#closeSocket(pending)
    this.#pending.delete(pending)
    message[0] = pending.guestId >> 8
    message[1] = pending.guestId & 255
    this.#reply(pending.asker, message)
  }

  #closeSocket(pending: Pending): void {
    if (pending.fd < 0) return
    if (pending.tag >= 0) this.#core.unwatch(pending.fd, pending.tag)
    closeFd(pending.fd)
    pending.fd = -1
    pending.tag = -1
  }

  onTimer(now: number): void {
    for (const pending of this.#pending) {
      if (pending.deadline <= now) this.#send(pending)
      else this.#core.wakeAt(pending.deadline)
    }
  }

  close(): void {
    for (const pending of this.#pending) this.#closeSocket(pending)
    this.#pending.clear()
  }
}

const keyOf = ({ name, type, class: kind }: dns.Question): string => `${type}/${kind}/${name}`
