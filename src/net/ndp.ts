/** Neighbour discovery (RFC 4861): the gateway's address, and router advertisements with the prefix and the DNS server. */
import { sameAddress } from './addresses.ts'
import type { NetCore } from './core.ts'
import { DNS6, GATEWAY_LINK_LOCAL, GATEWAY6 } from './description.ts'
import { type Packet, PROTOCOL_ICMP6 } from './packet.ts'

const ROUTER_SOLICITATION = 133
const ROUTER_ADVERTISEMENT = 134
const NEIGHBOUR_SOLICITATION = 135
const NEIGHBOUR_ADVERTISEMENT = 136
/** Off-link packets are never neighbour discovery (RFC 4861, 6.1.1 and 7.1.1). */
const ND_HOP_LIMIT = 255
const ALL_NODES = Uint8Array.from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
const LIFETIME_S = 1800
const PREFIX_S = 86_400

export const isGateway6 = (address: Uint8Array): boolean =>
  sameAddress(address, GATEWAY6) || sameAddress(address, DNS6) || sameAddress(address, GATEWAY_LINK_LOCAL)

/** True when `message` was neighbour discovery, answered or not. */
export function answerNeighbour(core: NetCore, packet: Packet, message: Uint8Array): boolean {
  const type = message[0]!
  if (type < ROUTER_SOLICITATION || type > 137) return false
  if (packet.hopLimit !== ND_HOP_LIMIT || message[1] !== 0) {
    core.counters.malformed++
    return true
  }
  if (type === ROUTER_SOLICITATION) advertiseRouter(core)
  if (type === NEIGHBOUR_SOLICITATION && message.length >= 24) advertiseNeighbour(core, packet, message)
  return true
}

function advertiseNeighbour(core: NetCore, packet: Packet, message: Uint8Array): void {
  const target = message.slice(8, 24)
  if (!isGateway6(target)) return
  const { writer } = core
  // From the unspecified address: somebody checks for a duplicate, and all are told.
  const asked = packet.source.some(byte => byte !== 0)
  const to = asked ? packet.source : ALL_NODES
  const at = writer.begin(target, to, PROTOCOL_ICMP6, 32, ND_HOP_LIMIT)
  const { bytes, view } = writer
  bytes.fill(0, at, at + 32)
  bytes[at] = NEIGHBOUR_ADVERTISEMENT
  // Router, solicited, override.
  view.setUint32(at + 4, asked ? 0xe000_0000 : 0xa000_0000)
  bytes.set(target, at + 8)
  bytes[at + 24] = 2
  bytes[at + 25] = 1
  bytes.set(writer.macs.gateway, at + 26)
  core.emit(writer.finish(2))
}

/** To all nodes: also sent unasked when the guest's driver starts. */
export function advertiseRouter(core: NetCore): void {
  const { writer } = core
  const length = 16 + 8 + 8 + 32 + 24
  const at = writer.begin(GATEWAY_LINK_LOCAL, ALL_NODES, PROTOCOL_ICMP6, length, ND_HOP_LIMIT)
  const { bytes, view } = writer
  bytes.fill(0, at, at + length)
  bytes[at] = ROUTER_ADVERTISEMENT
  bytes[at + 4] = 64
  view.setUint16(at + 6, LIFETIME_S)
  let option = at + 16
  // Source link-layer address.
  bytes[option] = 1
  bytes[option + 1] = 1
  bytes.set(writer.macs.gateway, option + 2)
  option += 8
  bytes[option] = 5
  bytes[option + 1] = 1
  view.setUint32(option + 4, core.mtu)
  option += 8
  // The prefix: on link, and for addresses that hosts make themselves.
  bytes[option] = 3
  bytes[option + 1] = 4
  bytes[option + 2] = 64
  bytes[option + 3] = 0xc0
  view.setUint32(option + 4, PREFIX_S)
  view.setUint32(option + 8, PREFIX_S)
  bytes.set(GATEWAY6.subarray(0, 8), option + 16)
  option += 32
  // Recursive DNS server (RFC 8106).
  bytes[option] = 25
  bytes[option + 1] = 3
  view.setUint32(option + 4, LIFETIME_S)
  bytes.set(DNS6, option + 8)
  core.emit(writer.finish(2))
}
