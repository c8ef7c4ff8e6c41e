/** ARP (RFC 826): the gateway answers for itself and the DNS server, and for nobody else. */

import type { NetCore } from './core.ts'
import { DNS4, GATEWAY4 } from './description.ts'
import { ETHERNET } from './link.ts'
import { ETHERTYPE_ARP, type Packet } from './packet.ts'

const ARP_LENGTH = 28
const REQUEST = 1
const REPLY = 2

export function answerArp(core: NetCore, packet: Packet): void {
  const { view, bytes } = packet
  if (packet.headLength < ETHERNET + ARP_LENGTH) {
    core.counters.malformed++
    return
  }
  // Ethernet and IPv4 with addresses of 6 and 4 bytes.
  if (view.getUint32(ETHERNET) !== 0x0001_0800 || view.getUint16(ETHERNET + 4) !== 0x0604) return
  if (view.getUint16(ETHERNET + 6) !== REQUEST) return
  const target = ETHERNET + 24
  if (!is4(bytes, target, GATEWAY4) && !is4(bytes, target, DNS4)) return
  const { writer } = core
  const out = writer.bytes
  out.set(writer.macs.guest, 0)
  out.set(writer.macs.gateway, 6)
  writer.view.setUint16(12, ETHERTYPE_ARP)
  for (let i = 0; i < 6; i++) out[ETHERNET + i] = bytes[ETHERNET + i]!
  writer.view.setUint16(ETHERNET + 6, REPLY)
  out.set(writer.macs.gateway, ETHERNET + 8)
  for (let i = 0; i < 4; i++) out[ETHERNET + 14 + i] = bytes[target + i]!
  for (let i = 0; i < 10; i++) out[ETHERNET + 18 + i] = bytes[ETHERNET + 8 + i]!
  core.emit(ETHERNET + ARP_LENGTH)
}

function is4(bytes: Uint8Array, at: number, address: Uint8Array): boolean {
  for (let i = 0; i < 4; i++) if (bytes[at + i] !== address[12 + i]) return false
  return true
}
