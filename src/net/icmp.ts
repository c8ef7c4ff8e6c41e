/** ICMP (RFC 792) and ICMPv6 (RFC 4443): echo to the gateway, and errors for the guest. */
import type { IoVector } from '../host/io-vector.ts'
import { isMapped } from './addresses.ts'
import { pseudoSum, sumBytes } from './checksum.ts'
import type { NetCore } from './core.ts'
import { type Packet, PROTOCOL_ICMP, PROTOCOL_ICMP6 } from './packet.ts'

const ECHO_REQUEST = 8
const ECHO_REQUEST6 = 128
const ECHO_REPLY6 = 129
const MAX_ECHO = 65_000

/** Why something cannot be reached, for both versions: [type, code] of ICMP and of ICMPv6. */
export const UNREACHABLE = {
  network: [3, 0, 1, 0],
  host: [3, 1, 1, 3],
  port: [3, 3, 1, 4],
  prohibited: [3, 13, 1, 1],
} as const

/** Whether the checksum of an ICMP message in `bytes` is right. */
export function icmpChecksumRight(packet: Packet, bytes: Uint8Array): boolean {
  const start =
    packet.protocol === PROTOCOL_ICMP6
      ? pseudoSum(packet.source, packet.destination, PROTOCOL_ICMP6, packet.transportLength)
      : 0
  return sumBytes(bytes, 0, packet.transportLength, start) === 0xffff
}

export const isEchoRequest = (packet: Packet, message: Uint8Array): boolean =>
  message[0] === (packet.protocol === PROTOCOL_ICMP6 ? ECHO_REQUEST6 : ECHO_REQUEST) && message[1] === 0

/** Answers an echo request that is for the gateway itself. `message` is the whole ICMP message. */
export function answerEcho(core: NetCore, packet: Packet, message: Uint8Array): void {
  const { writer } = core
  const six = packet.protocol === PROTOCOL_ICMP6
  if (!isEchoRequest(packet, message)) return
  const at = writer.begin(packet.destination, packet.source, packet.protocol, message.length)
  writer.bytes.set(message, at)
  writer.bytes[at] = six ? ECHO_REPLY6 : 0
  core.emit(writer.finish(2, six))
}

/** Copies an ICMP message of the guest out of its memory; undefined when it is malformed. */
export function readIcmp(core: NetCore, packet: Packet, frame: IoVector, into: Uint8Array): Uint8Array | undefined {
  if (packet.transportLength < 8 || packet.transportLength > MAX_ECHO) {
    core.counters.malformed++
    return undefined
  }
  const message = into.subarray(0, packet.transportLength)
  frame.copyTo(message, packet.transportAt)
  if (icmpChecksumRight(packet, message)) return message
  core.counters.badChecksum++
  return undefined
}

/** Tells the guest that its packet from `guest` to `remote` went nowhere: an error that quotes the ports (RFC 1122, 3.2.2). */
export function sendUnreachable(
  core: NetCore,
  kind: keyof typeof UNREACHABLE,
  reporter: Uint8Array,
  guest: Uint8Array,
  remote: Uint8Array,
  protocol: number,
  guestPort: number,
  remotePort: number,
  /** What follows the ports: a sequence number, or a UDP length and no checksum. */
  third = 0x8_0000,
): void {
  const { writer } = core
  const six = !isMapped(guest)
  const inner = six ? 40 : 20
  const at = writer.begin(reporter, guest, six ? PROTOCOL_ICMP6 : PROTOCOL_ICMP, 8 + inner + 8)
  const { bytes, view } = writer
  bytes.fill(0, at, at + 8 + inner + 8)
  bytes[at] = UNREACHABLE[kind][six ? 2 : 0]
  bytes[at + 1] = UNREACHABLE[kind][six ? 3 : 1]
  const quote = at + 8
  if (six) {
    view.setUint32(quote, 0x6000_0000)
    view.setUint16(quote + 4, 8)
    bytes[quote + 6] = protocol
    bytes[quote + 7] = 64
    bytes.set(guest, quote + 8)
    bytes.set(remote, quote + 24)
  } else {
    view.setUint16(quote, 0x4500)
    view.setUint16(quote + 2, 28)
    bytes[quote + 8] = 64
    bytes[quote + 9] = protocol
    bytes.set(guest.subarray(12), quote + 12)
    bytes.set(remote.subarray(12), quote + 16)
    view.setUint16(quote + 10, ~sumBytes(bytes, quote, 20) & 0xffff)
  }
  view.setUint16(quote + inner, guestPort)
  view.setUint16(quote + inner + 2, remotePort)
  view.setUint32(quote + inner + 4, third)
  core.emit(writer.finish(2, six))
}
