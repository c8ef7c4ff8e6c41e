/**
 * A way into the guest that is no host port: a Unix socket. Whoever connects says which port it wants (`visitorHeader`),
 * and reads one byte when the guest has taken the connection; an end instead means that it has not. Used by `box.connect`
 * and by the boxes of a named network, between which no packet ever touches the host's network.
 */
import { unlinkSync } from 'node:fs'
import { closeFd } from '../host/file.ts'
import { acceptUnix, listenUnix, readBytes, SOCK_SEQPACKET, SOCK_STREAM, WOULD_BLOCK } from '../host/unix-socket.ts'
import type { EdgeSource, NetCore } from './core.ts'
import { GUEST4 } from './description.ts'
import type { Tcp } from './tcp/tcp.ts'
import type { UdpFlows } from './udp.ts'
import { HEADER_BYTES, readVisitorHeader } from './visitor.ts'

/** Visitors that have not said what they want yet. */
const MAX_WAITING = 256
const AT_ONCE = 64
const BACKLOG = 512

export interface EntranceOptions {
  readonly path: string
  readonly protocol: 'tcp' | 'udp'
  /** Where visitors seem to come from; undefined: from where they say, if `mayComeFrom` agrees. */
  readonly from?: Uint8Array
  readonly mayComeFrom?: (address: Uint8Array) => boolean
}

/** A connection whose header has not come in full. */
class Visitor implements EdgeSource {
  readonly #entrance: Entrance
  readonly fd: number
  readonly header = new Uint8Array(HEADER_BYTES)
  filled = 0

  constructor(entrance: Entrance, fd: number) {
    this.#entrance = entrance
    this.fd = fd
  }

  onEdge(): void {
    this.#entrance.onVisitor(this)
  }
}

export class Entrance implements EdgeSource {
  readonly #core: NetCore
  readonly #tcp: Tcp
  readonly #udp: UdpFlows
  readonly #options: EntranceOptions
  readonly #fd: number
  readonly #waiting = new Set<Visitor>()

  constructor(core: NetCore, tcp: Tcp, udp: UdpFlows, options: EntranceOptions) {
    this.#core = core
    this.#tcp = tcp
    this.#udp = udp
    this.#options = options
    this.#fd = listenUnix(options.path, BACKLOG, options.protocol === 'tcp' ? SOCK_STREAM : SOCK_SEQPACKET)
    core.watch(this.#fd, this)
  }

  onEdge(): void {
    for (let i = 0; i < AT_ONCE; i++) {
      const fd = acceptUnix(this.#fd)
      if (fd < 0) return
      if (this.#waiting.size >= MAX_WAITING) {
        this.#core.counters.flowsRefused++
        closeFd(fd)
        continue
      }
      const visitor = new Visitor(this, fd)
      this.#waiting.add(visitor)
      this.#core.watch(fd, visitor)
      this.onVisitor(visitor)
    }
    // More may wait in the backlog, and no edge will tell.
    this.#core.resumeLater(this)
    this.#core.wakeAt(this.#core.clock() + 1)
  }

  onVisitor(visitor: Visitor): void {
    const got = readBytes(visitor.fd, visitor.header.subarray(visitor.filled))
    if (got === WOULD_BLOCK) return
    visitor.filled += Math.max(got, 0)
    if (got > 0 && visitor.filled < HEADER_BYTES && this.#options.protocol === 'tcp') return
    this.#waiting.delete(visitor)
    this.#core.unwatch(visitor.fd)
    const wish = visitor.filled === HEADER_BYTES ? readVisitorHeader(visitor.header) : undefined
    const from = this.#options.from ?? wish?.from
    const welcome = from !== undefined && (this.#options.mayComeFrom?.(from) ?? true)
    if (wish === undefined || from === undefined || !welcome) {
      this.#core.counters.malformed++
      closeFd(visitor.fd)
    } else if (this.#options.protocol === 'tcp') this.#tcp.accept(visitor.fd, GUEST4, wish.port, from, 'greeted')
    else this.#udp.adopt(visitor.fd, GUEST4, wish.port, from, wish.fromPort)
    this.#core.ready()
  }

  close(): void {
    for (const { fd } of this.#waiting) {
      this.#core.unwatch(fd)
      closeFd(fd)
    }
    this.#waiting.clear()
    this.#core.unwatch(this.#fd)
    closeFd(this.#fd)
    try {
      unlinkSync(this.#options.path)
    } catch {
      // Its folder may be gone already.
    }
  }
}
