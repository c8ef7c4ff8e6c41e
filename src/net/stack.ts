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
import {
  DNS4,
  DNS6,
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
import { answerEcho, readIcmp, sendUnreachable } from './icmp.ts'
import { ALL_OFFLOADS, type GuestOffloads, NEEDS_CHECKSUM, type OffloadHeader } from './link.ts'
import { advertiseRouter, answerNeighbour, isGateway6 } from './ndp.ts'
import { ETHERTYPE_ARP, Packet, PROTOCOL_ICMP, PROTOCOL_ICMP6, PROTOCOL_TCP, PROTOCOL_UDP } from './packet.ts'
import { PcapWriter } from './pcap.ts'
import { Policy } from './policy.ts'
import { Ports } from './ports.ts'
import { Tcp } from './tcp/tcp.ts'
import { UdpFlows } from './udp.ts'
import { FrameWriter } from './writer.ts'

const LOOPBACK4 = parseAddress('127.0.0.1')
const LOOPBACK6 = parseAddress('::1')
const GUEST_PREFIX6 = parseCidr(`${GUEST_NETWORK.guest6}/${GUEST_NETWORK.prefix6}`)
const GUEST_NET4 = parseCidr(`${GUEST_NETWORK.guest4}/${GUEST_NETWORK.prefix4}`)
const LINK_LOCAL6 = parseCidr('fe80::/10')
const MULTICAST6 = parseCidr('ff00::/8')
const DNS_PORT = 53
const MAX_DENIALS = 64

/** A connection or datagram that the rules forbade. */
export interface Denial {
  readonly protocol: 'tcp' | 'udp'
  readonly address: Uint8Array
  readonly port: number
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
  /** The latest, for whoever asks. */
  readonly denials: Denial[] = []
  readonly #packet = new Packet()
  readonly #scratch = new Uint8Array(65_600)
  readonly #pcap: PcapWriter | undefined
  readonly #fixedMac: boolean
  #payload: IoVector | undefined
  #closed = false

  constructor(description: NetworkDescription = {}, options: StackOptions = {}) {
    const clock = options.clock ?? (() => performance.now())
    this.policy = new Policy(description.policy ?? 'full', clock)
    const resolvers = description.resolvers?.map(parseAddress) ?? hostResolvers()
    this.core = new NetCore(description.mtu ?? 1500, clock)
    this.core.writer.macs.gateway.set(parseMac(GUEST_NETWORK.gatewayMac))
    this.#fixedMac = description.guestMac !== undefined
    if (description.guestMac !== undefined) this.core.writer.macs.guest.set(parseMac(description.guestMac))
    this.tcp = new Tcp(this.core, (remote, port) => this.#route('tcp', remote, port), options.kernelOffsets)
    this.udp = new UdpFlows(this.core)
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
    )
    this.ports = new Ports(this.core, this.tcp, this.udp)
    this.core.onTimer = now => this.onTimer(now)
    this.#pcap = description.pcap === undefined ? undefined : new PcapWriter(description.pcap)
    try {
      for (const forward of description.ports ?? []) this.ports.add(forward)
    } catch (error) {
      this.close()
      throw error
    }
  }

  start(poll: PollSet, onReady: () => void, guest: GuestOffloads = ALL_OFFLOADS): void {
    this.tcp.output.offloads = guest
    this.core.start(poll, onReady)
    if (this.#fixedMac) advertiseRouter(this.core)
    this.core.wakeAt(this.core.clock() + 1000)
  }

  /** The guest's driver is gone, and with it all that it had open. */
  stop(): void {
    this.core.stop()
    this.tcp.close()
    this.udp.close()
    this.dns.close()
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
  }

  /** One frame of the guest. Always taken: what cannot be passed on is dropped, as on any network. */
  send(frame: IoVector, header: OffloadHeader): boolean {
    const { counters } = this.core
    const packet = this.#packet
    counters.framesFromGuest++
    counters.bytesFromGuest += frame.byteLength
    if (this.#pcap !== undefined) this.#record(frame)
    if (!packet.parse(frame, counters)) return true
    // Multicast cannot be a source.
    if (!this.#fixedMac && (packet.bytes[6]! & 1) === 0) {
      for (let i = 0; i < 6; i++) this.core.writer.macs.guest[i] = packet.bytes[6 + i]!
    }
    if (packet.etherType === ETHERTYPE_ARP) answerArp(this.core, packet)
    else if (this.#ownSource(packet)) this.#transport(packet, frame, header)
    else counters.spoofed++
    return true
  }

  #record(frame: IoVector): void {
    const bytes = this.#scratch.subarray(0, frame.byteLength)
    frame.copyTo(bytes)
    this.#pcap!.record(bytes)
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
    const { destination } = packet
    if (sameAddress(destination, GATEWAY4) || sameAddress(destination, DNS4) || isGateway6(destination)) {
      answerEcho(this.core, packet, message)
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
    if (port === DNS_PORT && (sameAddress(destination, DNS4) || sameAddress(destination, DNS6))) {
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
    if (contains(MULTICAST6, destination) || (isMapped(destination) && destination[12]! >= 224)) return
    if (sameAddress(destination, GATEWAY4) && this.ports.answersTo(guestPort, port)) {
      this.ports.answer(guestPort, port, this.#copy(frame, at + 8, length))
      return
    }
    let flow = this.udp.table.find(source, guestPort, destination, port)
    if (flow === undefined) {
      const target = this.#route('udp', destination, port)
      if (target === undefined) {
        const gateway = isMapped(source) ? GATEWAY4 : GATEWAY6
        sendUnreachable(this.core, 'prohibited', gateway, source, destination, PROTOCOL_UDP, guestPort, port)
        return
      }
      flow = this.udp.open(source, guestPort, destination, port, target.address)
      if (flow === undefined) return
    }
    if (this.#payload?.memory !== frame.memory) this.#payload = new IoVector(frame.memory)
    this.#payload.setToRangeOf(frame, at + 8, length)
    this.udp.send(flow, this.#payload)
  }

  #copy(frame: IoVector, at: number, length: number): Uint8Array {
    const bytes = this.#scratch.subarray(0, length)
    frame.copyTo(bytes, at)
    return bytes
  }

  /** Where the guest's packets to `remote` go; undefined: denied, and counted. */
  #route(protocol: 'tcp' | 'udp', remote: Uint8Array, port: number): { address: Uint8Array; port: number } | undefined {
    const target = this.#target(protocol, remote, port)
    if (target !== undefined) return { address: target, port }
    this.core.counters.denied++
    if (this.denials.length >= MAX_DENIALS) this.denials.shift()
    this.denials.push({ protocol, address: remote.slice(), port })
    return undefined
  }

  #target(protocol: 'tcp' | 'udp', remote: Uint8Array, port: number): Uint8Array | undefined {
    if (sameAddress(remote, GATEWAY4)) return this.policy.host ? LOOPBACK4 : undefined
    if (sameAddress(remote, GATEWAY6)) return this.policy.host ? LOOPBACK6 : undefined
    if (sameAddress(remote, DNS4) || sameAddress(remote, DNS6)) {
      // Questions over TCP, for answers that are too long for UDP, go to the host's first resolver.
      const asks = protocol === 'tcp' && port === DNS_PORT && this.policy.mayResolveAny
      return asks ? this.dns.resolvers[0] : undefined
    }
    if (contains(GUEST_NET4, remote) || contains(GUEST_PREFIX6, remote)) return undefined
    return this.policy.mayConnect(remote) ? remote : undefined
  }

  /** Changes and questions while the guest runs: see control.ts. */
  control(request: Plain): Plain {
    return controlStack(this, request)
  }

  get nextLength(): number {
    const { ring } = this.core
    if (ring.count > 0) return ring.nextLength
    this.core.drained()
    return ring.count > 0 ? ring.nextLength : this.tcp.output.plan()
  }

  receive(into: IoVector, header: OffloadHeader): void {
    const { ring, counters } = this.core
    counters.framesToGuest++
    counters.bytesToGuest += into.byteLength
    if (ring.count > 0) ring.shift(into)
    else this.tcp.output.fill(into, header)
    if (this.#pcap !== undefined) this.#record(into)
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
    this.core.close()
    this.#pcap?.close()
  }
}
