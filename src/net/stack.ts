/**
 * The network of one guest: ethernet frames on one side, host sockets on the other. It is a link that a network card can
 * be plugged into: frames come by `send`; the card asks for the next one with `nextLength` and `receive`.
 */
import { IoVector } from '../host/io-vector.ts'
import type { PollSet } from '../host/poll.ts'
import { contains, isMapped, parseAddress, parseCidr, parseMac, sameAddress } from './addresses.ts'
import { answerArp } from './arp.ts'
import { pseudoSum, sumVector } from './checksum.ts'
import { controlStack, type Plain } from './control.ts'
import { NetCore } from './core.ts'
import { Denials } from './denials.ts'
import {
  type Bandwidth,
  DNS4,
  GATEWAY4,
  GATEWAY6,
  GUEST_NETWORK,
  GUEST4,
  type NetworkDescription,
  type NetworkPolicy,
} from './description.ts'
import { answerDhcp, DHCP_SERVER_PORT } from './dhcp.ts'
import { DnsForwarder } from './dns/forwarder.ts'
import { hostResolvers } from './dns/resolvers.ts'
import { Entrance } from './entrance.ts'
import { NetError } from './errors.ts'
import { answerEcho, isEchoRequest, readIcmp, sendUnreachable } from './icmp.ts'
import { ALL_OFFLOADS, type GuestOffloads, NEEDS_CHECKSUM, type OffloadHeader } from './link.ts'
import { advertiseRouter, answerNeighbour, isGateway6 } from './ndp.ts'
import { Neighbours } from './neighbours.ts'
import { ETHERTYPE_ARP, Packet, PROTOCOL_ICMP, PROTOCOL_ICMP6, PROTOCOL_TCP, PROTOCOL_UDP } from './packet.ts'
import { FLUSH_MS, PcapWriter } from './pcap.ts'
import { Pings } from './ping.ts'
import { Policy } from './policy.ts'
import { Ports } from './ports.ts'
import { RateLimit } from './rate-limit.ts'
import { Reassembly } from './reassembly.ts'
import { destinationOf, GUEST_PREFIX6, isDnsServer } from './router.ts'
import { resetAll, type SavedNetwork, savedNetworkOf, saveNetwork } from './saved-network.ts'
import { type Target, Tcp } from './tcp/tcp.ts'
import { type UdpFlow, UdpFlows } from './udp.ts'
import { FrameWriter } from './writer.ts'

const LINK_LOCAL6 = parseCidr('fe80::/10')
const MULTICAST6 = parseCidr('ff00::/8')
const DNS_PORT = 53
/** Slower than this, and a frame of 64 KiB would take a minute. */
const MIN_RATE = 1024
/** What is left undone in a frame that we put together ourselves: nothing. */
const FINISHED: OffloadHeader = {
  flags: 0,
  gsoType: 0,
  headerLength: 0,
  gsoSize: 0,
  checksumStart: 0,
  checksumOffset: 0,
}

export interface StackOptions {
  /** Milliseconds that only grow; for tests. */
  readonly clock?: () => number
  /** Where the resolvers listen; 53 but in tests. */
  readonly resolverPort?: number
  /** False: as on a kernel that keeps no offset for a peek, before Linux 6.9; for tests. */
  readonly kernelOffsets?: boolean
}

export class NetworkStack {
  readonly offloads = true
  readonly core: NetCore
  readonly policy: Policy
  readonly tcp: Tcp
  readonly udp: UdpFlows
  readonly dns: DnsForwarder
  readonly ports: Ports
  readonly denials: Denials
  readonly neighbours: Neighbours
  readonly pings: Pings
  readonly reassembly: Reassembly
  readonly fromGuest: RateLimit
  readonly toGuest: RateLimit
  readonly #packet = new Packet()
  readonly #scratch = new Uint8Array(65_600)
  readonly #ownMac: Uint8Array | undefined
  #entrance: Entrance | undefined
  #pcap: PcapWriter | undefined
  #payload: IoVector | undefined
  /** Connections of a guest that was saved: nobody is at their other end any more. */
  #restored: SavedNetwork | undefined
  #closed = false
  #idle = false

