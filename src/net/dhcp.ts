/** DHCP (RFC 2131, 2132): one lease that never changes, for the one guest there is. */
import type { NetCore } from './core.ts'
import { DNS4, GATEWAY4, GUEST4 } from './description.ts'
import { PROTOCOL_UDP } from './packet.ts'

export const DHCP_SERVER_PORT = 67
const CLIENT_PORT = 68
const COOKIE = 0x6382_5363
const OPTIONS_AT = 240
const LEASE_S = 86_400
const DISCOVER = 1
const OFFER = 2
const REQUEST = 3
const DECLINE = 4
const ACK = 5
const NAK = 6
const INFORM = 8
const BROADCAST = Uint8Array.from([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255])

interface DhcpRequest {
  type: number
  /** The address that the client says it has or wants, as a number; 0: none. */
  wanted: number
  server: number
}

/** The options that matter here; undefined when they run out of the message. */
function readOptions(message: Uint8Array, view: DataView): DhcpRequest | undefined {
  const request = { type: 0, wanted: 0, server: 0 }
  let at = OPTIONS_AT
  while (at < message.length && message[at] !== 255) {
    const code = message[at++]!
    if (code === 0) continue
    if (at >= message.length) return undefined
    const length = message[at++]!
    if (at + length > message.length) return undefined
    if (code === 53 && length === 1) request.type = message[at]!
    if (code === 50 && length === 4) request.wanted = view.getUint32(at)
    if (code === 54 && length === 4) request.server = view.getUint32(at)
    at += length
  }
  return request
}

const number4 = (address: Uint8Array): number => new DataView(address.buffer, address.byteOffset).getUint32(12)
const LEASE = number4(GUEST4)
const SERVER = number4(GATEWAY4)

function replyType(request: DhcpRequest, clientAddress: number): number {
  switch (request.type) {
    case DISCOVER:
      return OFFER
    case INFORM:
      return ACK
    case REQUEST: {
      if (request.server !== 0 && request.server !== SERVER) return 0
      return (request.wanted || clientAddress) === LEASE ? ACK : NAK
    }
    default:
      return 0
  }
}

/** Answers one message to port 67. */
export function answerDhcp(core: NetCore, message: Uint8Array): void {
  const view = new DataView(message.buffer, message.byteOffset, message.length)
  if (message.length < OPTIONS_AT || message[0] !== 1 || message[1] !== 1 || message[2] !== 6) {
    core.counters.malformed++
    return
  }
  if (view.getUint32(236) !== COOKIE) {
    core.counters.malformed++
    return
  }
  const request = readOptions(message, view)
  if (request === undefined || request.type === 0) {
    core.counters.malformed++
    return
  }
  if (request.type === DECLINE) return
  const type = replyType(request, view.getUint32(12))
  if (type === 0) return
  writeReply(core, message, type, request.type === INFORM)
}

function writeReply(core: NetCore, message: Uint8Array, type: number, informed: boolean): void {
  const { writer } = core
  const options = replyOptions(core, type, informed)
  const length = 8 + OPTIONS_AT + options.length
  const at = writer.begin(GATEWAY4, BROADCAST, PROTOCOL_UDP, length)
  const { bytes, view } = writer
  bytes.fill(0, at, at + length)
  view.setUint16(at, DHCP_SERVER_PORT)
  view.setUint16(at + 2, CLIENT_PORT)
  view.setUint16(at + 4, length)
  const body = at + 8
  bytes[body] = 2
  bytes[body + 1] = 1
  bytes[body + 2] = 6
  // Transaction, flags, the client's own address when it has one, its hardware address.
  bytes.set(message.subarray(4, 8), body + 4)
  bytes.set(message.subarray(10, 12), body + 10)
  if (informed) bytes.set(message.subarray(12, 16), body + 12)
  else if (type !== NAK) bytes.set(GUEST4.subarray(12), body + 16)
  if (type !== NAK) bytes.set(GATEWAY4.subarray(12), body + 20)
  bytes.set(message.subarray(28, 44), body + 28)
  view.setUint32(body + 236, COOKIE)
  bytes.set(options, body + OPTIONS_AT)
  core.emit(writer.finish(6))
}

function replyOptions(core: NetCore, type: number, informed: boolean): Uint8Array {
  const four = (address: Uint8Array): number[] => [...address.subarray(12)]
  const word = (value: number): number[] => [value >>> 24, (value >> 16) & 255, (value >> 8) & 255, value & 255]
  const options = [53, 1, type, 54, 4, ...four(GATEWAY4)]
  if (type !== NAK) {
    if (!informed) options.push(51, 4, ...word(LEASE_S))
    options.push(1, 4, 255, 255, 255, 0, 3, 4, ...four(GATEWAY4), 6, 4, ...four(DNS4))
    options.push(26, 2, core.mtu >> 8, core.mtu & 255)
  }
  return Uint8Array.from([...options, 255])
}
