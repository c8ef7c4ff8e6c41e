/**
 * Reads the entries of a tar archive that can be read at any position. Contents are not read: an entry says where they are.
 *
 * Written for layers: pax and GNU extensions, sparse files in all four of GNU's forms, extended attributes. Every number and
 * offset is checked against the archive before it is used.
 */
import { fstatSync } from 'node:fs'
import { ImageError } from '../errors.ts'
import { readFully } from '../read-fully.ts'
import { type ParsedPax, type PaxRecords, parsePax, paxNumber, paxTime } from './pax.ts'
import { decodeHeader, isEndBlock, octal, padded, TAR_BLOCK, type TarHeader, text } from './tar-header.ts'

export type TarKind = 'file' | 'link' | 'symlink' | 'directory' | 'character' | 'block' | 'fifo'

export interface TarEntry {
  /** As it is in the archive, one character a byte. */
  path: string
  kind: TarKind
  mode: number
  uid: number
  gid: number
  mtime: number
  mtimeNs: number
  /** The file's length; for a sparse one that includes its holes. */
  size: number
  /** Where its data starts in the archive. */
  offset: number
  linkPath: string
  major: number
  minor: number
  xattrs: Map<string, Uint8Array> | undefined
  /** As in `FileContent.map`. */
  map: Float64Array | undefined
}

/** Long names and pax headers larger than this are an attack, not an archive. */
const EXTENSION_LIMIT = 1 << 20
const SPARSE_LIMIT = 1 << 20
const WINDOW = 1 << 16
const XATTR = 'SCHILY.xattr.'

const KINDS: Record<string, TarKind> = {
  '\0': 'file',
  '0': 'file',
  '7': 'file',
  S: 'file',
  '1': 'link',
  '2': 'symlink',
  '3': 'character',
  '4': 'block',
  '5': 'directory',
  D: 'directory',
  '6': 'fifo',
}

export class TarReader {
  readonly #fd: number
  readonly #name: string
  readonly #size: number
  #position = 0
  readonly #window = Buffer.alloc(WINDOW)
  #windowStart = 0
  #windowLength = 0
  #global: PaxRecords = new Map()

  /** `name` is for messages. The descriptor stays the caller's. */
  constructor(fd: number, name: string) {
    this.#fd = fd
    this.#name = name
    this.#size = fstatSync(fd).size
  }

  get position(): number {
    return this.#position
  }

  get size(): number {
    return this.#size
  }