  constructor(description: NetworkDescription = {}, options: StackOptions = {}) {
    this.core = new NetCore(description.mtu ?? 1500, options.clock)
    const { clock } = this.core
    this.policy = new Policy(description.policy ?? 'full', clock)
    const resolvers = description.resolvers?.map(parseAddress) ?? hostResolvers()
    this.denials = new Denials(description.denialLog)
    this.core.writer.macs.gateway.set(parseMac(GUEST_NETWORK.gatewayMac))
    this.#ownMac = description.guestMac === undefined ? undefined : parseMac(description.guestMac)
    this.guestNamed()
    this.tcp = new Tcp(this.core, (remote, port) => this.#tcpTarget(remote, port), options.kernelOffsets)
    this.udp = new UdpFlows(this.core)
    this.pings = new Pings(this.core)
    this.reassembly = new Reassembly(this.core)
    this.fromGuest = new RateLimit(clock)
    this.toGuest = new RateLimit(clock)
    this.neighbours = new Neighbours(this.core, this.tcp, this.udp, description.networks ?? [])
    this.dns = new DnsForwarder(
      this.core,
      this.policy,
      resolvers,
      description.hosts ?? {},
      (asker, message) => {
        this.core.writer.bytes.set(message, FrameWriter.transportAt(asker.server) + 8)
        this.udp.emit(asker.server, DNS_PORT, asker.guest, asker.guestPort, message.length)
      },
      options.resolverPort,
      name => this.neighbours.resolve(name),
    )
    this.dns.onDenied = name => this.denials.add('dns', name, 0)
    this.ports = new Ports(this.core, this.tcp, this.udp)
    this.core.onTimer = now => this.onTimer(now)
    try {
      this.limit(description.bandwidth ?? {})
      if (description.pcap !== undefined) this.recordTo(description.pcap)
      for (const forward of description.ports ?? []) this.ports.add(forward)
      if (description.entrance !== undefined) {
        const entrance = { path: description.entrance, protocol: 'tcp', from: GATEWAY4 } as const
        this.#entrance = new Entrance(this.core, this.tcp, this.udp, entrance)
      }
    } catch (error) {
      this.close()
      throw error
    }
  }

  start(poll: PollSet, onReady: () => void, guest: GuestOffloads = ALL_OFFLOADS): void {
    this.tcp.output.offloads = guest
    this.core.start(poll, onReady)
    if (this.#ownMac !== undefined) advertiseRouter(this.core)
    this.#resetRestored()
    this.core.wakeAt(this.core.clock() + 1000)
  }

  #resetRestored(): void {
    if (this.#restored !== undefined) resetAll(this.core, this.tcp, this.#restored)
    this.#restored = undefined
  }

  /** The guest's driver is gone, and with it all that it had open. */
  stop(): void {
    this.core.stop()
    this.tcp.close()
    this.udp.close()
    this.dns.close()
    this.pings.close()
    this.reassembly.close()
  }

  /** What a restored guest's network has to know of this one. */
  save(): Plain {
    return saveNetwork(this.core, this.tcp)
  }

  /**
   * The connections that the guest believes to have are reset, for nothing of them is left here: now, since a card is restored after
   * its driver's queues have been started, or at the `start`.
   */
  restore(value: Plain): void {
    this.#restored = savedNetworkOf(value)
    this.core.writer.macs.guest.set(parseMac(this.#restored.mac))
    if (this.core.started) this.#resetRestored()
  }

  /** The guest has taken the hardware address that its network was described with. */
  guestNamed(): void {
    if (this.#ownMac !== undefined) this.core.writer.macs.guest.set(this.#ownMac)
  }

  /** Bytes a second; what is absent has no limit. */
  limit({ fromGuest, toGuest }: Bandwidth): void {
    for (const rate of [fromGuest, toGuest]) {
      if (rate !== undefined && !(Number.isFinite(rate) && rate >= MIN_RATE)) {
        throw new NetError(
          'BAD_DESCRIPTION',
          `a bandwidth of ${rate} bytes a second is not possible: give ${MIN_RATE} or more`,
        )
      }
    }
    this.fromGuest.set(fromGuest ?? Number.POSITIVE_INFINITY)
    this.toGuest.set(toGuest ?? Number.POSITIVE_INFINITY)
    this.core.ready()
  }

  /** Records every frame from now on, in a new file; undefined ends it. */
  recordTo(path: string | undefined): void {
    const next = path === undefined ? undefined : new PcapWriter(path)
    this.#pcap?.close()
    this.#pcap = next
  }

  get recording(): { readonly path: string; readonly frames: number; readonly lost: number } | undefined {
    return this.#pcap
  }

  /** New rules, for new connections; answers that were kept are forgotten. */
  changePolicy(policy: NetworkPolicy): void {
    this.policy.change(policy)
    this.dns.forget()
  }

  onTimer(now: number): void {
    this.tcp.onTimer(now)
    this.udp.onTimer(now)
    this.dns.onTimer(now)
    this.pings.onTimer(now)
    if (this.#pcap?.waiting) this.#pcap.flush()
  }

  /** One frame of the guest. False: its bandwidth is used up, it is to be offered again. What cannot be passed on is dropped. */
  send(frame: IoVector, header: OffloadHeader): boolean {
    const { counters } = this.core
    const packet = this.#packet
    const wait = this.fromGuest.wait()
    if (wait > 0) {
      counters.limited++
      this.core.wakeAt(this.core.clock() + wait)
      return false
    }
    this.fromGuest.take(frame.byteLength)
    counters.framesFromGuest++
    counters.bytesFromGuest += frame.byteLength
    if (this.#pcap !== undefined) this.#record(frame, this.#pcap)
    if (!packet.parse(frame, counters)) return true
    // Multicast cannot be a source.
    if (this.#ownMac === undefined && (packet.bytes[6]! & 1) === 0) {
      for (let i = 0; i < 6; i++) this.core.writer.macs.guest[i] = packet.bytes[6 + i]!
    }
    if (packet.etherType === ETHERTYPE_ARP) answerArp(this.core, packet)
    else if (!this.#ownSource(packet)) counters.spoofed++
    else if (!packet.isFragment) this.#transport(packet, frame, header)
    else {
      const whole = this.reassembly.add(packet, frame)
      if (whole !== undefined && packet.parse(whole, counters)) this.#transport(packet, whole, FINISHED)
    }
    return true
  }

  #record(frame: IoVector, pcap: PcapWriter): void {
    const { lost } = pcap
    if (!pcap.waiting) this.core.wakeAt(this.core.clock() + FLUSH_MS)
    pcap.record(frame)
    this.core.counters.recordLost += pcap.lost - lost
  }

  /** The guest's own addresses, and none while it has none yet (DHCP, duplicate detection). */
  #ownSource({ source, protocol }: Packet): boolean {
    if (isMapped(source)) {
      if (sameAddress(source, GUEST4)) return true
      return protocol === PROTOCOL_UDP && source[12] === 0 && source[13] === 0 && source[14] === 0 && source[15] === 0
    }
    if (contains(GUEST_PREFIX6, source)) return !isGateway6(source)
    if (contains(LINK_LOCAL6, source)) return !isGateway6(source)
    return protocol === PROTOCOL_ICMP6 && source.every(byte => byte === 0)
  }

  #transport(packet: Packet, frame: IoVector, header: OffloadHeader): void {
    const { counters } = this.core
    switch (packet.protocol) {
      case PROTOCOL_TCP:
        if (this.#checksumRight(packet, frame, header)) this.tcp.receive(packet, frame)
        return
      case PROTOCOL_UDP:
        if (this.#checksumRight(packet, frame, header)) this.#udp(packet, frame)
        return
      case PROTOCOL_ICMP:
      case PROTOCOL_ICMP6:
        this.#icmp(packet, frame)
        return
      default:
        counters.unknown++
    }
  }

  /** A checksum that the driver left to us is right by definition: there was no wire to damage it. */
  #checksumRight(packet: Packet, frame: IoVector, header: OffloadHeader): boolean {
    if ((header.flags & NEEDS_CHECKSUM) !== 0) return true
    const { transportAt: at, transportLength: length, protocol } = packet
    if (protocol === PROTOCOL_UDP && isMapped(packet.source) && length >= 8 && packet.view.getUint16(at + 6) === 0)
      return true
    const sum = sumVector(frame, at, length, pseudoSum(packet.source, packet.destination, protocol, length))
    if (sum === 0xffff) return true
    this.core.counters.badChecksum++
    return false
  }

  #icmp(packet: Packet, frame: IoVector): void {
    if ((packet.protocol === PROTOCOL_ICMP) !== isMapped(packet.source)) {
      this.core.counters.malformed++
      return
    }
    const message = readIcmp(this.core, packet, frame, this.#scratch)
    if (message === undefined) return
    if (packet.protocol === PROTOCOL_ICMP6 && answerNeighbour(this.core, packet, message)) return
    const { source, destination } = packet
    if (sameAddress(destination, GATEWAY4) || sameAddress(destination, DNS4) || isGateway6(destination)) {
      answerEcho(this.core, packet, message)
    } else if (isEchoRequest(packet, message) && !isMulticast(destination)) this.#ping(source, destination, message)
  }

  #ping(source: Uint8Array, remote: Uint8Array, message: Uint8Array): void {
    const destination = destinationOf(this.policy, this.neighbours, remote)
    if (destination.kind === 'host') this.pings.send(source, remote, destination.address, message)
    else if (destination.kind === 'neighbour') {
      if (this.neighbours.isThere(remote)) answerEcho(this.core, this.#packet, message)
      else this.pings.unreachable(source, remote, message, 'host')
    } else {
      this.#denied('icmp', remote, 0)
      this.pings.unreachable(source, remote, message, 'prohibited')
    }
  }

  #udp(packet: Packet, frame: IoVector): void {
    const { view, transportAt: at, source, destination } = packet
    if (packet.transportLength < 8 || at + 8 > packet.headLength) {
      this.core.counters.malformed++
      return
    }
    const guestPort = view.getUint16(at)
    const port = view.getUint16(at + 2)
    const length = view.getUint16(at + 4) - 8
    if (length < 0 || length + 8 > packet.transportLength) {
      this.core.counters.malformed++
      return
    }
    if (isMapped(destination) && port === DHCP_SERVER_PORT) {
      answerDhcp(this.core, this.#copy(frame, at + 8, length))
      return
    }
    if (port === DNS_PORT && isDnsServer(destination)) {
      const asker = { guest: source.slice(), guestPort, server: destination.slice() }
      this.dns.ask(asker, this.#copy(frame, at + 8, length))
      return
    }
    this.#udpFlow(packet, frame, guestPort, port, length)
  }

  #udpFlow(packet: Packet, frame: IoVector, guestPort: number, port: number, length: number): void {
    const { source, destination, transportAt: at } = packet
    // No flows from an address that is none, nor to many at once.
    if (!isMapped(source) ? contains(LINK_LOCAL6, source) : source[12] === 0) return
    if (isMulticast(destination)) return
    if (sameAddress(destination, GATEWAY4) && this.ports.answersTo(guestPort, port)) {
      this.ports.answer(guestPort, port, this.#copy(frame, at + 8, length))
      return
    }
    const flow =
      this.udp.table.find(source, guestPort, destination, port) ?? this.#openUdp(source, guestPort, destination, port)
    if (flow === undefined) return
    if (this.#payload?.memory !== frame.memory) this.#payload = new IoVector(frame.memory)
    this.#payload.setToRangeOf(frame, at + 8, length)
    this.udp.send(flow, this.#payload)
  }

  #copy(frame: IoVector, at: number, length: number): Uint8Array {
    const bytes = this.#scratch.subarray(0, length)
    frame.copyTo(bytes, at)
    return bytes
  }

  #openUdp(source: Uint8Array, guestPort: number, remote: Uint8Array, port: number): UdpFlow | undefined {
    const destination = destinationOf(this.policy, this.neighbours, remote)
    if (destination.kind === 'host') return this.udp.open(source, guestPort, remote, port, destination.address)
    if (destination.kind === 'neighbour') {
      const fd = this.neighbours.connect('udp', remote, port, guestPort)
      if (fd >= 0) return this.udp.adopt(fd, source, guestPort, remote, port)
      sendUnreachable(this.core, 'host', remote, source, remote, PROTOCOL_UDP, guestPort, port)
      return undefined
    }
    this.#denied('udp', remote, port)
    const gateway = isMapped(source) ? GATEWAY4 : GATEWAY6
    sendUnreachable(this.core, 'prohibited', gateway, source, remote, PROTOCOL_UDP, guestPort, port)
    return undefined
  }

  /** Where a connection to `remote` really goes; undefined: it is refused. */
  #tcpTarget(remote: Uint8Array, port: number): Target | undefined {
    const destination = destinationOf(this.policy, this.neighbours, remote)
    if (destination.kind === 'host') return { address: destination.address, port }
    if (destination.kind === 'neighbour') {
      const fd = this.neighbours.connect('tcp', remote, port, 0)
      return fd < 0 ? undefined : { fd, greets: true }
    }
    if (destination.kind === 'dns' && port === DNS_PORT) return { fd: this.dns.overTcp.open(), greets: false }
    this.#denied('tcp', remote, port)
    return undefined
  }

  #denied(protocol: 'tcp' | 'udp' | 'icmp', remote: Uint8Array, port: number): void {
    this.core.counters.denied++
    this.denials.addAddress(protocol, remote, port)
  }

  /** Changes and questions while the guest runs: see control.ts. */
  control(request: Plain): Plain {
    return controlStack(this, request)
  }

  get nextLength(): number {
    const { ring } = this.core
    const wait = this.toGuest.wait()
    if (wait > 0) {
      this.core.counters.limited++
      this.core.wakeAt(this.core.clock() + wait)
      return 0
    }
    if (ring.count > 0) return ring.nextLength
    this.core.drained()
    return ring.count > 0 ? ring.nextLength : this.tcp.output.plan()
  }

  /** What was received last only ends what the guest has ended already. */
  get isIdle(): boolean {
    return this.#idle
  }

  receive(into: IoVector, header: OffloadHeader): void {
    const { ring, counters } = this.core
    this.#idle = ring.count === 0 && this.tcp.output.endsOnly
    counters.framesToGuest++
    counters.bytesToGuest += into.byteLength
    this.toGuest.take(into.byteLength)
    if (ring.count > 0) ring.shift(into)
    else this.tcp.output.fill(into, header)
    if (this.#pcap !== undefined) this.#record(into, this.#pcap)
  }

  /** The guest has no buffer for it, ever: it is lost, and TCP will notice. */
  skip(): void {
    if (this.core.ring.count > 0) this.core.ring.drop()
    else this.tcp.output.skip()
    this.core.counters.queueFull++
  }

  close(): void {
    if (this.#closed) return
    this.#closed = true
    this.stop()
    this.ports.close()
    this.#entrance?.close()
    this.neighbours.close()
    this.#pcap?.close()
    this.denials.close()
  }
}

const isMulticast = (address: Uint8Array): boolean =>
  contains(MULTICAST6, address) || (isMapped(address) && address[12]! >= 224)
