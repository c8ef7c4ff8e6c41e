/** IP addresses: 16 bytes each, IPv4 as ::ffff:a.b.c.d (RFC 4291, 2.5.5.2), so that one code path serves both. */
import { NetError } from './errors.ts'

export { isMapped } from '../host/socket.ts'

import { isMapped } from '../host/socket.ts'

export function sameAddress(a: Uint8Array, b: Uint8Array): boolean {
  for (let i = 15; i >= 0; i--) if (a[i] !== b[i]) return false
  return true
}

/** Node's own functions for this load its sockets and compile large expressions, in every thread that asks. */
export const isIPv4 = (text: string): boolean => {
  const parts = text.split('.')
  return parts.length === 4 && parts.every(part => /^(?:0|[1-9]\d{0,2})$/.test(part) && Number(part) <= 255)
}

export function parseAddress(text: string): Uint8Array {
  const bytes = new Uint8Array(16)
  if (isIPv4(text)) {
    bytes[10] = 255
    bytes[11] = 255
    bytes.set(text.split('.').map(Number), 12)
    return bytes
  }
  const groups = groupsOf(text)
  if (groups === undefined) {
    throw new NetError('BAD_ADDRESS', `'${text}' is no IP address: give one like 10.0.0.1 or fd00::1`)
  }
  groups.forEach((group, i) => {
    bytes[i * 2] = group >> 8
    bytes[i * 2 + 1] = group & 255
  })
  return bytes
}

export const isAddress = (text: string): boolean => isIPv4(text) || groupsOf(text) !== undefined

/** The eight groups of an IPv6 address (RFC 4291, 2.2), or undefined if it is none. */
function groupsOf(text: string): number[] | undefined {
  const halves = text.split('::')
  if (halves.length > 2) return undefined
  const parts = halves.map((half, i) => numbersOf(half, i === halves.length - 1))
  const [head, end] = parts
  if (head === undefined || (halves.length === 2 && end === undefined)) return undefined
  const missing = 8 - head.length - (end?.length ?? 0)
  // '::' stands for at least one group.
  if (halves.length === 2 ? missing < 1 : missing !== 0) return undefined
  return [...head, ...new Array<number>(missing).fill(0), ...(end ?? [])]
}

/** The groups of one side of '::'; the last may be an IPv4 address, which is two. */
function numbersOf(half: string, isLast: boolean): number[] | undefined {
  if (half === '') return []
  const numbers: number[] = []
  const groups = half.split(':')
  for (const [i, group] of groups.entries()) {
    if (/^[0-9a-f]{1,4}$/i.test(group)) numbers.push(Number.parseInt(group, 16))
    else if (isLast && i === groups.length - 1 && isIPv4(group)) {
      const [a, b, c, d] = group.split('.').map(Number) as [number, number, number, number]
      numbers.push(a * 256 + b, c * 256 + d)
    } else return undefined
  }
  return numbers
}

/** As RFC 5952 writes it. */
export function formatAddress(address: Uint8Array): string {
  if (isMapped(address)) return `${address[12]}.${address[13]}.${address[14]}.${address[15]}`
  const groups = Array.from({ length: 8 }, (_, i) => (address[i * 2]! << 8) | address[i * 2 + 1]!)
  let best = -1
  let length = 1
  for (let i = 0; i < 8; i++) {
    let run = 0
    while (i + run < 8 && groups[i + run] === 0) run++
    if (run > length) {
      best = i
      length = run
    }
  }
  const text = (part: number[]): string => part.map(group => group.toString(16)).join(':')
  return best < 0 ? text(groups) : `${text(groups.slice(0, best))}::${text(groups.slice(best + length))}`
}

/** A block of addresses: `bits` of 128, so that 10.0.0.0/8 has 104. */
export interface Cidr {
  readonly address: Uint8Array
  readonly bits: number
}

export function parseCidr(text: string): Cidr {
  const slash = text.indexOf('/')
  const address = parseAddress(slash < 0 ? text : text.slice(0, slash))
  const most = isMapped(address) ? 32 : 128
  const given = slash < 0 ? most : Number(text.slice(slash + 1))
  if (!Number.isInteger(given) || given < 0 || given > most || text.endsWith('/')) {
    throw new NetError('BAD_ADDRESS', `'${text}' is no block of addresses: its prefix length is from 0 to ${most}`)
  }
  return { address, bits: 128 - most + given }
}

/** A block of IPv6 addresses, were it all of them, has no IPv4 address in it. */
export function contains(block: Cidr, address: Uint8Array): boolean {
  if (block.bits < 96 && isMapped(address)) return false
  const whole = block.bits >> 3
  for (let i = 0; i < whole; i++) if (block.address[i] !== address[i]) return false
  const rest = block.bits & 7
  return rest === 0 || ((block.address[whole]! ^ address[whole]!) & (0xff00 >> rest) & 0xff) === 0
}

export const anyContains = (blocks: readonly Cidr[], address: Uint8Array): boolean => {
  for (let i = 0; i < blocks.length; i++) if (contains(blocks[i]!, address)) return true
  return false
}

export function parseMac(text: string): Uint8Array {
  const bytes = text.split(':').map(part => (/^[0-9a-fA-F]{2}$/.test(part) ? Number.parseInt(part, 16) : -1))
  if (bytes.length !== 6 || bytes.includes(-1)) {
    throw new NetError('BAD_ADDRESS', `'${text}' is no MAC address: give one like 02:00:00:00:00:01`)
  }
  return Uint8Array.from(bytes)
}
