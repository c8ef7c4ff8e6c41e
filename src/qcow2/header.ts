/** The header: parsed with every field checked before use, and written. "Header" and "Header extensions" in qcow2.txt. */
import { getU64, setU64, textOf, viewOver } from './bytes.ts'
import { DiskError } from './errors.ts'
import {
  COMPRESSION_ZLIB,
  COMPRESSION_ZSTD,
  EXTENSION_BACKING_FORMAT,
  EXTENSION_BITMAPS,
  EXTENSION_DATA_FILE,
  EXTENSION_END,
  EXTENSION_FEATURE_NAMES,
  EXTENSION_LUKS,
  HEADER,
  INCOMPAT_COMPRESSION,
  INCOMPAT_CORRUPT,
  INCOMPAT_DATA_FILE,
  INCOMPAT_DIRTY,
  INCOMPAT_EXTENDED_L2,
  MAGIC,
  MAX_BACKING_NAME_BYTES,
  MAX_CLUSTER_BITS,
  MAX_L1_BYTES,
  MAX_OFFSET,
  MAX_REFCOUNT_ORDER,
  MAX_REFCOUNT_TABLE_BYTES,
  MAX_SNAPSHOTS,
  MIN_CLUSTER_BITS,
  V2_HEADER_BYTES,
  V3_FULL_HEADER_BYTES,
  V3_HEADER_BYTES,
} from './layout.ts'
import type { Storage } from './storage.ts'

export interface HeaderExtension {
  readonly type: number
  readonly data: Uint8Array
}

export interface Header {
  version: 2 | 3
  backingFile: string | undefined
  backingFormat: string | undefined
  clusterBits: number
  size: number
  l1Size: number
  l1TableOffset: number
  refcountTableOffset: number
  refcountTableClusters: number
  nbSnapshots: number
  snapshotsOffset: number
  /** Low 32 bits; unknown bits are refused on parsing. */
  incompatibleFeatures: number
  compatibleFeatures: number
  autoclearFeatures: number
  refcountOrder: number
  headerLength: number
  compressionType: number
  /** In file order, the backing format and the end marker left out. */
  extensions: HeaderExtension[]
}

const KNOWN_INCOMPATIBLE = INCOMPAT_DIRTY | INCOMPAT_CORRUPT | INCOMPAT_COMPRESSION

/** Number of L1 entries that a disk of `size` bytes needs. */
export const l1EntriesFor = (size: number, clusterBits: number): number =>
  Math.ceil(size / (2 ** clusterBits * 2 ** (clusterBits - 3)))

