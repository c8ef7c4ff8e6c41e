/** DNS messages (RFC 1035): as much of them as a forwarder has to understand. Every length is checked. */
export const TYPE_A = 1
export const TYPE_CNAME = 5
export const TYPE_SOA = 6
export const TYPE_AAAA = 28
export const TYPE_OPT = 41
export const CLASS_IN = 1
export const HEADER = 12
export const FLAG_RESPONSE = 0x8000
export const FLAG_TRUNCATED = 0x0200
const MIN_DATAGRAM = 512
const MAX_NAME = 255
const MAX_JUMPS = 32

export interface Question {
  /** Lower case, without the final dot. */
  readonly name: string
  readonly type: number
  readonly class: number
  /** Where the question ends in its message. */
  readonly end: number
}

/** The name at `at`, and where it ends; undefined when it is malformed. `whole`: it may not refer to another. */
export function readName(bytes: Uint8Array, at: number, whole = false): { name: string; end: number } | undefined {
  let text = ''
  let end = -1
  let from = at
  let length = 0
  for (let jumps = 0; jumps <= MAX_JUMPS; ) {
    if (from >= bytes.length) return undefined
    const size = bytes[from]!
    if (size === 0) return { name: text, end: end < 0 ? from + 1 : end }
    if (size >= 0xc0) {
      if (whole || from + 1 >= bytes.length) return undefined
      if (end < 0) end = from + 2
      const target = ((size & 0x3f) << 8) | bytes[from + 1]!
      // Only backwards: a name cannot contain itself.
      if (target >= from) return undefined
      from = target
      jumps++
      continue
    }
    length += size + 1
    if (size > 63 || length > MAX_NAME || from + 1 + size > bytes.length) return undefined
    let label = ''
    for (let i = from + 1; i <= from + size; i++) {
      const code = bytes[i]!
      label += code > 0x20 && code < 0x7f && code !== 0x2e ? String.fromCharCode(code) : `\\${code}`
    }
    text += (text === '' ? '' : '.') + label.toLowerCase()
    from += 1 + size
  }
  return undefined
}

/** The one question of a query; undefined when it is no ordinary query. */
export function readQuestion(bytes: Uint8Array): Question | undefined {
  if (bytes.length < HEADER + 5) return undefined
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length)
  // Opcode QUERY with one question.
  if ((view.getUint16(2) & 0x7800) !== 0 || view.getUint16(4) !== 1) return undefined
  const name = readName(bytes, HEADER, true)
  if (name === undefined || name.end + 4 > bytes.length) return undefined
  return { name: name.name, type: view.getUint16(name.end), class: view.getUint16(name.end + 2), end: name.end + 4 }
}

export const ANSWER = 0
export const AUTHORITY = 1
export const ADDITIONAL = 2

export interface DnsRecord {
  /** ANSWER, AUTHORITY or ADDITIONAL. */
  readonly section: number
  readonly name: string
  readonly type: number
  readonly ttl: number
  readonly ttlAt: number
  readonly dataAt: number
  readonly dataLength: number
}

/** All records after the question; undefined when the message is malformed. */
export function readRecords(bytes: Uint8Array, from: number): DnsRecord[] | undefined {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length)
  const answers = view.getUint16(6)
  const authorities = answers + view.getUint16(8)
  const count = authorities + view.getUint16(10)
  const records: DnsRecord[] = []
  let at = from
  for (let i = 0; i < count; i++) {
    const name = readName(bytes, at)
    if (name === undefined || name.end + 10 > bytes.length) return undefined
    const dataAt = name.end + 10
    const dataLength = view.getUint16(name.end + 8)
    if (dataAt + dataLength > bytes.length) return undefined
    const ttlAt = name.end + 4
    const ttl = view.getUint32(ttlAt)
    // RFC 2181, section 8: a TTL with the top bit set is zero.
    const section = i < answers ? ANSWER : i < authorities ? AUTHORITY : ADDITIONAL
    const record = { section, name: name.name, type: view.getUint16(name.end), ttl: ttl > 0x7fff_ffff ? 0 : ttl, ttlAt }
    records.push({ ...record, dataAt, dataLength })
    at = dataAt + dataLength
  }
  return records
}

export interface Edns {
  /** How long an answer may be over UDP: 512 bytes, or what the query says (RFC 6891, 6.2.3). */
  readonly limit: number
  /** What else in a query changes its answer: EDNS at all, DNSSEC records wanted, recursion, checks switched off. */
  readonly kind: string
}

export function readEdns(query: Uint8Array, question: Question): Edns {
  const view = new DataView(query.buffer, query.byteOffset, query.length)
  const flags = `${query[2]! & 1}${query[3]! & 0x10}`
  for (const { type, ttlAt } of readRecords(query, question.end) ?? []) {
    if (type !== TYPE_OPT) continue
    // The DO bit (RFC 3225) stands where other records have their TTL.
    const dnssec = (view.getUint16(ttlAt + 2) & 0x8000) !== 0
    return { limit: Math.max(view.getUint16(ttlAt - 2), MIN_DATAGRAM), kind: `${flags}${dnssec ? 'do' : 'edns'}` }
  }
  return { limit: MIN_DATAGRAM, kind: flags }
}

/** Gives an answer the number and the very letters of the question that it is for: some compare their case. */
export function addressTo(message: Uint8Array, query: Uint8Array, question: Question, id: number): void {
  message[0] = id >> 8
  message[1] = id & 255
  message.set(query.subarray(HEADER, question.end), HEADER)
}

/** The answer without its records, and a flag that says so: the guest then asks over TCP (RFC 2181, 9). */
export function cutAnswer(message: Uint8Array, question: Question): Uint8Array {
  const cut = message.slice(0, question.end)
  const view = new DataView(cut.buffer)
  view.setUint16(2, view.getUint16(2) | FLAG_TRUNCATED)
  view.setUint16(6, 0)
  view.setUint32(8, 0)
  return cut
}

export const NO_ERROR = 0
export const SERVER_FAILURE = 2
export const NAME_ERROR = 3
export const REFUSED = 5

/** An answer of our own to `query`: a code, or addresses of 4 or 16 bytes. */
export function makeAnswer(
  query: Uint8Array,
  question: Question,
  code: number,
  addresses: readonly Uint8Array[] = [],
  ttl = 60,
): Uint8Array {
  const size = addresses.reduce((sum, address) => sum + 12 + address.length, question.end)
  const bytes = new Uint8Array(size)
  const view = new DataView(bytes.buffer)
  bytes.set(query.subarray(0, question.end))
  // A response, recursion desired as asked, recursion available.
  view.setUint16(2, FLAG_RESPONSE | (view.getUint16(2) & 0x0100) | 0x0080 | code)
  view.setUint16(6, addresses.length)
  view.setUint32(8, 0)
  let at = question.end
  for (const address of addresses) {
    view.setUint16(at, 0xc000 | HEADER)
    view.setUint16(at + 2, address.length === 4 ? TYPE_A : TYPE_AAAA)
    view.setUint16(at + 4, CLASS_IN)
    view.setUint32(at + 6, ttl)
    view.setUint16(at + 10, address.length)
    bytes.set(address, at + 12)
    at += 12 + address.length
  }
  return bytes
}
