/** All TCP connections of one guest: how they begin and end, and what their host sockets and timers do. */
import { randomInt } from 'node:crypto'
import { closeFd } from '../../host/file.ts'
import type { IoVector } from '../../host/io-vector.ts'
import { POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP } from '../../host/poll.ts'
import {
  abortSocket,
  connectSocket,
  EINPROGRESS,
  keepAlive,
  readableBytes,
  readSocketBytes,
  SOCK_STREAM,
  socketError,
  tryOpenSocket,
} from '../../host/socket.ts'
import type { NetCore } from '../core.ts'
import { FlowTable } from '../flow-table.ts'
import { sendUnreachable } from '../icmp.ts'
import { type Packet, PROTOCOL_TCP } from '../packet.ts'
import * as state from './flow.ts'
import { TcpFlow } from './flow.ts'
import { MemoryPool } from './held-data.ts'
import { type FlowEnds, TcpInput } from './input.ts'
import { TcpOutput } from './output.ts'
import { ACK, advance, distance, RST, Segment, SYN, TCP_HEADER } from './segment.ts'
import { MOST_TAKEN } from './taken-data.ts'

const MAX_FLOWS = 4096
const HELD_LIMIT = 64 << 20
const SYN_RETRIES = 6
const DATA_RETRIES = 10
const MAX_WAIT_MS = 60_000
const EHOSTUNREACH = 113
const ENETUNREACH = 101
const ETIMEDOUT = 110
const ECONNREFUSED = 111
const EAGAIN = 11
const EPHEMERAL = 32_768
/** Two hours, as RFC 9293 has it at least; then nine questions, about a minute apart. */
const KEEP_ALIVE_MS = 7_200_000
const KEEP_ALIVE_LOOK_MS = 60_000
const KEEP_ALIVE_PROBES = 9

/** Where a connection of the guest really goes: to an address, or into a Unix socket that is connected already. */
export type Target =
  | { readonly address: Uint8Array; readonly port: number }
  /** `greets`: the other end says when the connection is taken. */
  | { readonly fd: number; readonly greets: boolean }

/** Undefined: nowhere, it is refused. */
export type Route = (remote: Uint8Array, port: number) => Target | undefined

export class Tcp implements FlowEnds {
  readonly #core: NetCore
  readonly output: TcpOutput
  readonly #input: TcpInput
  readonly #segment = new Segment()
  readonly #pool = new MemoryPool(HELD_LIMIT)
  readonly #route: Route
  readonly table = new FlowTable<TcpFlow>(MAX_FLOWS)
  readonly #greeting = new Uint8Array(1)
  #nextPort = EPHEMERAL
  readonly #onEdge = (flow: TcpFlow, events: number): void => this.#edge(flow, events)

  constructor(core: NetCore, route: Route, kernelOffsets = true) {
    this.#core = core
    this.#route = route
    this.output = new TcpOutput(core, kernelOffsets)
    this.output.onBroken = flow => this.fail(flow)
    this.#input = new TcpInput(core, this.output, this)
  }

  /** Bytes of the guest's data that are held here, in all. */
  get held(): number {
    return this.#pool.used
  }

  /** One packet of the guest whose checksum is right. */
  receive(packet: Packet, frame: IoVector): void {
    const segment = this.#segment
    const { transportAt, transportLength, source, destination } = packet
    if (!segment.parse(packet.bytes, packet.view, transportAt, packet.headLength, transportLength)) {
      this.#core.counters.malformed++
      return
    }
    const { sourcePort, destinationPort, flags } = segment
    let flow = this.table.find(source, sourcePort, destination, destinationPort)
    const opens = (flags & (SYN | ACK | RST)) === SYN
    if (flow?.state === state.TIME_WAIT && opens && distance(segment.sequence, flow.expected) > 0) {
      this.end(flow, false)
      flow = undefined
    }
    if (flow !== undefined) this.#input.segment(flow, segment, frame, transportAt + segment.headerLength)
    else if (opens) this.#open(source, destination, segment)
    else if ((flags & RST) === 0) this.#refuse(source, destination, segment)
  }