export function readHeader(storage: Storage, path: string): Header {
  const fileSize = storage.size()
  const fixed = new Uint8Array(V3_FULL_HEADER_BYTES)
  storage.read(fixed, 0)
  const view = viewOver(fixed)
  if (fileSize < 4 || view.getUint32(HEADER.magic) !== MAGIC) {
    throw new DiskError(
      'NOT_QCOW2',
      path,
      'is not a QCOW2 image (no magic number); if it is a raw disk, open it as raw',
    )
  }
  if (fileSize < V2_HEADER_BYTES) throw truncated(path, 'header', fileSize)
  const version = view.getUint32(HEADER.version)
  if (version !== 2 && version !== 3) {
    throw new DiskError('UNSUPPORTED', path, `QCOW2 version ${version} is not known; versions 2 and 3 are`)
  }
  if (version === 3 && fileSize < V3_HEADER_BYTES) throw truncated(path, 'header', fileSize)
  const clusterBits = view.getUint32(HEADER.clusterBits)
  if (clusterBits < MIN_CLUSTER_BITS || clusterBits > MAX_CLUSTER_BITS) {
    throw corrupt(path, `cluster size 2^${clusterBits} is outside 512 bytes to 2 MiB`)
  }
  const crypt = view.getUint32(HEADER.cryptMethod)
  if (crypt !== 0) {
    const method = crypt === 1 ? 'AES' : crypt === 2 ? 'LUKS' : `method ${crypt}`
    throw new DiskError(
      'ENCRYPTED',
      path,
      `is encrypted (${method}); decrypt it with qemu-img convert --object secret,... and open the result`,
    )
  }
  const v3 = version === 3
  const header: Header = {
    version,
    backingFile: undefined,
    backingFormat: undefined,
    clusterBits,
    size: getU64(view, HEADER.size),
    l1Size: view.getUint32(HEADER.l1Size),
    l1TableOffset: getU64(view, HEADER.l1TableOffset),
    refcountTableOffset: getU64(view, HEADER.refcountTableOffset),
    refcountTableClusters: view.getUint32(HEADER.refcountTableClusters),
    nbSnapshots: view.getUint32(HEADER.nbSnapshots),
    snapshotsOffset: getU64(view, HEADER.snapshotsOffset),
    incompatibleFeatures: v3 ? view.getUint32(HEADER.incompatibleFeatures + 4) : 0,
    compatibleFeatures: v3 ? view.getUint32(HEADER.compatibleFeatures + 4) : 0,
    autoclearFeatures: v3 ? view.getUint32(HEADER.autoclearFeatures + 4) : 0,
    refcountOrder: v3 ? view.getUint32(HEADER.refcountOrder) : 4,
    headerLength: v3 ? view.getUint32(HEADER.headerLength) : V2_HEADER_BYTES,
    compressionType: COMPRESSION_ZLIB,
    extensions: [],
  }
  if (header.headerLength < (v3 ? V3_HEADER_BYTES : V2_HEADER_BYTES) || header.headerLength > 2 ** clusterBits) {
    throw corrupt(path, `header length ${header.headerLength} does not fit the first cluster`)
  }
  const cluster = new Uint8Array(Math.min(2 ** clusterBits, fileSize))
  storage.read(cluster, 0)
  readExtensions(header, cluster, view, path)
  if (v3) checkFeatures(header, view, path)
  if (header.headerLength > HEADER.compressionType) header.compressionType = view.getUint8(HEADER.compressionType)
  checkCompression(header, path)
  checkGeometry(header, fileSize, path)
  return header
}

function checkFeatures(header: Header, view: DataView, path: string): void {
  const bits = header.incompatibleFeatures
  const high = view.getUint32(HEADER.incompatibleFeatures)
  if ((bits & INCOMPAT_DATA_FILE) !== 0) {
    throw new DiskError('UNSUPPORTED', path, 'keeps its data in an external file; bring it in with qemu-img convert')
  }
  if ((bits & INCOMPAT_EXTENDED_L2) !== 0) {
    throw new DiskError(
      'UNSUPPORTED',
      path,
      'has extended L2 entries; convert it with qemu-img convert -o extended_l2=off',
    )
  }
  const unknown: string[] = []
  for (let bit = 0; bit < 64; bit++) {
    const set = bit < 32 ? (bits >>> bit) & 1 : (high >>> (bit - 32)) & 1
    if (set && (bit >= 32 || ((KNOWN_INCOMPATIBLE >>> bit) & 1) === 0)) unknown.push(featureName(header, 0, bit))
  }
  if (unknown.length > 0) {
    throw new DiskError('UNSUPPORTED', path, `needs features that are not known here: ${unknown.join(', ')}`)
  }
}

function checkCompression(header: Header, path: string): void {
  const marked = (header.incompatibleFeatures & INCOMPAT_COMPRESSION) !== 0
  if (header.compressionType !== COMPRESSION_ZLIB && header.compressionType !== COMPRESSION_ZSTD) {
    throw new DiskError(
      'UNSUPPORTED',
      path,
      `compression type ${header.compressionType} is not known; zlib and zstd are`,
    )
  }
  if (marked !== (header.compressionType !== COMPRESSION_ZLIB)) {
    throw corrupt(path, 'the compression type and its feature bit disagree')
  }
}

/** The name that the image itself gives a feature bit ("Feature name table"), or its number. */
export function featureName(header: Header, kind: number, bit: number): string {
  const table = header.extensions.find(extension => extension.type === EXTENSION_FEATURE_NAMES)?.data
  for (let at = 0; table && at + 48 <= table.length; at += 48) {
    if (table[at] !== kind || table[at + 1] !== bit) continue
    const name = table.subarray(at + 2, at + 48)
    const end = name.indexOf(0)
    return JSON.stringify(textOf(end < 0 ? name : name.subarray(0, end)))
  }
  return `bit ${bit}`
}

