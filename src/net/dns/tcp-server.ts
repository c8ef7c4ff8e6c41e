/**
 * Questions over TCP (RFC 7766), for answers that are too long for a datagram. The guest's connection is an ordinary flow
 * whose host socket is one end of a pair; the other end is read here.
 */
import { closeFd } from '../../host/file.ts'
import { readBytes, unixPair, WOULD_BLOCK, writeBytes } from '../../host/unix-socket.ts'
import type { EdgeSource, NetCore } from '../core.ts'

const MAX_SESSIONS = 64
/** Questions of one session that wait for their answers. */
const MAX_OPEN = 32
const IDLE_MS = 30_000
const MAX_QUERY = 4096

export class DnsSession implements EdgeSource {
  readonly #server: DnsTcpServer
  readonly fd: number
  readonly buffer = new Uint8Array(2 + MAX_QUERY)
  filled = 0
  open = 0
  closed = false
  lastUsed = 0

  constructor(server: DnsTcpServer, fd: number) {
    this.#server = server
    this.fd = fd
  }

  onEdge(): void {
    this.#server.receive(this)
  }

  /** An answer, with its length before it. A guest that does not read its answers loses the connection. */
  reply(message: Uint8Array): void {
    this.open--
    if (this.closed) return
    const framed = new Uint8Array(2 + message.length)
    framed[0] = message.length >> 8
    framed[1] = message.length & 255
    framed.set(message, 2)
    if (writeBytes(this.fd, framed) !== framed.length) this.#server.end(this)
  }
}

export class DnsTcpServer {
  readonly #core: NetCore
  readonly #ask: (session: DnsSession, query: Uint8Array) => void
  readonly #sessions = new Set<DnsSession>()

  constructor(core: NetCore, ask: (session: DnsSession, query: Uint8Array) => void) {
    this.#core = core
    this.#ask = ask
  }

  /** The host socket for a new connection of the guest, or -1. */
  open(): number {
    const pair = this.#sessions.size < MAX_SESSIONS ? unixPair() : undefined
    if (pair === undefined) return -1
    const session = new DnsSession(this, pair[1])
    this.#core.watch(session.fd, session)
    session.lastUsed = this.#core.clock()
    this.#sessions.add(session)
    this.#core.wakeAt(session.lastUsed + IDLE_MS)
    return pair[0]
  }

  receive(session: DnsSession): void {
    for (;;) {
      const got = readBytes(session.fd, session.buffer.subarray(session.filled))
      if (got === WOULD_BLOCK) return
      if (got <= 0) {
        this.end(session)
        return
      }
      session.filled += got
      session.lastUsed = this.#core.clock()
      if (!this.#takeQueries(session)) {
        this.#core.counters.malformed++
        this.end(session)
        return
      }
      if (session.closed) return
    }
  }

  /** False: too long, or too many. */
  #takeQueries(session: DnsSession): boolean {
    const { buffer } = session
    while (session.filled >= 2 && !session.closed) {
      const length = (buffer[0]! << 8) | buffer[1]!
      if (length > MAX_QUERY || session.open >= MAX_OPEN) return false
      if (session.filled < 2 + length) return true
      const query = buffer.slice(2, 2 + length)
      buffer.copyWithin(0, 2 + length, session.filled)
      session.filled -= 2 + length
      session.open++
      this.#core.counters.dnsOverTcp++
      this.#ask(session, query)
    }
    return true
  }

  end(session: DnsSession): void {
    if (session.closed) return
    session.closed = true
    this.#sessions.delete(session)
    this.#core.unwatch(session.fd)
    closeFd(session.fd)
  }

  onTimer(now: number): void {
    for (const session of this.#sessions) {
      if (now - session.lastUsed >= IDLE_MS) this.end(session)
      else this.#core.wakeAt(session.lastUsed + IDLE_MS)
    }
  }

  close(): void {
    for (const session of [...this.#sessions]) this.end(session)
  }
}
