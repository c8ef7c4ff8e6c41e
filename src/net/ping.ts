/**
 * Echo requests of the guest to the world, where this host lets ordinary users ping (icmp(7), ping_group_range). The kernel
 * gives each socket an identifier of its own; the guest's is put back into the replies.
 */
import { closeFd } from '../host/file.ts'
import { connectSocket, readSocketBytes, tryOpenPing, writeSocketBytes } from '../host/socket.ts'
import { isMapped } from './addresses.ts'
import type { EdgeSource, NetCore } from './core.ts'
import { type ChainedFlow, FlowTable } from './flow-table.ts'
import { sendUnreachable } from './icmp.ts'
import { PROTOCOL_ICMP, PROTOCOL_ICMP6 } from './packet.ts'
import { FrameWriter } from './writer.ts'

const MAX_FLOWS = 64
const IDLE_MS = 30_000
const AT_ONCE = 16
const MAX_MESSAGE = 65_000
const EAGAIN = 11

class PingFlow implements ChainedFlow, EdgeSource {
  readonly guest: Uint8Array
  /** The guest's identifier stands where others have a port. */
  readonly guestPort: number
  readonly remote: Uint8Array
  readonly remotePort = 0
  nextInBucket: ChainedFlow | undefined
  lastUsed = 0
  readonly fd: number
  readonly #pings: Pings

  constructor(pings: Pings, fd: number, guest: Uint8Array, id: number, remote: Uint8Array) {
    this.#pings = pings
    this.fd = fd
    this.guest = guest
    this.guestPort = id
    this.remote = remote
  }

  onEdge(): void {
    this.#pings.receive(this)
  }
}

export class Pings {
  readonly #core: NetCore
  readonly #table = new FlowTable<PingFlow>(MAX_FLOWS)

  constructor(core: NetCore) {
    this.#core = core
  }

  get size(): number {
    return this.#table.all.size
  }

  /** Sends one echo request on; `target` is where it really goes. */
  send(guest: Uint8Array, remote: Uint8Array, target: Uint8Array, message: Uint8Array): void {
    const { counters } = this.#core
    const id = (message[4]! << 8) | message[5]!
    let flow = this.#table.find(guest, id, remote, 0)
    if (flow === undefined) {
      const fd = tryOpenPing(target)
      if (fd < 0 || connectSocket(fd, target, 0) < 0) {
        if (fd >= 0) closeFd(fd)
        counters.pingsRefused++
        this.unreachable(guest, remote, message, 'prohibited')
        return
      }
      if (this.#table.full) this.#evict()
      flow = new PingFlow(this, fd, guest.slice(), id, remote.slice())
      this.#core.watch(fd, flow)
      this.#table.add(flow)
    }
    flow.lastUsed = this.#core.clock()
    this.#core.wakeAt(flow.lastUsed + IDLE_MS)
    counters.pings++
    if (writeSocketBytes(flow.fd, message) < 0) this.unreachable(guest, remote, message, 'host')
  }

  /** Quotes the first eight bytes of the guest's own message. */
  unreachable(guest: Uint8Array, remote: Uint8Array, message: Uint8Array, kind: 'prohibited' | 'host'): void {
    const view = new DataView(message.buffer, message.byteOffset)
    const protocol = isMapped(guest) ? PROTOCOL_ICMP : PROTOCOL_ICMP6
    sendUnreachable(
      ...([this.#core, kind, remote, guest, remote, protocol] as const),
      ...([view.getUint16(0), view.getUint16(2), view.getUint32(4)] as const),
    )
  }

  receive(flow: PingFlow): void {
    const { writer } = this.#core
    const at = FrameWriter.transportAt(flow.remote)
    for (let i = 0; i < AT_ONCE; i++) {
      if (!this.#core.roomFor(flow)) return
      const length = readSocketBytes(flow.fd, writer.bytes.subarray(at, at + MAX_MESSAGE))
      if (length === -EAGAIN || length < 8) return
      const six = !isMapped(flow.remote)
      writer.begin(flow.remote, flow.guest, six ? PROTOCOL_ICMP6 : PROTOCOL_ICMP, length)
      writer.view.setUint16(at + 4, flow.guestPort)
      this.#core.emit(writer.finish(2, six))
    }
    this.#core.resumeLater(flow)
  }

  #evict(): void {
    let idlest: PingFlow | undefined
    for (const flow of this.#table.all) if (idlest === undefined || flow.lastUsed < idlest.lastUsed) idlest = flow
    if (idlest !== undefined) this.#end(idlest)
  }

  #end(flow: PingFlow): void {
    this.#table.remove(flow)
    this.#core.unwatch(flow.fd)
    closeFd(flow.fd)
  }

  onTimer(now: number): void {
    for (const flow of this.#table.all) {
      if (now - flow.lastUsed >= IDLE_MS) this.#end(flow)
      else this.#core.wakeAt(flow.lastUsed + IDLE_MS)
    }
  }

  close(): void {
    for (const flow of [...this.#table.all]) this.#end(flow)
  }
}
