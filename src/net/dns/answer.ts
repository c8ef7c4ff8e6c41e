/** What an answer means: whose addresses it gives, through which aliases, and for how long it may be kept. */
import { parseAddress } from '../addresses.ts'
import * as dns from './message.ts'

const MAX_ALIASES = 32
const TYPE_ANY = 255

export interface Chain {
  /** The name that was asked for, then its aliases (RFC 1034, 3.6.2). */
  readonly names: readonly string[]
  /** Addresses of those names, and of no others: what else a resolver adds (glue) was not asked for. */
  readonly addresses: readonly { readonly address: Uint8Array; readonly ttl: number }[]
}

export function chainOf(name: string, message: Uint8Array, records: readonly dns.DnsRecord[]): Chain {
  const answers = records.filter(({ section }) => section === dns.ANSWER)
  const aliases = new Map<string, string>()
  for (const { type, name: owner, dataAt } of answers) {
    const target = type === dns.TYPE_CNAME ? dns.readName(message, dataAt)?.name : undefined
    if (target !== undefined && !aliases.has(owner)) aliases.set(owner, target)
  }
  const names = [name]
  for (let next = aliases.get(name); next !== undefined && names.length <= MAX_ALIASES; next = aliases.get(next)) {
    if (names.includes(next)) break
    names.push(next)
  }
  const addresses: { address: Uint8Array; ttl: number }[] = []
  for (const { type, name: owner, ttl, dataAt, dataLength } of answers) {
    if (!names.includes(owner)) continue
    if (type === dns.TYPE_A && dataLength === 4) {
      addresses.push({ address: parseAddress(message.subarray(dataAt, dataAt + 4).join('.')), ttl })
    } else if (type === dns.TYPE_AAAA && dataLength === 16) {
      addresses.push({ address: message.slice(dataAt, dataAt + 16), ttl })
    }
  }
  return { names, addresses }
}

/**
 * For how many seconds an answer may be kept, its records' own lives apart; 0: not at all. One that says that there is nothing lives
 * as long as its zone's SOA says, and is not kept without one (RFC 2308, section 5).
 */
export function lifeOf(question: dns.Question, message: Uint8Array, records: readonly dns.DnsRecord[]): number {
  const code = message[3]! & 15
  if (code !== dns.NO_ERROR && code !== dns.NAME_ERROR) return 0
  const answered = ({ section, type }: dns.DnsRecord): boolean =>
    section === dns.ANSWER && (type === question.type || question.type === TYPE_ANY)
  if (code === dns.NO_ERROR && records.some(answered)) return Number.POSITIVE_INFINITY
  const soa = records.find(({ section, type }) => section === dns.AUTHORITY && type === dns.TYPE_SOA)
  if (soa === undefined || soa.dataLength < 22) return 0
  const view = new DataView(message.buffer, message.byteOffset, message.length)
  return Math.min(soa.ttl, view.getUint32(soa.dataAt + soa.dataLength - 4))
}
