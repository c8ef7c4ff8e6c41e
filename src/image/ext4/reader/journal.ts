/**
 * The journal of a file system that was not unmounted (fs/jbd2; Documentation/filesystems/ext4/journal.rst): what is committed
 * there and may not have reached its place is read from the journal instead. Nothing is written.
 */
import { ImageError } from '../../errors.ts'
import { crc32c, crc32cWord } from '../crc32c.ts'
import { JOURNAL_MAGIC } from '../layout.ts'
import type { BlockSource } from './block-source.ts'

const DESCRIPTOR = 1
const COMMIT = 2
const SUPERBLOCK_V1 = 3
const SUPERBLOCK_V2 = 4
const REVOKE = 5

const INCOMPAT_REVOKE = 1
const INCOMPAT_64BIT = 2
const INCOMPAT_ASYNC_COMMIT = 4
const INCOMPAT_CSUM_V2 = 8
const INCOMPAT_CSUM_V3 = 0x10
const INCOMPAT_FAST_COMMIT = 0x20
const KNOWN =
  INCOMPAT_REVOKE | INCOMPAT_64BIT | INCOMPAT_ASYNC_COMMIT | INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3 | INCOMPAT_FAST_COMMIT

const TAG_ESCAPE = 1
const TAG_SAME_UUID = 2
const TAG_LAST = 8

interface Log {
  readonly source: BlockSource
  /** Journal block number to disk block number. */
  readonly map: readonly number[]
  readonly first: number
  readonly end: number
  readonly start: number
  readonly sequence: number
  readonly wide: boolean
  readonly tagBytes: number
  readonly checksums: 0 | 2 | 3
  readonly seed: number
}

/** Big-endian, unlike the rest of ext4. */
const viewOf = (bytes: Uint8Array): DataView => new DataView(bytes.buffer, bytes.byteOffset, bytes.length)

/** The newest committed contents of blocks, by block number. `map` says where each block of the journal is on the disk. */
export function replayJournal(source: BlockSource, map: readonly number[]): Map<number, Uint8Array> {
  const log = openLog(source, map)
  const replayed = new Map<number, Uint8Array>()
  if (!log) return replayed
  const revoked = new Map<number, number>()
  const transactions = scan(log, revoked)
  for (const { sequence, tags } of transactions) {
    for (const { block, at, escaped, sum } of tags) {
      const last = revoked.get(block)
      if (last !== undefined && last >= sequence) continue
      const bytes = readLogBlock(log, at).slice()
      if (escaped) viewOf(bytes).setUint32(0, JOURNAL_MAGIC)
      checkTag(log, sequence, bytes, escaped, sum)
      replayed.set(block, bytes)
    }
  }
  return replayed
}

function openLog(source: BlockSource, map: readonly number[]): Log | undefined {
  if (map.length === 0) throw new ImageError('CORRUPT', 'the journal of the file system is empty: check the disk')
  const superblock = source.block(map[0]!)
  const view = viewOf(superblock)
  const type = view.getUint32(4)
  if (view.getUint32(0) !== JOURNAL_MAGIC || (type !== SUPERBLOCK_V1 && type !== SUPERBLOCK_V2))
    throw new ImageError('CORRUPT', 'the journal of the file system has no superblock: check the disk')
  const start = view.getUint32(0x1c)
  if (start === 0) return undefined
  const incompat = type === SUPERBLOCK_V2 ? view.getUint32(0x28) : 0
  if ((incompat & ~KNOWN) !== 0)
    throw new ImageError('UNSUPPORTED', `the journal has features (0x${incompat.toString(16)}) that are not known`)
  const fastBlocks = incompat & INCOMPAT_FAST_COMMIT ? view.getUint32(0x54) || 256 : 0
  const first = view.getUint32(0x14)
  const end = Math.min(view.getUint32(0x10), map.length) - fastBlocks
  if (view.getUint32(0x0c) !== source.blockSize || first === 0 || start < first || start >= end)
    throw new ImageError('CORRUPT', "the journal's superblock makes no sense: check the disk")
  const checksums = incompat & INCOMPAT_CSUM_V3 ? 3 : incompat & INCOMPAT_CSUM_V2 ? 2 : 0
  const wide = (incompat & INCOMPAT_64BIT) !== 0
  return {
    source,
    map,
    first,
    end,
    start,
    sequence: view.getUint32(0x18),
    wide,
    // struct journal_block_tag3_s; journal_block_tag_s with or without its upper half, and two bytes more with CSUM_V2.
    tagBytes: checksums === 3 ? 16 : (wide ? 12 : 8) + (checksums === 2 ? 2 : 0),
    checksums,
    seed: crc32c(~0, superblock, 0x30, 0x40),
  }
}