  /** The next entry, or undefined at the end. */
  next(): TarEntry | undefined {
    let pax: ParsedPax | undefined
    let longName: string | undefined
    let longLink: string | undefined
    for (;;) {
      const at = this.#position
      const where = (): string => `${this.#name} at byte ${at}`
      const extended = pax !== undefined || longName !== undefined || longLink !== undefined
      if (at === this.#size && !extended) return undefined
      const block = this.#bytes(at, TAR_BLOCK, where)
      if (isEndBlock(block)) {
        if (extended) throw new ImageError('BAD_TAR', `${where()}: the archive ends after an extended header`)
        return undefined
      }
      const header = decodeHeader(block, where)
      this.#position = at + TAR_BLOCK
      switch (header.type) {
        case 'x':
          pax = parsePax(this.#extension(header.size, where), where)
          break
        case 'g':
          for (const [key, value] of parsePax(this.#extension(header.size, where), where).records) {
            this.#global.set(key, value)
          }
          break
        case 'L':
          longName = cString(this.#extension(header.size, where))
          break
        case 'K':
          longLink = cString(this.#extension(header.size, where))
          break
        default: {
          if (longName !== undefined) header.name = longName
          if (longLink !== undefined) header.linkName = longLink
          const sparseHeader = header.type === 'S' ? Buffer.from(block) : undefined
          const entry = this.#entry(header, pax, sparseHeader, where)
          if (entry) return entry
          pax = longName = longLink = undefined
        }
      }
    }
  }

  *[Symbol.iterator](): Generator<TarEntry, void, void> {
    for (let entry = this.next(); entry; entry = this.next()) yield entry
  }

  /** Builds the entry and moves past its data; undefined for types that say nothing about the tree. */
  #entry(
    header: TarHeader,
    pax: ParsedPax | undefined,
    sparseHeader: Buffer | undefined,
    where: () => string,
  ): TarEntry | undefined {
    const get = (key: string): string | undefined => pax?.records.get(key) ?? this.#global.get(key)
    const number = (key: string, otherwise: number): number => {
      const value = get(key)
      return value === undefined || value === '' ? otherwise : paxNumber(value, key, where)
    }
    let kind = KINDS[header.type]
    const path = get('GNU.sparse.name') ?? get('path') ?? header.name
    // A v7 archive marks directories with a slash.
    if (kind === 'file' && header.type !== 'S' && path.endsWith('/')) kind = 'directory'
    // All other kinds have no data, whatever their size field says.
    const stored = kind === undefined || kind === 'file' ? number('size', header.size) : 0
    if (stored < 0) throw new ImageError('BAD_TAR', `${where()}: a size below zero`)
    const entry: TarEntry = {
      path,
      kind: kind ?? 'file',
      mode: header.mode,
      uid: number('uid', header.uid),
      gid: number('gid', header.gid),
      mtime: header.mtime,
      mtimeNs: 0,
      size: kind === 'file' ? stored : 0,
      offset: this.#position,
      linkPath: get('linkpath') ?? header.linkName,
      major: header.major,
      minor: header.minor,
      xattrs: undefined,
      map: undefined,
    }
    const time = get('mtime')
    if (time !== undefined && time !== '') [entry.mtime, entry.mtimeNs] = paxTime(time, 'mtime', where)
    for (const [what, value] of [
      ['uid', entry.uid],
      ['gid', entry.gid],
    ] as const) {
      if (value < 0 || value > 0xffffffff)
        throw new ImageError('BAD_TAR', `${where()}: the ${what} ${value} is out of range`)
    }
    if (pax) entry.xattrs = xattrsOf(pax.records)
    if (kind === 'file') {
      if (sparseHeader) this.#oldSparse(entry, sparseHeader, where)
      else if (pax) this.#paxSparse(entry, pax, where)
      if (entry.map) {
        // Map blocks in front of the data belong to the stored size in format 1.0, and precede it in the old one.
        checkMap(entry, sparseHeader ? stored : stored - (entry.offset - this.#position), where)
      }
    }
    const dataStart = sparseHeader ? entry.offset : this.#position
    if (dataStart + stored > this.#size) {
      throw new ImageError(
        'BAD_TAR',
        `${where()}: the archive ends inside '${Buffer.from(path, 'latin1').toString()}': it is truncated; fetch or make it again`,
      )
    }
    this.#position = Math.min(dataStart + padded(stored), this.#size)
    // Types of other systems (volume labels, multi-volume parts) are skipped with their data.
    return kind === undefined ? undefined : entry
  }

  /** Type S: four segments in the header, 21 in each block that follows it. */
  #oldSparse(entry: TarEntry, header: Buffer, where: () => string): void {
    const segments: number[] = []
    const collect = (block: Buffer, at: number, count: number): void => {
      for (let i = 0; i < count; i++) {
        const length = octal(block, at + i * 24 + 12, 12, where)
        if (text(block, at + i * 24, 12) === '') return
        segments.push(octal(block, at + i * 24, 12, where), length)
      }
    }
    collect(header, 386, 4)
    let more = header[482] !== 0
    entry.size = octal(header, 483, 12, where)
    while (more) {
      if (segments.length > SPARSE_LIMIT)
        throw new ImageError('BAD_TAR', `${where()}: too many segments in a sparse file`)
      const block = this.#bytes(entry.offset, TAR_BLOCK, where)
      collect(block, 0, 21)
      more = block[504] !== 0
      entry.offset += TAR_BLOCK
    }
    entry.map = toMap(segments)
  }

  /** The three pax forms: 0.0 repeats records, 0.1 has one, 1.0 puts the map in front of the data. */
  #paxSparse(entry: TarEntry, pax: ParsedPax, where: () => string): void {
    const { records } = pax
    const major = records.get('GNU.sparse.major')
    const inline = records.get('GNU.sparse.map')
    const realSize = records.get('GNU.sparse.realsize') ?? records.get('GNU.sparse.size')
    if (major === undefined && inline === undefined && pax.sparse.length === 0) return
    if (realSize === undefined) throw new ImageError('BAD_TAR', `${where()}: a sparse file without its size`)
    entry.size = paxNumber(realSize, 'GNU.sparse.realsize', where)
    if (inline !== undefined) {
      entry.map = toMap(inline === '' ? [] : inline.split(',').map(part => paxNumber(part, 'GNU.sparse.map', where)))
    } else if (major === '1') entry.map = this.#mapInData(entry, where)
    else entry.map = toMap(pax.sparse)
  }

  /** Lines of decimal numbers, padded to a whole block: how many segments, then offset and length of each. */
  #mapInData(entry: TarEntry, where: () => string): Float64Array {
    const numbers: number[] = []
    let wanted = 1
    let digits = ''
    for (let at = entry.offset; numbers.length < wanted; at += TAR_BLOCK) {
      const block = this.#bytes(at, TAR_BLOCK, where)
      for (let i = 0; i < TAR_BLOCK && numbers.length < wanted; i++) {
        if (block[i] !== 10) digits += String.fromCharCode(block[i]!)
        else {
          numbers.push(paxNumber(digits, 'map', where))
          digits = ''
          if (numbers.length === 1) wanted = 1 + numbers[0]! * 2
        }
        if (digits.length > 20) throw new ImageError('BAD_TAR', `${where()}: the map of a sparse file is damaged`)
      }
      if (!(wanted >= 1 && wanted <= SPARSE_LIMIT)) {
        throw new ImageError('BAD_TAR', `${where()}: too many segments in a sparse file`)
      }
      entry.offset = at + TAR_BLOCK
    }
    return toMap(numbers.slice(1))
  }

  #extension(size: number, where: () => string): Buffer {
    if (size < 0 || size > EXTENSION_LIMIT) {
      throw new ImageError('BAD_TAR', `${where()}: an extended header of ${size} bytes: ${EXTENSION_LIMIT} is the most`)
    }
    const bytes = Buffer.alloc(size)
    if (this.#position + size > this.#size || readFully(this.#fd, bytes, this.#position) < size) {
      throw new ImageError('BAD_TAR', `${where()}: the archive ends inside an extended header: it is truncated`)
    }
    this.#position += padded(size)
    return bytes
  }

  /** Bytes of the archive through a window: valid until the next call. */
  #bytes(at: number, length: number, where: () => string): Buffer {
    if (at < this.#windowStart || at + length > this.#windowStart + this.#windowLength) {
      this.#windowLength = readFully(this.#fd, this.#window, at)
      this.#windowStart = at
      if (this.#windowLength < length) {
        throw new ImageError('BAD_TAR', `${where()}: the archive ends in the middle of a header: it is truncated`)
      }
    }
    const from = at - this.#windowStart
    return this.#window.subarray(from, from + length)
  }
}

const cString = (bytes: Buffer): string => text(bytes, 0, bytes.length)

function xattrsOf(records: PaxRecords): Map<string, Uint8Array> | undefined {
  let xattrs: Map<string, Uint8Array> | undefined
  for (const [key, value] of records) {
    if (!key.startsWith(XATTR) || key.length === XATTR.length) continue
    xattrs ??= new Map()
    xattrs.set(key.slice(XATTR.length), Buffer.from(value, 'latin1'))
  }
  return xattrs
}

/** Pairs (offset, length) to triples with the place in the data, which lies packed. */
function toMap(pairs: readonly number[]): Float64Array {
  const map: number[] = []
  let from = 0
  for (let i = 0; i + 1 < pairs.length; i += 2) {
    const length = pairs[i + 1]!
    // A last segment of no length only states the size of the file.
    if (length !== 0) map.push(pairs[i]!, length, from)
    from += length
  }
  return Float64Array.from(map)
}

function checkMap(entry: TarEntry, available: number, where: () => string): void {
  const map = entry.map!
  let end = 0
  let stored = 0
  for (let i = 0; i < map.length; i += 3) {
    if (map[i]! < end || map[i + 1]! < 0)
      throw new ImageError('BAD_TAR', `${where()}: the map of a sparse file is not in order`)
    end = map[i]! + map[i + 1]!
    stored += map[i + 1]!
  }
  if (entry.size < 0 || end > entry.size || stored > available) {
    throw new ImageError('BAD_TAR', `${where()}: the map of a sparse file goes beyond its data`)
  }
}