function readExtensions(header: Header, cluster: Uint8Array, fixed: DataView, path: string): void {
  const view = viewOver(cluster)
  const nameOffset = getU64(fixed, HEADER.backingFileOffset)
  const nameBytes = fixed.getUint32(HEADER.backingFileSize)
  const end = nameOffset === 0 ? cluster.length : Math.min(nameOffset, cluster.length)
  let at = header.headerLength
  while (at + 8 <= end) {
    const type = view.getUint32(at)
    const length = view.getUint32(at + 4)
    if (type === EXTENSION_END) break
    if (at + 8 + length > end) throw corrupt(path, `header extension 0x${type.toString(16)} runs past its area`)
    const data = cluster.slice(at + 8, at + 8 + length)
    if (type === EXTENSION_BACKING_FORMAT) header.backingFormat = textOf(data)
    else if (type === EXTENSION_LUKS) throw new DiskError('ENCRYPTED', path, 'is encrypted (LUKS)')
    else if (type !== EXTENSION_DATA_FILE) header.extensions.push({ type, data })
    at += 8 + Math.ceil(length / 8) * 8
  }
  if (nameOffset === 0) return
  if (nameBytes === 0) return
  if (nameBytes > MAX_BACKING_NAME_BYTES || nameOffset + nameBytes > cluster.length) {
    throw corrupt(path, `the backing file's name (${nameBytes} bytes at ${nameOffset}) is outside the first cluster`)
  }
  const name = cluster.subarray(nameOffset, nameOffset + nameBytes)
  if (name.includes(0)) throw corrupt(path, "the backing file's name contains a zero byte")
  header.backingFile = textOf(name)
}

function checkGeometry(header: Header, fileSize: number, path: string): void {
  const clusterSize = 2 ** header.clusterBits
  const inFile = (what: string, offset: number, bytes: number): void => {
    if (offset % clusterSize !== 0) throw corrupt(path, `${what} at ${offset} is not at a cluster boundary`)
    if (offset + bytes > MAX_OFFSET) throw corrupt(path, `${what} at ${offset} is past the largest file offset`)
    if (bytes > 0 && offset >= fileSize) throw truncated(path, what, fileSize)
  }
  if (header.size > MAX_OFFSET) throw new DiskError('TOO_LARGE', path, `a disk of ${header.size} bytes is too large`)
  if (header.refcountOrder > MAX_REFCOUNT_ORDER) throw corrupt(path, `refcount order ${header.refcountOrder} is over 6`)
  if (header.l1Size * 8 > MAX_L1_BYTES) {
    throw new DiskError('TOO_LARGE', path, `its L1 table of ${header.l1Size} entries is over the limit of 32 MiB`)
  }
  if (header.l1Size < l1EntriesFor(header.size, header.clusterBits)) {
    throw corrupt(path, `its L1 table of ${header.l1Size} entries is too small for ${header.size} bytes`)
  }
  inFile('the L1 table', header.l1TableOffset, header.l1Size * 8)
  const tableBytes = header.refcountTableClusters * clusterSize
  if (tableBytes > MAX_REFCOUNT_TABLE_BYTES) {
    throw new DiskError('TOO_LARGE', path, `its refcount table of ${tableBytes} bytes is over the limit of 8 MiB`)
  }
  if (tableBytes === 0) throw corrupt(path, 'it has no refcount table')
  inFile('the refcount table', header.refcountTableOffset, tableBytes)
  if (header.nbSnapshots > MAX_SNAPSHOTS) throw corrupt(path, `${header.nbSnapshots} snapshots are too many`)
  if (header.nbSnapshots > 0) inFile('the snapshot table', header.snapshotsOffset, 1)
  const overlaps = (a: number, aBytes: number, b: number, bBytes: number) => a < b + bBytes && b < a + aBytes
  const l1Bytes = header.l1Size * 8
  if (
    (l1Bytes > 0 && overlaps(header.l1TableOffset, l1Bytes, header.refcountTableOffset, tableBytes)) ||
    (l1Bytes > 0 && header.l1TableOffset < clusterSize) ||
    header.refcountTableOffset < clusterSize
  ) {
    throw corrupt(path, 'its header, L1 table and refcount table overlap; repair it, or restore a copy')
  }
}

