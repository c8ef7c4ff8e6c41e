/** Pax extended headers: records `length key=value\n`, which override fields of the header they precede. */
import { ImageError } from '../errors.ts'

/** Values are bytes, one a character. Keys that may repeat (GNU.sparse.offset) keep all their values, in order. */
export type PaxRecords = Map<string, string>

export interface ParsedPax {
  readonly records: PaxRecords
  /** GNU.sparse.offset and GNU.sparse.numbytes, in order (format 0.0 repeats them). */
  readonly sparse: number[]
}

export function parsePax(data: Buffer, where: () => string): ParsedPax {
  const records: PaxRecords = new Map()
  const sparse: number[] = []
  for (let at = 0; at < data.length; ) {
    const space = data.indexOf(32, at)
    const digits = space < 0 || space - at > 10 ? '' : data.toString('latin1', at, space)
    const length = /^[1-9][0-9]*$/.test(digits) ? Number(digits) : 0
    const end = at + length
    if (length === 0 || end > data.length || end - 1 <= space || data[end - 1] !== 10) {
      // Some writers pad the last block with zeros inside the stated size.
      if (data.subarray(at).every(byte => byte === 0)) break
      throw new ImageError('BAD_TAR', `${where()}: a pax record is malformed: the archive is damaged`)
    }
    const equals = data.indexOf(61, space)
    if (equals < 0 || equals >= end) throw new ImageError('BAD_TAR', `${where()}: a pax record without a value`)
    const key = data.toString('latin1', space + 1, equals)
    const value = data.toString('latin1', equals + 1, end - 1)
    if (key === 'GNU.sparse.offset' || key === 'GNU.sparse.numbytes') sparse.push(paxNumber(value, key, where))
    else records.set(key, value)
    at = end
  }
  return { records, sparse }
}

export function paxNumber(value: string, key: string, where: () => string): number {
  const number = /^-?[0-9]+$/.test(value) ? Number(value) : Number.NaN
  if (!Number.isSafeInteger(number)) {
    throw new ImageError('BAD_TAR', `${where()}: the pax record ${key} is not a number: '${value.slice(0, 40)}'`)
  }
  return number
}

/** `1700000000.123456789`: seconds towards minus infinity, and nanoseconds. */
export function paxTime(value: string, key: string, where: () => string): [seconds: number, nanoseconds: number] {
  const match = /^(-?)([0-9]{1,15})(?:\.([0-9]*))?$/.exec(value)
  if (!match)
    throw new ImageError('BAD_TAR', `${where()}: the pax record ${key} is not a time: '${value.slice(0, 40)}'`)
  const nanoseconds = Number((match[3] ?? '').slice(0, 9).padEnd(9, '0'))
  const seconds = Number(match[2])
  if (match[1] === '') return [seconds, nanoseconds]
  return nanoseconds === 0 ? [-seconds, 0] : [-seconds - 1, 1_000_000_000 - nanoseconds]
}
