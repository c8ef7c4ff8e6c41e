/** UDP flows: a connected host socket for each pair of ends the guest speaks between. Bounded; the idlest goes first. */
import { closeFd } from '../host/file.ts'
import type { IoVector } from '../host/io-vector.ts'
import { connectSocket, readSocketBytes, SOCK_DGRAM, tryOpenSocket, writeSocket } from '../host/socket.ts'
import type { EdgeSource, NetCore } from './core.ts'
import { type ChainedFlow, FlowTable } from './flow-table.ts'
import { sendUnreachable } from './icmp.ts'
import { PROTOCOL_UDP } from './packet.ts'
import { FrameWriter } from './writer.ts'

const MAX_FLOWS = 1024
const IDLE_MS = 60_000
const MAX_LOOKED = 32
const MAX_DATAGRAM = 65_507
const AT_ONCE = 64
const EAGAIN = 11
const ECONNREFUSED = 111
const ENETUNREACH = 101
const EHOSTUNREACH = 113

export class UdpFlow implements ChainedFlow, EdgeSource {
  readonly protocol = 'udp'
  readonly guest: Uint8Array
  readonly guestPort: number
  readonly remote: Uint8Array
  readonly remotePort: number
  nextInBucket: ChainedFlow | undefined
  fd = -1
  /** Another guest's end, by a Unix socket. */
  unix = false
  lastUsed = 0
  bytesFromGuest = 0
  bytesToGuest = 0
  packetsFromGuest = 0
  packetsToGuest = 0
  readonly #flows: UdpFlows

  constructor(flows: UdpFlows, guest: Uint8Array, guestPort: number, remote: Uint8Array, remotePort: number) {
    this.#flows = flows
    this.guest = guest
    this.guestPort = guestPort
    this.remote = remote
    this.remotePort = remotePort
  }

  onEdge(): void {
    this.#flows.receive(this)
  }
}

export class UdpFlows {
  readonly #core: NetCore
  readonly table = new FlowTable<UdpFlow>(MAX_FLOWS)

  constructor(core: NetCore) {
    this.#core = core
  }

  /** A new flow between these ends, unless the host has no socket left for it; `target` is where the host's packets really go. */
  open(
    guest: Uint8Array,
    guestPort: number,
    remote: Uint8Array,
    remotePort: number,
    target: Uint8Array,
  ): UdpFlow | undefined {
    const flow = new UdpFlow(this, guest.slice(), guestPort, remote.slice(), remotePort)
    if (this.table.full) this.#evict()
    flow.fd = tryOpenSocket(target, SOCK_DGRAM)
    if (flow.fd < 0) {
      this.#core.counters.flowsRefused++
      return undefined
    }
    const failure = connectSocket(flow.fd, target, remotePort)
    if (failure < 0) this.#unreachable(flow, -failure)
    this.#core.watch(flow.fd, flow)
    this.table.add(flow)
    this.#core.counters.udpFlows++
    this.#core.wakeAt(this.#core.clock() + IDLE_MS)
    return flow
  }

  /** A flow over a connected Unix socket that keeps the datagrams apart: another guest is at its other end. */
  adopt(fd: number, guest: Uint8Array, guestPort: number, remote: Uint8Array, remotePort: number): UdpFlow {
    const old = this.table.find(guest, guestPort, remote, remotePort)
    if (old !== undefined) this.end(old)
    if (this.table.full) this.#evict()
    const flow = new UdpFlow(this, guest.slice(), guestPort, remote.slice(), remotePort)
    flow.fd = fd
    flow.unix = true
    flow.lastUsed = this.#core.clock()
    this.#core.watch(fd, flow)
    this.table.add(flow)
    this.#core.counters.udpFlows++
    this.#core.wakeAt(flow.lastUsed + IDLE_MS)
    return flow
  }

  send(flow: UdpFlow, payload: IoVector): void {
    flow.lastUsed = this.#core.clock()
    flow.packetsFromGuest++
    flow.bytesFromGuest += payload.byteLength
    const sent = writeSocket(flow.fd, payload)
    if (sent >= 0 || sent === -EAGAIN) return
    if (flow.unix) {
      this.end(flow)
      return
    }
    this.#unreachable(flow, -sent)
    // The error was one of an earlier datagram; this one has not been sent yet.
    if (sent === -ECONNREFUSED) writeSocket(flow.fd, payload)
  }

  #unreachable(flow: UdpFlow, errno: number): void {
    const kind =
      errno === ECONNREFUSED ? 'port' : errno === EHOSTUNREACH ? 'host' : errno === ENETUNREACH ? 'network' : undefined
    if (kind === undefined) return
    const { guest, guestPort, remote, remotePort } = flow
    sendUnreachable(this.#core, kind, remote, guest, remote, PROTOCOL_UDP, guestPort, remotePort)
  }

  receive(flow: UdpFlow): void {
    const { writer } = this.#core
    const at = FrameWriter.transportAt(flow.remote) + 8
    const room = writer.bytes.subarray(at, at + MAX_DATAGRAM)
    for (let i = 0; i < AT_ONCE; i++) {
      if (!this.#core.roomFor(flow)) return
      const length = readSocketBytes(flow.fd, room)
      if (length === -EAGAIN) return
      // An empty read is an empty datagram, or the end of a Unix socket, which no guest can tell from one.
      if (flow.unix && length <= 0) {
        this.end(flow)
        return
      }
      if (length < 0) {
        this.#unreachable(flow, -length)
        continue
      }
      flow.lastUsed = this.#core.clock()
      flow.packetsToGuest++
      flow.bytesToGuest += length
      this.emit(flow.remote, flow.remotePort, flow.guest, flow.guestPort, length)
    }
    // More may be there, and no edge will tell: whoever empties the ring comes back here.
    this.#core.resumeLater(flow)
  }

  /** Queues the datagram whose payload is in the writer already. */
  emit(source: Uint8Array, sourcePort: number, guest: Uint8Array, guestPort: number, length: number): void {
    const { writer } = this.#core
    const at = writer.begin(source, guest, PROTOCOL_UDP, length + 8)
    writer.view.setUint16(at, sourcePort)
    writer.view.setUint16(at + 2, guestPort)
    writer.view.setUint16(at + 4, length + 8)
    this.#core.emit(writer.finish(6))
  }

  #evict(): void {
    let idlest: UdpFlow | undefined
    let looked = 0
    // The idlest of the oldest: to look at all of them for each would make a flood dearer than it has to be.
    for (const flow of this.table.all) {
      if (idlest === undefined || flow.lastUsed < idlest.lastUsed) idlest = flow
      if (++looked === MAX_LOOKED) break
    }
    if (idlest === undefined) return
    this.#core.counters.udpEvicted++
    this.end(idlest)
  }

  end(flow: UdpFlow): void {
    if (!this.table.all.has(flow)) return
    this.table.remove(flow)
    this.#core.unwatch(flow.fd)
    closeFd(flow.fd)
  }

  onTimer(now: number): void {
    for (const flow of this.table.all) {
      if (now - flow.lastUsed >= IDLE_MS) this.end(flow)
      else this.#core.wakeAt(flow.lastUsed + IDLE_MS)
    }
  }

  close(): void {
    for (const flow of [...this.table.all]) this.end(flow)
  }
}
