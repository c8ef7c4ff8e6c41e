/**
 * What stands behind the pages of a memory layer's file:
 *
 *   0            RAM, page i at i * 4096; pages that are zeros, or the parent's, are holes
 *   RAM size     header (128 bytes) | data bitmap | zero bitmap | XXH64 of each data page, in RAM order
 *
 * The header's first checksum covers itself and the bitmaps and is checked whenever the layer is opened; the second covers
 * the page hashes, which only `verify` reads.
 */
import { SnapshotError } from './errors.ts'
import { hash64, hashText, PAGE } from './hash.ts'
import { PageSet } from './page-set.ts'

const MAGIC = 0x4c4d_454d_5254_4956n // 'VITRMEML', little-endian
const VERSION = 1
export const HEADER_BYTES = 128
/** 4 GiB: what a wasm32 memory can hold. */
const MAX_RAM = 2 ** 32

/** Offsets in the header. */
const AT = {
  magic: 0,
  version: 8,
  pageSize: 12,
  ramSize: 16,
  dataPages: 24,
  bitmapBytes: 32,
  hashesSum: 40,
  indexSum: 48,
} as const

export interface MemoryIndex {
  readonly ramSize: number
  readonly data: PageSet
  readonly zero: PageSet
  /** Of the hashes' section. */
  readonly hashesSum: bigint
}

export const bitmapBytesFor = (ramSize: number): number => Math.ceil(ramSize / PAGE / 32) * 4
/** Where the page hashes start, from the end of the RAM area. */
export const hashesOffset = (ramSize: number): number => HEADER_BYTES + 2 * bitmapBytesFor(ramSize)
/** The length of a whole file with so many data pages. */
export const layerBytes = (ramSize: number, dataPages: number): number =>
  ramSize + hashesOffset(ramSize) + dataPages * 8

/** Header and bitmaps, and the checksum that ties a manifest to them. */
export function encodeIndex(index: MemoryIndex): { bytes: Uint8Array; sum: string } {
  const { ramSize, data, zero } = index
  const bitmap = bitmapBytesFor(ramSize)
  const bytes = new Uint8Array(HEADER_BYTES + 2 * bitmap)
  const view = new DataView(bytes.buffer)
  view.setBigUint64(AT.magic, MAGIC, true)
  view.setUint32(AT.version, VERSION, true)
  view.setUint32(AT.pageSize, PAGE, true)
  view.setBigUint64(AT.ramSize, BigInt(ramSize), true)
  view.setBigUint64(AT.dataPages, BigInt(data.count), true)
  view.setUint32(AT.bitmapBytes, bitmap, true)
  view.setBigUint64(AT.hashesSum, index.hashesSum, true)
  bytes.set(data.bytes, HEADER_BYTES)
  bytes.set(zero.bytes, HEADER_BYTES + bitmap)
  // Over everything with the sum's own place empty.
  view.setBigUint64(AT.indexSum, hash64(bytes), true)
  return { bytes, sum: hashText(bytes) }
}

/** `bytes` starts at the end of the RAM area. `where` is for messages. */
export function decodeIndex(bytes: Uint8Array, ramSize: number, where: string): MemoryIndex {
  const truncated = (): SnapshotError =>
    new SnapshotError('TRUNCATED', `${where} ends too early: remove the snapshot, or import it again`)
  const corrupt = (what: string): SnapshotError =>
    new SnapshotError('CORRUPT', `${where} is damaged (${what}): remove the snapshot, or import it again`)
  if (!Number.isInteger(ramSize / PAGE) || ramSize <= 0 || ramSize > MAX_RAM) throw corrupt('its size')
  if (bytes.length < HEADER_BYTES) throw truncated()
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length)
  if (view.getBigUint64(AT.magic, true) !== MAGIC) throw corrupt('it has no index')
  const version = view.getUint32(AT.version, true)
  if (version > VERSION) {
    throw new SnapshotError(
      'NEWER_VERSION',
      `${where} has format version ${version}, and this Vitrine knows up to ${VERSION}: use a newer Vitrine`,
    )
  }
  const bitmap = bitmapBytesFor(ramSize)
  if (view.getUint32(AT.pageSize, true) !== PAGE || view.getBigUint64(AT.ramSize, true) !== BigInt(ramSize))
    throw corrupt('its size')
  if (view.getUint32(AT.bitmapBytes, true) !== bitmap) throw corrupt('its bitmaps')
  if (bytes.length < HEADER_BYTES + 2 * bitmap) throw truncated()
  const copy = new Uint8Array(bytes.subarray(0, HEADER_BYTES + 2 * bitmap))
  const said = view.getBigUint64(AT.indexSum, true)
  new DataView(copy.buffer).setBigUint64(AT.indexSum, 0n, true)
  if (hash64(copy) !== said) throw corrupt('the checksum of its index')
  const pages = ramSize / PAGE
  const words = (at: number): Uint32Array => new Uint32Array(copy.buffer, at, bitmap / 4)
  const data = new PageSet(pages, words(HEADER_BYTES))
  const zero = new PageSet(pages, words(HEADER_BYTES + bitmap))
  if (BigInt(data.count) !== view.getBigUint64(AT.dataPages, true)) throw corrupt('its number of pages')
  const spare = pages % 32
  if (spare !== 0 && (data.words.at(-1)! | zero.words.at(-1)!) >>> spare !== 0) throw corrupt('pages past its end')
  return { ramSize, data, zero, hashesSum: view.getBigUint64(AT.hashesSum, true) }
}
