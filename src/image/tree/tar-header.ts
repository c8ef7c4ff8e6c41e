/** The 512-byte tar header and what the formats do with it: v7, ustar, GNU, pax (POSIX.1-2017 pax; GNU tar manual, appendix D). */
import { ImageError } from '../errors.ts'

export const TAR_BLOCK = 512

/** The fields of one header, before long names and pax records are applied. */
export interface TarHeader {
  name: string
  mode: number
  uid: number
  gid: number
  /** Bytes of data that follow. */
  size: number
  mtime: number
  type: string
  linkName: string
  major: number
  minor: number
  format: 'v7' | 'ustar' | 'gnu'
}

export const padded = (bytes: number): number => Math.ceil(bytes / TAR_BLOCK) * TAR_BLOCK

/** True for the block of zeros that ends an archive. */
export function isEndBlock(block: Buffer): boolean {
  for (let i = 0; i < TAR_BLOCK; i++) if (block[i] !== 0) return false
  return true
}

export function decodeHeader(block: Buffer, where: () => string): TarHeader {
  const stored = octal(block, 148, 8, where)
  let unsigned = 0
  let signed = 0
  for (let i = 0; i < TAR_BLOCK; i++) {
    // The checksum counts its own field as spaces.
    const byte = i >= 148 && i < 156 ? 32 : block[i]!
    unsigned += byte
    signed += byte > 127 ? byte - 256 : byte
  }
  // Old writers summed signed characters.
  if (stored !== unsigned && stored !== signed) {
    throw new ImageError(
      'BAD_TAR',
      `${where()}: the header's checksum is wrong: the archive is damaged, or is not a tar`,
    )
  }
  const magic = block.toString('latin1', 257, 263)
  const format = magic === 'ustar\0' ? 'ustar' : magic === 'ustar ' ? 'gnu' : 'v7'
  let name = text(block, 0, 100)
  const prefix = format === 'ustar' ? text(block, 345, 155) : ''
  if (prefix !== '') name = `${prefix}/${name}`
  return {
    name,
    mode: octal(block, 100, 8, where) & 0o7777,
    uid: octal(block, 108, 8, where),
    gid: octal(block, 116, 8, where),
    size: octal(block, 124, 12, where),
    mtime: octal(block, 136, 12, where),
    type: String.fromCharCode(block[156]!),
    linkName: text(block, 157, 100),
    major: format === 'v7' ? 0 : octal(block, 329, 8, where),
    minor: format === 'v7' ? 0 : octal(block, 337, 8, where),
    format,
  }
}

/** A field of bytes up to the first zero. */
export function text(block: Buffer, at: number, length: number): string {
  const end = block.indexOf(0, at)
  return block.toString('latin1', at, end < 0 || end > at + length ? at + length : end)
}

/** A number: octal digits among spaces and zeros, or base 256 when the first bit is set (two's complement). */
export function octal(block: Buffer, at: number, length: number, where: () => string): number {
  if (block[at]! & 0x80) {
    let value = block[at]! & 0x40 ? (block[at]! & 0x7f) - 0x80 : block[at]! & 0x3f
    for (let i = at + 1; i < at + length; i++) value = value * 256 + block[i]!
    if (!Number.isSafeInteger(value)) throw new ImageError('BAD_TAR', `${where()}: a number that is too large`)
    return value
  }
  const digits = text(block, at, length).trim()
  if (digits === '') return 0
  if (!/^[0-7]+$/.test(digits)) {
    throw new ImageError(
      'BAD_TAR',
      `${where()}: a header field is not a number: the archive is damaged, or is not a tar`,
    )
  }
  return Number.parseInt(digits, 8)
}
