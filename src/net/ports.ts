/** Ports of the host that lead into the guest: TCP listeners and UDP sockets, opened and closed while the guest runs. */
import { unlinkSync } from 'node:fs'
import { HostError } from '../host/errors.ts'
import { closeFd } from '../host/file.ts'
import {
  acceptSocket,
  listenSocket,
  PeerAddress,
  receiveFrom,
  SOCK_DGRAM,
  SOCK_STREAM,
  sendTo,
} from '../host/socket.ts'
import { acceptUnix, listenUnix } from '../host/unix-socket.ts'
import { parseAddress, sameAddress } from './addresses.ts'
import type { EdgeSource, NetCore } from './core.ts'
import { GATEWAY4, GUEST4, type PortForward } from './description.ts'
import { NetError } from './errors.ts'
import type { Tcp } from './tcp/tcp.ts'
import type { UdpFlows } from './udp.ts'
import { FrameWriter } from './writer.ts'

const AT_ONCE = 64
const MAX_DATAGRAM = 65_507
const MAX_PEERS = 256
const FIRST_PEER_PORT = 20_000
const MAX_RANGE = 1024

/** A port that is open, with the host port that was chosen for it. */
export interface OpenPort {
  readonly protocol: 'tcp' | 'udp'
  readonly bind: string
  readonly host: number
  readonly guest: number
}

interface PortListener extends EdgeSource {
  readonly open: OpenPort
  close(): void
}

class TcpListener implements PortListener {
  readonly open: OpenPort
  readonly #core: NetCore
  readonly #tcp: Tcp
  readonly #fd: number
  readonly #peer = new PeerAddress()

  constructor(core: NetCore, tcp: Tcp, fd: number, open: OpenPort) {
    this.#core = core
    this.#tcp = tcp
    this.#fd = fd
    this.open = open
    core.watch(fd, this)
  }