  #open(source: Uint8Array, destination: Uint8Array, segment: Segment): void {
    if (this.table.full) {
      this.#core.counters.flowsRefused++
      this.#refuse(source, destination, segment)
      return
    }
    const target = this.#route(destination, segment.destinationPort)
    if (target === undefined) {
      this.#refuse(source, destination, segment)
      return
    }
    const fd = 'fd' in target ? target.fd : tryOpenSocket(target.address, SOCK_STREAM)
    if (fd < 0) {
      this.#core.counters.flowsRefused++
      this.#refuse(source, destination, segment)
      return
    }
    const flow = this.#make(fd, source.slice(), segment.sourcePort, destination.slice(), segment.destinationPort)
    this.#input.takeSyn(flow, segment)
    flow.prompt = this.output.wasPrompt(flow)
    if ('fd' in target) {
      flow.unix = true
      flow.greeting = target.greets ? 'read' : 'none'
      return
    }
    const result = connectSocket(fd, target.address, target.port)
    // A loopback connects at once.
    if (result === 0) this.#connected(flow)
    else if (result !== -EINPROGRESS) this.#connectFailed(flow, -result)
  }

  #make(fd: number, guest: Uint8Array, guestPort: number, remote: Uint8Array, remotePort: number): TcpFlow {
    const flow = new TcpFlow(guest, guestPort, remote, remotePort, this.#pool, this.#onEdge)
    flow.fd = fd
    this.#core.watch(fd, flow)
    // RFC 6528 asks for numbers that cannot be guessed.
    flow.initialSend = randomInt(0x1_0000_0000)
    flow.unacknowledged = flow.initialSend
    flow.next = advance(flow.initialSend, 1)
    flow.highest = flow.next
    flow.lastHeard = this.#core.clock()
    flow.openedAt = flow.lastHeard
    this.table.add(flow)
    this.#core.wakeAt(flow.lastHeard + KEEP_ALIVE_LOOK_MS)
    this.#core.counters.tcpOpened++
    return flow
  }

  /** A connection from the host, by an accepted socket, which is taken over. False: it could not be, and is closed. */
  accept(
    fd: number,
    guest: Uint8Array,
    guestPort: number,
    from: Uint8Array,
    kind: 'inet' | 'unix' | 'greeted' = 'inet',
  ): boolean {
    let port = 0
    for (let tries = 0; tries < 4096 && port === 0; tries++) {
      const candidate = this.#nextPort
      this.#nextPort = candidate === 65_535 ? EPHEMERAL : candidate + 1
      if (this.table.find(guest, guestPort, from, candidate) === undefined) port = candidate
    }
    if (port === 0 || this.table.full) {
      this.#core.counters.flowsRefused++
      abortSocket(fd)
      return false
    }
    const flow = this.#make(fd, guest.slice(), guestPort, from.slice(), port)
    flow.unix = kind !== 'inet'
    if (kind === 'greeted') flow.greeting = 'write'
    flow.scale = 0
    flow.sackPermitted = true
    flow.state = state.SYN_SENT
    this.output.sendControl(flow, SYN, flow.initialSend)
    this.#arm(flow, flow.roundTrip.timeout)
    return true
  }

  #arm(flow: TcpFlow, ms: number): void {
    flow.deadline = this.#core.clock() + ms
    this.#core.wakeAt(flow.deadline)
  }

  #edge(flow: TcpFlow, events: number): void {
    if (flow.state === state.CLOSED) return
    if (flow.state === state.CONNECTING) {
      if ((events & (POLLOUT | POLLERR | POLLHUP)) === 0) return
      const errno = flow.greeting === 'read' ? this.#greeted(flow) : socketError(flow.fd)
      if (errno === EAGAIN) return
      if (errno !== 0) {
        this.#connectFailed(flow, errno)
        return
      }
      this.#connected(flow)
    }
    if ((events & POLLERR) !== 0 && socketError(flow.fd) !== 0) {
      this.fail(flow)
      return
    }
    if ((events & (POLLIN | POLLRDHUP | POLLHUP)) !== 0) {
      if (!this.#look(flow)) {
        this.fail(flow)
        return
      }
      if ((events & (POLLRDHUP | POLLHUP)) !== 0) flow.ended = true
      this.output.enqueue(flow)
    }
    if ((events & POLLOUT) !== 0 && flow.blocked) {
      flow.blocked = false
      this.#input.drain(flow)
    }
  }

  /** Sees what the socket has now; false: it is broken. */
  #look(flow: TcpFlow): boolean {
    // Behind a silence it is often little, and all.
    if (flow.available === 0) {
      const got = flow.taken.take(flow.fd)
      if (got === 0) flow.ended = true
      if (got < 0) return got === -EAGAIN
      flow.available = got
      if (got < MOST_TAKEN) return true
    }
    flow.available = flow.taken.length + Math.max(0, readableBytes(flow.fd))
    return true
  }

  /** The host's end is there: the guest's SYN is answered. */
  #connected(flow: TcpFlow): void {
    flow.state = state.SYN_RECEIVED
    this.output.sendControl(flow, SYN | ACK, flow.initialSend)
    this.#arm(flow, flow.roundTrip.timeout)
  }

  /** 0 when another guest has taken the connection, EAGAIN when it has not said so yet. */
  #greeted(flow: TcpFlow): number {
    const got = readSocketBytes(flow.fd, this.#greeting)
    if (got === -EAGAIN) return EAGAIN
    if (got !== 1) return ECONNREFUSED
    flow.greeting = 'none'
    return 0
  }

  /** The host could not connect: the guest hears why. */
  #connectFailed(flow: TcpFlow, errno: number): void {
    this.#core.counters.tcpFailed++
    const { guest, guestPort, remote, remotePort, initialReceive } = flow
    if (errno === EHOSTUNREACH || errno === ENETUNREACH || errno === ETIMEDOUT) {
      const kind = errno === ENETUNREACH ? 'network' : 'host'
      sendUnreachable(this.#core, kind, remote, guest, remote, PROTOCOL_TCP, guestPort, remotePort, initialReceive)
      this.end(flow, true)
    } else {
      flow.next = 0
      this.fail(flow)
    }
  }

  /** 3.10.7.1: a segment for no connection is answered with a reset. */
  #refuse(source: Uint8Array, destination: Uint8Array, segment: Segment): void {
    this.#core.counters.tcpResets++
    const { writer } = this.#core
    const at = writer.begin(destination, source, PROTOCOL_TCP, TCP_HEADER)
    const { view, bytes } = writer
    const acked = (segment.flags & ACK) !== 0
    const end = advance(segment.sequence, segment.length + (segment.flags & SYN ? 1 : 0) + (segment.flags & 1))
    view.setUint16(at, segment.destinationPort)
    view.setUint16(at + 2, segment.sourcePort)
    view.setUint32(at + 4, acked ? segment.acknowledgment : 0)
    view.setUint32(at + 8, acked ? 0 : end)
    view.setUint32(at + 12, 0x5000_0000 | ((acked ? RST : RST | ACK) << 16))
    view.setUint32(at + 16, 0)
    bytes[at + 12] = 0x50
    this.#core.emit(writer.finish(16))
  }

  refuse(flow: TcpFlow, segment: Segment): void {
    this.#refuse(flow.guest, flow.remote, segment)
  }

  fail(flow: TcpFlow): void {
    if (flow.state === state.CLOSED) return
    this.#core.counters.tcpResets++
    this.output.sendReset(flow)
    this.end(flow, true)
  }

  end(flow: TcpFlow, abort: boolean): void {
    if (flow.state === state.CLOSED) return
    flow.state = state.CLOSED
    this.table.remove(flow)
    this.output.forget(flow)
    this.#core.forget(flow.fd)
    if (abort) abortSocket(flow.fd)
    else closeFd(flow.fd)
    flow.held.release()
    flow.taken.release()
  }

  onTimer(now: number): void {
    this.output.onTimer(now)
    if (this.table.all.size > 0) this.#core.wakeAt(now + KEEP_ALIVE_LOOK_MS)
    for (const flow of this.table.all) {
      // Hours before it matters, and for those only that live so long.
      if (!flow.asksPeer && now - flow.openedAt >= KEEP_ALIVE_LOOK_MS) this.#askPeer(flow)
      if (flow.deadline === 0) {
        if (flow.state >= state.ESTABLISHED && now - flow.lastHeard >= KEEP_ALIVE_MS) this.#keepAlive(flow, now)
        continue
      }
      if (flow.deadline <= now) {
        flow.deadline = 0
        this.#expired(flow, now)
      } else this.#core.wakeAt(flow.deadline)
    }
  }

  #askPeer(flow: TcpFlow): void {
    flow.asksPeer = true
    if (!flow.unix) keepAlive(flow.fd)
  }

  /** A guest that has been silent for long is asked whether it still knows the connection (RFC 9293, 3.8.4). */
  #keepAlive(flow: TcpFlow, now: number): void {
    if (now - flow.lastHeard >= KEEP_ALIVE_MS + KEEP_ALIVE_PROBES * KEEP_ALIVE_LOOK_MS) {
      this.fail(flow)
      return
    }
    this.#core.counters.keepAlives++
    this.output.sendControl(flow, ACK, advance(flow.unacknowledged, -1))
  }

  #expired(flow: TcpFlow, now: number): void {
    switch (flow.state) {
      case state.TIME_WAIT:
        this.end(flow, false)
        return
      case state.SYN_SENT:
      case state.SYN_RECEIVED:
        if (flow.retries++ >= SYN_RETRIES) {
          this.fail(flow)
          return
        }
        flow.roundTrip.backOff()
        this.output.sendControl(flow, flow.state === state.SYN_SENT ? SYN : SYN | ACK, flow.initialSend)
        this.#arm(flow, flow.roundTrip.timeout)
        return
    }
    if (flow.highest !== flow.unacknowledged) {
      this.#retransmit(flow)
      return
    }
    if (flow.available > 0 && flow.state !== state.CONNECTING) this.#probe(flow, now)
  }

  /** RFC 6298, 5.4 to 5.6. What was selectively acknowledged is forgotten: the guest may have thrown it away (RFC 2018, 8). */
  #retransmit(flow: TcpFlow): void {
    if (flow.retries++ >= DATA_RETRIES) {
      this.fail(flow)
      return
    }
    flow.roundTrip.backOff()
    flow.next = flow.unacknowledged
    flow.sacked.clear()
    flow.recovering = false
    flow.duplicates = 0
    flow.timedAt = 0
    flow.congestion = flow.mss
    if (flow.window === 0) {
      this.#core.counters.zeroWindowProbes++
      this.output.sendControl(flow, ACK, advance(flow.unacknowledged, -1))
    }
    this.output.enqueue(flow)
    this.#arm(flow, flow.roundTrip.timeout)
  }

  /** The window is closed: a segment from before it makes the guest say when it opens (RFC 9293, 3.8.6.1). */
  #probe(flow: TcpFlow, now: number): void {
    if (flow.window >= flow.mss) {
      this.output.enqueue(flow)
      return
    }
    const answered = now - flow.lastHeard < 2 * MAX_WAIT_MS
    if (!answered && flow.retries > DATA_RETRIES) {
      this.fail(flow)
      return
    }
    this.#core.counters.zeroWindowProbes++
    this.output.sendControl(flow, ACK, advance(flow.unacknowledged, -1))
    this.output.enqueue(flow)
    this.#arm(flow, Math.min(flow.roundTrip.timeout * 2 ** Math.min(flow.retries++, 8), MAX_WAIT_MS))
  }

  close(): void {
    for (const flow of [...this.table.all]) this.end(flow, true)
  }
}