/** The first cluster of an image, as bytes: header, extensions, backing file name. */
export function encodeHeader(header: Header, path: string): Uint8Array {
  const clusterSize = 2 ** header.clusterBits
  const bytes = new Uint8Array(clusterSize)
  const view = viewOver(bytes)
  const v3 = header.version === 3
  const length = v3 ? Math.min(V3_FULL_HEADER_BYTES, clusterSize) : V2_HEADER_BYTES
  view.setUint32(HEADER.magic, MAGIC)
  view.setUint32(HEADER.version, header.version)
  view.setUint32(HEADER.clusterBits, header.clusterBits)
  setU64(view, HEADER.size, header.size)
  view.setUint32(HEADER.l1Size, header.l1Size)
  setU64(view, HEADER.l1TableOffset, header.l1TableOffset)
  setU64(view, HEADER.refcountTableOffset, header.refcountTableOffset)
  view.setUint32(HEADER.refcountTableClusters, header.refcountTableClusters)
  view.setUint32(HEADER.nbSnapshots, header.nbSnapshots)
  setU64(view, HEADER.snapshotsOffset, header.snapshotsOffset)
  if (v3) {
    view.setUint32(HEADER.incompatibleFeatures + 4, header.incompatibleFeatures)
    view.setUint32(HEADER.compatibleFeatures + 4, header.compatibleFeatures)
    view.setUint32(HEADER.autoclearFeatures + 4, header.autoclearFeatures)
    view.setUint32(HEADER.refcountOrder, header.refcountOrder)
    view.setUint32(HEADER.headerLength, length)
    view.setUint8(HEADER.compressionType, header.compressionType)
  }
  let at = length
  const room = (need: number): void => {
    if (at + need > clusterSize) {
      throw new DiskError(
        'INVALID_ARGUMENT',
        path,
        `the header does not fit a cluster of ${clusterSize} bytes: use larger clusters or a shorter backing file name`,
      )
    }
  }
  const extend = (type: number, data: Uint8Array): void => {
    room(8 + data.length + 8)
    view.setUint32(at, type)
    view.setUint32(at + 4, data.length)
    bytes.set(data, at + 8)
    at += 8 + Math.ceil(data.length / 8) * 8
  }
  if (header.backingFile !== undefined && header.backingFormat !== undefined) {
    extend(EXTENSION_BACKING_FORMAT, new TextEncoder().encode(header.backingFormat))
  }
  for (const extension of header.extensions) {
    // Feature names only serve error messages: they give way where a small cluster has no room for the rest.
    if (extension.type === EXTENSION_FEATURE_NAMES && at + extension.data.length + 1100 > clusterSize) continue
    extend(extension.type, extension.data)
  }
  room(8)
  at += 8
  if (header.backingFile !== undefined) {
    const name = new TextEncoder().encode(header.backingFile)
    if (name.length === 0 || name.length > MAX_BACKING_NAME_BYTES) {
      throw new DiskError(
        'INVALID_ARGUMENT',
        path,
        `the backing file's name has ${name.length} bytes; 1 to 1023 are allowed`,
      )
    }
    room(name.length)
    bytes.set(name, at)
    setU64(view, HEADER.backingFileOffset, at)
    view.setUint32(HEADER.backingFileSize, name.length)
  }
  return bytes
}

/** Where the persistent bitmaps' directory is, when the header says that it is consistent. */
export function bitmapDirectory(header: Header): { count: number; bytes: number; offset: number } | undefined {
  const data = header.extensions.find(extension => extension.type === EXTENSION_BITMAPS)?.data
  if (!data || data.length < 24 || (header.autoclearFeatures & 1) === 0) return undefined
  const view = viewOver(data)
  return { count: view.getUint32(0), bytes: getU64(view, 8), offset: getU64(view, 16) }
}

const corrupt = (path: string, what: string): DiskError => new DiskError('CORRUPT', path, `is damaged: ${what}`)
const truncated = (path: string, what: string, size: number): DiskError =>
  new DiskError('TRUNCATED', path, `is cut short: ${what} is past its end at ${size} bytes; restore a full copy`)