  onEdge(): void {
    for (let i = 0; i < AT_ONCE; i++) {
      const fd = acceptSocket(this.#fd, this.#peer)
      if (fd < 0) return
      this.#tcp.accept(fd, GUEST4, this.open.guest, GATEWAY4)
    }
    // More may wait in the backlog, and no edge will tell.
    this.#core.resumeLater(this)
    this.#core.wakeAt(this.#core.clock() + 1)
  }

  close(): void {
    this.#core.unwatch(this.#fd)
    closeFd(this.#fd)
  }
}

/** Each peer of the host is a port of the gateway's to the guest, so that its answers find the way back. */
class UdpListener implements PortListener {
  readonly open: OpenPort
  readonly #core: NetCore
  readonly #udp: UdpFlows
  readonly #fd: number
  readonly #from = new PeerAddress()
  readonly #peers: { readonly address: Uint8Array; readonly port: number }[] = []
  readonly firstPort: number
  #nextPeer = 0

  constructor(core: NetCore, udp: UdpFlows, fd: number, open: OpenPort, firstPort: number) {
    this.#core = core
    this.#udp = udp
    this.#fd = fd
    this.open = open
    this.firstPort = firstPort
    core.watch(fd, this)
  }

  onEdge(): void {
    const { writer } = this.#core
    const at = FrameWriter.transportAt(GATEWAY4) + 8
    for (let i = 0; i < AT_ONCE; i++) {
      if (!this.#core.roomFor(this)) return
      const length = receiveFrom(this.#fd, writer.bytes.subarray(at, at + MAX_DATAGRAM), this.#from)
      if (length < 0) return
      const peer = this.#peerOf(this.#from)
      this.#udp.emit(GATEWAY4, this.firstPort + peer, GUEST4, this.open.guest, length)
    }
    this.#core.resumeLater(this)
  }

  #peerOf(from: PeerAddress): number {
    const known = this.#peers.findIndex(peer => peer.port === from.port && sameAddress(peer.address, from.address))
    if (known >= 0) return known
    const place = this.#nextPeer
    this.#nextPeer = (place + 1) % MAX_PEERS
    this.#peers[place] = { address: from.address.slice(), port: from.port }
    return place
  }

  has(port: number): boolean {
    return this.#peers[port - this.firstPort] !== undefined
  }

  /** An answer of the guest to the peer behind port `port` of the gateway. */
  answer(port: number, payload: Uint8Array): void {
    const peer = this.#peers[port - this.firstPort]
    if (peer !== undefined) sendTo(this.#fd, payload, peer.address, peer.port)
  }

  close(): void {
    this.#core.unwatch(this.#fd)
    closeFd(this.#fd)
  }
}

/** Connections to a Unix socket that lead to one port of the guest. */
class UnixListener implements EdgeSource {
  readonly #core: NetCore
  readonly #tcp: Tcp
  readonly #fd: number
  readonly guest: number
  readonly #path: string

  constructor(core: NetCore, tcp: Tcp, path: string, guest: number) {
    this.#core = core
    this.#tcp = tcp
    this.guest = guest
    this.#path = path
    this.#fd = listenUnix(path)
    core.watch(this.#fd, this)
  }

  onEdge(): void {
    for (let fd = acceptUnix(this.#fd); fd >= 0; fd = acceptUnix(this.#fd)) {
      this.#tcp.accept(fd, GUEST4, this.guest, GATEWAY4, 'unix')
    }
  }

  close(): void {
    this.#core.unwatch(this.#fd)
    closeFd(this.#fd)
    try {
      unlinkSync(this.#path)
    } catch {
      // Somebody has removed it already.
    }
  }
}

export class Ports {
  readonly #core: NetCore
  readonly #tcp: Tcp
  readonly #udp: UdpFlows
  readonly #listeners = new Set<TcpListener | UdpListener>()
  readonly #unix = new Map<string, UnixListener>()

  constructor(core: NetCore, tcp: Tcp, udp: UdpFlows) {
    this.#core = core
    this.#tcp = tcp
    this.#udp = udp
  }

  get open(): OpenPort[] {
    return [...this.#listeners].map(({ open }) => open)
  }

  /** Opens one or a range of ports; all of them or none. */
  add(forward: PortForward): OpenPort[] {
    const { host, guest, range = 1, protocol = 'tcp', bind = '127.0.0.1' } = forward
    if (!Number.isInteger(range) || range < 1 || range > MAX_RANGE) {
      throw new NetError('BAD_PORT', `a range of ${range} ports is not possible: give one from 1 to ${MAX_RANGE}`)
    }
    checkPort(guest, 1, range)
    checkPort(host, 0, host === 0 ? 1 : range)
    if (protocol !== 'tcp' && protocol !== 'udp') {
      throw new NetError('BAD_PORT', `'${protocol}' is no protocol of ports: give 'tcp' or 'udp'`)
    }
    const address = parseAddress(bind)
    const opened: (TcpListener | UdpListener)[] = []
    try {
      for (let i = 0; i < range; i++) {
        opened.push(this.#listen(protocol, bind, address, host === 0 ? 0 : host + i, guest + i))
      }
    } catch (error) {
      for (const listener of opened) this.#close(listener)
      throw error
    }
    return opened.map(({ open }) => open)
  }

  #listen(protocol: 'tcp' | 'udp', bind: string, address: Uint8Array, host: number, guest: number) {
    const fd = listenTyped(address, host, protocol, bind)
    const open = { protocol, bind, host: new PeerAddress().ofSocket(fd).port, guest }
    const listener =
      protocol === 'tcp'
        ? new TcpListener(this.#core, this.#tcp, fd, open)
        : new UdpListener(this.#core, this.#udp, fd, open, this.#peerPorts())
    this.#listeners.add(listener)
    return listener
  }

  /** A run of gateway ports that no other UDP listener uses. */
  #peerPorts(): number {
    for (let first = FIRST_PEER_PORT; first + MAX_PEERS <= 65_536; first += MAX_PEERS) {
      if (![...this.#listeners].some(other => other instanceof UdpListener && other.firstPort === first)) return first
    }
    throw new NetError('BAD_PORT', 'there are too many UDP ports open: close some')
  }

  /** Closes the host port; connections through it go on. False: it was not open. */
  remove(protocol: 'tcp' | 'udp', host: number): boolean {
    for (const listener of this.#listeners) {
      if (listener.open.protocol !== protocol || listener.open.host !== host) continue
      this.#close(listener)
      return true
    }
    return false
  }

  #close(listener: TcpListener | UdpListener): void {
    this.#listeners.delete(listener)
    listener.close()
  }

  #listenerOf(guestPort: number, port: number): UdpListener | undefined {
    if (port < FIRST_PEER_PORT) return undefined
    for (const listener of this.#listeners) {
      if (listener instanceof UdpListener && listener.open.guest === guestPort && listener.has(port)) return listener
    }
    return undefined
  }

  /** Whether a datagram of the guest to this port of the gateway is an answer to somebody outside. */
  answersTo(guestPort: number, port: number): boolean {
    return this.#listenerOf(guestPort, port) !== undefined
  }

  answer(guestPort: number, port: number, payload: Uint8Array): void {
    this.#listenerOf(guestPort, port)?.answer(port, payload)
  }

  /** A Unix socket at `path` whose connections lead to `guest`; `unlisten` closes it. */
  listenUnix(path: string, guest: number): void {
    checkPort(guest, 1, 1)
    this.unlistenUnix(path)
    try {
      this.#unix.set(path, new UnixListener(this.#core, this.#tcp, path, guest))
    } catch (error) {
      throw new NetError('BAD_PORT', `there can be no Unix socket at ${path}: ${(error as Error).message}`, {
        cause: error,
      })
    }
  }

  get openUnix(): { path: string; guest: number }[] {
    return [...this.#unix].map(([path, { guest }]) => ({ path, guest }))
  }

  /** False: there was none. */
  unlistenUnix(path: string): boolean {
    this.#unix.get(path)?.close()
    return this.#unix.delete(path)
  }

  close(): void {
    for (const listener of [...this.#listeners]) this.#close(listener)
    for (const path of [...this.#unix.keys()]) this.unlistenUnix(path)
  }
}

function checkPort(port: number, least: number, range: number): void {
  if (Number.isInteger(port) && port >= least && port + range - 1 <= 65_535) return
  throw new NetError(
    'BAD_PORT',
    `port ${port}${range > 1 ? ` with ${range} in a row` : ''} is not possible: ports end at 65535`,
  )
}

/** Listens, with an error that says which port and what to do. */
function listenTyped(address: Uint8Array, port: number, protocol: 'tcp' | 'udp', bind: string): number {
  try {
    return listenSocket(address, port, protocol === 'tcp' ? SOCK_STREAM : SOCK_DGRAM, `${bind}:${port}`)
  } catch (error) {
    if (!(error instanceof HostError)) throw error
    const where = `${protocol} port ${port} of ${bind}`
    if (error.code === 'EADDRINUSE') {
      throw new NetError('PORT_IN_USE', `${where} is in use: choose another, or 0 for any`, { cause: error })
    }
    if (error.code === 'EACCES') {
      throw new NetError('PORT_DENIED', `${where} needs a right that this user lacks: choose one from 1024 on`, {
        cause: error,
      })
    }
    throw new NetError('BAD_PORT', `${where} cannot be opened: ${error.message}`, { cause: error })
  }
}