const readLogBlock = (log: Log, at: number): Uint8Array => log.source.block(log.map[at]!)
const following = (log: Log, at: number): number => (at + 1 >= log.end ? log.first : at + 1)

interface Tag {
  readonly block: number
  /** Where in the journal its contents are. */
  readonly at: number
  readonly escaped: boolean
  readonly sum: number
}

interface Transaction {
  readonly sequence: number
  readonly tags: readonly Tag[]
}

/** Committed transactions in order; fills `revoked` with the last transaction that revoked each block. */
function scan(log: Log, revoked: Map<number, number>): Transaction[] {
  const transactions: Transaction[] = []
  let tags: Tag[] = []
  let revocations: number[] = []
  let { sequence } = log
  let at = log.start
  // A log that goes round once without an end is not one.
  for (let steps = log.end - log.first; steps > 0; ) {
    const block = readLogBlock(log, at)
    const view = viewOf(block)
    if (view.getUint32(0) !== JOURNAL_MAGIC || view.getUint32(8) !== sequence) break
    const type = view.getUint32(4)
    at = following(log, at)
    steps--
    if (type === DESCRIPTOR) {
      if (!hasTail(log, block)) break
      const found = readTags(log, block, at)
      tags.push(...found.tags)
      steps -= found.count
      at = found.next
    } else if (type === REVOKE) {
      if (!hasTail(log, block)) break
      revocations.push(...readRevocations(log, block))
    } else if (type === COMMIT) {
      if (!isCommit(log, block)) break
      transactions.push({ sequence, tags })
      for (const number of revocations) revoked.set(number, sequence)
      tags = []
      revocations = []
      sequence = (sequence + 1) >>> 0
    } else break
  }
  return transactions
}

function readTags(log: Log, block: Uint8Array, from: number): { tags: Tag[]; count: number; next: number } {
  const view = viewOf(block)
  const tags: Tag[] = []
  const end = block.length - (log.checksums === 0 ? 0 : 4)
  let next = from
  for (let at = 12; at + log.tagBytes <= end; ) {
    const isV3 = log.checksums === 3
    const flags = isV3 ? view.getUint32(at + 4) : view.getUint16(at + 6)
    const high = log.wide ? view.getUint32(at + 8) : 0
    const sum = isV3 ? view.getUint32(at + 12) : view.getUint16(at + 4)
    tags.push({ block: high * 2 ** 32 + view.getUint32(at), at: next, escaped: (flags & TAG_ESCAPE) !== 0, sum })
    next = following(log, next)
    at += log.tagBytes + (flags & TAG_SAME_UUID ? 0 : 16)
    if (flags & TAG_LAST) break
  }
  return { tags, count: tags.length, next }
}

function readRevocations(log: Log, block: Uint8Array): number[] {
  const view = viewOf(block)
  const end = Math.min(view.getUint32(12), block.length - (log.checksums === 0 ? 0 : 4))
  const numbers: number[] = []
  const width = log.wide ? 8 : 4
  for (let at = 16; at + width <= end; at += width)
    numbers.push(log.wide ? view.getUint32(at) * 2 ** 32 + view.getUint32(at + 4) : view.getUint32(at))
  return numbers
}

/** Checksum of a descriptor or revoke block, in its last four bytes. */
function hasTail(log: Log, block: Uint8Array): boolean {
  if (log.checksums === 0) return true
  const copy = block.slice()
  const said = viewOf(copy).getUint32(copy.length - 4)
  copy.fill(0, copy.length - 4)
  return crc32c(log.seed, copy) === said
}

/** h_chksum[0] of a commit block. Without checksums the block's presence is the commit. */
function isCommit(log: Log, block: Uint8Array): boolean {
  if (log.checksums === 0) return true
  const copy = block.slice()
  const said = viewOf(copy).getUint32(16)
  copy.fill(0, 16, 20)
  return crc32c(log.seed, copy) === said
}

/** The sum is over the block as it lies in the journal: its first word blanked when it was escaped. */
function checkTag(log: Log, sequence: number, bytes: Uint8Array, escaped: boolean, sum: number): void {
  if (log.checksums === 0) return
  const swapped = new DataView(new ArrayBuffer(4))
  swapped.setUint32(0, sequence)
  const stored = escaped ? bytes.slice() : bytes
  if (escaped) stored.fill(0, 0, 4)
  const crc = crc32c(crc32cWord(log.seed, swapped.getUint32(0, true)), stored)
  if ((log.checksums === 3 ? crc : crc & 0xffff) !== sum)
    throw new ImageError('CORRUPT', `a block in transaction ${sequence} of the journal is damaged: check the disk`)
}
