/** A small writer of AML, ACPI specification 6.5, chapter 20: each function gives the bytes of one term. */

export type Aml = readonly number[]

const ZERO_OP = 0x00
const ONE_OP = 0x01
const NAME_OP = 0x08
const BYTE_PREFIX = 0x0a
const WORD_PREFIX = 0x0b
const DWORD_PREFIX = 0x0c
const STRING_PREFIX = 0x0d
const SCOPE_OP = 0x10
const BUFFER_OP = 0x11
const PACKAGE_OP = 0x12
const METHOD_OP = 0x14
const EXT_PREFIX = 0x5b
const DEVICE_OP = 0x82
const ROOT_CHAR = 0x5c
const DUAL_NAME_PREFIX = 0x2e
const ARG0_OP = 0x68
const NOTIFY_OP = 0x86
const LEQUAL_OP = 0x93
const IF_OP = 0xa0

const ascii = (text: string): number[] => [...text].map(char => char.charCodeAt(0))

/** A name segment: four characters, padded with underscores. */
const segment = (name: string): number[] => {
  if (!/^[A-Z_][A-Z0-9_]{0,3}$/.test(name)) throw new Error(`'${name}' is not an AML name`)
  return ascii(name.padEnd(4, '_'))
}

/** A path of one or two segments, from the root if it starts with a backslash. */
export function namePath(path: string): Aml {
  const rooted = path.startsWith('\\')
  const segments = (rooted ? path.slice(1) : path).split('.').map(segment)
  if (segments.length > 2) throw new Error(`'${path}' has more than two segments`)
  const body = segments.length === 2 ? [DUAL_NAME_PREFIX, ...segments.flat()] : segments[0]!
  return rooted ? [ROOT_CHAR, ...body] : body
}

/** 20.2.4: a length that counts itself. */
function withLength(body: Aml): number[] {
  const size = body.length
  if (size + 1 <= 0x3f) return [size + 1, ...body]
  for (let extra = 1; extra <= 3; extra++) {
    const total = size + 1 + extra
    if (total < 1 << (4 + 8 * extra)) {
      const lead = [(extra << 6) | (total & 0xf)]
      for (let i = 0; i < extra; i++) lead.push((total >> (4 + 8 * i)) & 0xff)
      return [...lead, ...body]
    }
  }
  throw new Error('an AML term of more than 256 MiB')
}

export function integer(value: number): Aml {
  if (value === 0) return [ZERO_OP]
  if (value === 1) return [ONE_OP]
  if (value <= 0xff) return [BYTE_PREFIX, value]
  if (value <= 0xffff) return [WORD_PREFIX, value & 0xff, value >>> 8]
  return [DWORD_PREFIX, ...dword(value)]
}

export const string = (text: string): Aml => [STRING_PREFIX, ...ascii(text), 0]
export const name = (path: string, value: Aml): Aml => [NAME_OP, ...namePath(path), ...value]
export const scope = (path: string, ...terms: Aml[]): Aml => [
  SCOPE_OP,
  ...withLength([...namePath(path), ...terms.flat()]),
]
export const device = (path: string, ...terms: Aml[]): Aml => [
  EXT_PREFIX,
  DEVICE_OP,
  ...withLength([...namePath(path), ...terms.flat()]),
]
export const method = (path: string, args: number, ...terms: Aml[]): Aml => [
  METHOD_OP,
  // Serialized, so that it may be run from more than one context.
  ...withLength([...namePath(path), args | 8, ...terms.flat()]),
]
export const packageOf = (...elements: Aml[]): Aml => [PACKAGE_OP, ...withLength([elements.length, ...elements.flat()])]
export const ifArg0Equals = (value: number, ...terms: Aml[]): Aml => [
  IF_OP,
  ...withLength([LEQUAL_OP, ARG0_OP, ...integer(value), ...terms.flat()]),
]
export const notify = (path: string, value: number): Aml => [NOTIFY_OP, ...namePath(path), ...integer(value)]

/** 19.3.4: a seven-character id in 32 bits, for example PNP0501. */
export function eisaId(id: string): Aml {
  if (!/^[A-Z]{3}[0-9A-F]{4}$/.test(id)) throw new Error(`'${id}' is not an EISA id`)
  const letter = (i: number) => id.charCodeAt(i) - 0x40
  const vendor = (letter(0) << 10) | (letter(1) << 5) | letter(2)
  const product = Number.parseInt(id.slice(3), 16)
  return [DWORD_PREFIX, vendor >> 8, vendor & 0xff, product >> 8, product & 0xff]
}

const dword = (value: number): number[] => [
  value & 0xff,
  (value >>> 8) & 0xff,
  (value >>> 16) & 0xff,
  (value >>> 24) & 0xff,
]

/** 6.4: resource descriptors, as the buffer that `_CRS` is. */
export function resources(...descriptors: Aml[]): Aml {
  const body = [...descriptors.flat(), 0x79, 0]
  return [BUFFER_OP, ...withLength([...integer(body.length), ...body])]
}

/** 6.4.3.4: 32-bit fixed memory, writable. */
export const fixedMemory = (address: number, size: number): Aml => [0x86, 9, 0, 1, ...dword(address), ...dword(size)]

/** 6.4.3.6: an extended interrupt: consumer, edge-triggered, active high, exclusive. */
export const edgeInterrupt = (gsi: number): Aml => [0x89, 6, 0, 0x03, 1, ...dword(gsi)]

/** 6.4.2.5: a range of ports, 16-bit decoded. */
export const ports = (start: number, count: number): Aml => {
  const low = start & 0xff
  const high = start >> 8
  return [0x47, 1, low, high, low, high, 1, count]
}

/** 6.4.2.1: an ISA interrupt, edge-triggered and active high (which is the two-byte form). */
export const isaInterrupt = (irq: number): Aml => [0x22, (1 << irq) & 0xff, (1 << irq) >> 8]
