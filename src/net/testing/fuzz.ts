/** Sends frames of every protocol, damaged by a seed, with their checksums mended half of the time. */
import { invert, pseudoSum, sumBytes } from '../checksum.ts'
import type { NetCounters } from '../counters.ts'
import { DNS4, DNS6, GATEWAY4, GATEWAY6, GUEST4, GUEST6 } from '../description.ts'
import { PROTOCOL_ICMP, PROTOCOL_ICMP6, PROTOCOL_TCP, PROTOCOL_UDP } from '../packet.ts'
import { writeHeaders } from '../writer.ts'
import { RawGuest } from './raw-guest.ts'
import { randomOf } from './wire.ts'

const MACS = { guest: Uint8Array.from([0x52, 0x55, 10, 0, 2, 2]), gateway: Uint8Array.from([2, 0, 0, 0, 0, 1]) }
const CHECKSUM_AT: { readonly [protocol: number]: number } = {
  [PROTOCOL_ICMP]: 2,
  [PROTOCOL_ICMP6]: 2,
  [PROTOCOL_TCP]: 16,
  [PROTOCOL_UDP]: 6,
}

function udp(from: number, to: number, payload: readonly number[]): number[] {
  const length = payload.length + 8
  return [from >> 8, from & 255, to >> 8, to & 255, length >> 8, length & 255, 0, 0, ...payload]
}

const DHCP = [
  ...[1, 1, 6, 0, 1, 2, 3, 4],
  ...new Array<number>(228).fill(0),
  ...[0x63, 0x82, 0x53, 0x63, 53, 1, 1, 50, 4, 10, 0, 2, 15, 55, 3, 1, 3, 6, 255],
]
const DNS = [0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4, 104, 111, 115, 116, 7, 118, 105, 116, 114, 105, 110, 101, 8].concat(
  [...'internal'].map(letter => letter.charCodeAt(0)),
  [0, 0, 1, 0, 1],
)
const TCP = [156, 64, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0, 0xa0, 2, 255, 255, 0, 0, 0, 0].concat([
  2, 4, 5, 0xb4, 4, 2, 1, 3, 3, 7, 5, 10, 0, 0, 0, 1, 0, 0, 0, 9,
])

interface Shape {
  readonly protocol: number
  readonly six: boolean
  readonly to: Uint8Array
  readonly transport: readonly number[]
}

const SHAPES: readonly Shape[] = [
  { protocol: PROTOCOL_UDP, six: false, to: GATEWAY4, transport: udp(68, 67, DHCP) },
  { protocol: PROTOCOL_UDP, six: false, to: DNS4, transport: udp(5353, 53, DNS) },
  { protocol: PROTOCOL_UDP, six: true, to: DNS6, transport: udp(5353, 53, DNS) },
  { protocol: PROTOCOL_TCP, six: false, to: GATEWAY4, transport: TCP },
  { protocol: PROTOCOL_TCP, six: true, to: GATEWAY6, transport: TCP },
  { protocol: PROTOCOL_ICMP, six: false, to: GATEWAY4, transport: [8, 0, 0, 0, 0, 1, 0, 1, 1, 2, 3] },
  { protocol: PROTOCOL_ICMP6, six: true, to: GATEWAY6, transport: [128, 0, 0, 0, 0, 1, 0, 1, 1, 2, 3] },
  { protocol: PROTOCOL_ICMP6, six: true, to: GATEWAY6, transport: [135, 0, 0, 0, 0, 0, 0, 0, ...GATEWAY6] },
]

function frameOf(shape: Shape, random: () => number): Uint8Array {
  const below = (limit: number): number => Math.floor(random() * limit)
  const source = shape.six ? GUEST6 : GUEST4
  const transport = [...shape.transport]
  const damage = (list: number[] | Uint8Array): void => {
    for (let i = below(4); i > 0; i--)
      list[below(list.length)] = random() < 0.5 ? [0, 1, 127, 128, 255][below(5)]! : below(256)
  }
  damage(transport)
  if (random() < 0.2) transport.length = below(transport.length + 1)
  const bytes = new Uint8Array(14 + 40 + transport.length + 8)
  const view = new DataView(bytes.buffer)
  const hops = shape.transport[0] === 135 ? 255 : 64
  const at = writeHeaders(bytes, view, MACS, source, shape.to, shape.protocol, transport.length, hops)
  bytes.set(transport, at)
  const checksum = at + CHECKSUM_AT[shape.protocol]!
  if (random() < 0.8 && transport.length >= CHECKSUM_AT[shape.protocol]! + 2) {
    view.setUint16(checksum, 0)
    const start = shape.protocol === PROTOCOL_ICMP ? 0 : pseudoSum(source, shape.to, shape.protocol, transport.length)
    view.setUint16(checksum, invert(sumBytes(bytes, at, transport.length, start)))
  }
  if (random() < 0.3) {
    damage(bytes.subarray(12, at))
    // An IPv4 header whose own checksum is right gets further.
    if (!shape.six && random() < 0.7) {
      view.setUint16(24, 0)
      view.setUint16(24, invert(sumBytes(bytes, 14, Math.min((bytes[14]! & 15) * 4, bytes.length - 14))))
    }
  }
  return random() < 0.1 ? bytes.slice(0, below(bytes.length)) : bytes.slice(0, at + transport.length)
}

/** Runs `count` frames; throws when the stack does, or when it grows. */
export function fuzzNetwork(seed: number, count: number): { frames: number; counters: NetCounters } {
  const random = randomOf(seed)
  const guest = new RawGuest({ policy: 'none' })
  try {
    let frames = 0
    for (; frames < count; frames++) {
      guest.frame(frameOf(SHAPES[Math.floor(random() * SHAPES.length)]!, random))
      if (random() < 0.3) guest.frames()
      if (random() < 0.01) guest.later(1000)
      // Nothing is allowed, so nothing may be open.
      if (guest.stack.tcp.table.all.size + guest.stack.udp.table.all.size + guest.stack.dns.pending > 0) {
        throw new Error(`seed ${seed}, frame ${frames}: a flow was opened though none is allowed`)
      }
    }
    return { frames, counters: guest.stack.core.counters }
  } finally {
    guest.close()
  }
}

/** `npm run fuzz -- net [--seed N] [--count N]`: seeds from N on, a thousand frames each. */
export function fuzz(args: readonly string[]): Promise<boolean> {
  const option = (name: string, otherwise: number): number => {
    const at = args.indexOf(`--${name}`)
    return at < 0 ? otherwise : Number(args[at + 1])
  }
  const first = option('seed', 1)
  const count = option('count', 200)
  for (let seed = first; seed < first + count; seed++) fuzzNetwork(seed, 1000)
  console.log(`net: ${count} seeds of 1000 frames from seed ${first}: no failure`)
  return Promise.resolve(true)
}
