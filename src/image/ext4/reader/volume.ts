/**
 * Reads an ext4 file system without mounting it, as it would be after its journal is replayed: inodes, directories, contents,
 * links, attributes. The disk may be a guest's, so everything on it is checked before it is used.
 */
import type { BlockImage } from '../../../qcow2/block-image.ts'
import { ImageError } from '../../errors.ts'
import type { InodeKind } from '../../tree/inode.ts'
import { FLAG_EXTENTS, INO_ROOT } from '../layout.ts'
import { type Attribute, attributesOf } from './attributes.ts'
import { blockMapOf, type FileRun } from './block-map.ts'
import { BlockSource } from './block-source.ts'
import { replayJournal } from './journal.ts'

const MAGIC = 0xef53
const COMPAT_JOURNAL = 0x4
const INCOMPAT_RECOVER = 0x4
const INCOMPAT_META_BG = 0x10
const INCOMPAT_64BIT = 0x80
/** filetype, recover, meta_bg, extents, 64bit, mmp, flex_bg, ea_inode, csum_seed, largedir, inline_data, encrypt, casefold. */
const INCOMPAT_KNOWN =
  0x2 | 0x4 | 0x10 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x2000 | 0x4000 | 0x8000 | 0x10000 | 0x20000
const FLAG_INLINE_DATA = 0x1000_0000
const MAX_DIRECTORY = 1 << 30

const KINDS: Readonly<Record<number, InodeKind>> = {
  1: 'fifo',
  2: 'character',
  4: 'directory',
  6: 'block',
  8: 'file',
  10: 'symlink',
  12: 'socket',
}

interface Geometry {
  readonly inodes: number
  readonly inodesPerGroup: number
  readonly blocksPerGroup: number
  readonly firstBlock: number
  readonly inodeSize: number
  readonly descriptorSize: number
  readonly wide: boolean
  readonly groups: number
  readonly firstMetaBlock: number
  readonly journalInode: number
  readonly needsReplay: boolean
}

export interface VolumeInode {
  readonly number: number
  readonly kind: InodeKind
  readonly mode: number
  readonly uid: number
  readonly gid: number
  readonly size: number
  readonly links: number
  /** Device numbers of character and block devices, as they are stored. */
  readonly device: number
  readonly flags: number
  readonly iBlock: Uint8Array
  readonly extra: Uint8Array
  readonly attributeBlock: number
}

export interface VolumeEntry {
  /** Byte string: each character is a byte. */
  readonly name: string
  readonly inode: number
}

export class Ext4Volume {
  readonly #source: BlockSource
  readonly #geometry: Geometry

  /** Reads the superblock and, if the file system was not unmounted, what its journal holds. The image stays the caller's. */
  constructor(image: BlockImage) {
    this.#source = new BlockSource(image)
    this.#geometry = readSuperblock(this.#source, image.path)
    if (this.#geometry.needsReplay && this.#geometry.journalInode !== 0) {
      const journal = this.inode(this.#geometry.journalInode)
      const replayed = replayJournal(this.#source, journalBlocks(this.#source, journal))
      this.#source.replace(replayed)
      // The superblock may be among them.
      this.#geometry = readSuperblock(this.#source, image.path)
    }
  }

  get root(): VolumeInode {
    return this.inode(INO_ROOT)
  }

  inode(number: number): VolumeInode {
    const { inodes, inodesPerGroup, inodeSize } = this.#geometry
    if (!(number >= 1 && number <= inodes))
      throw new ImageError('CORRUPT', `there is no inode ${number}: check the disk`)
    const group = Math.floor((number - 1) / inodesPerGroup)
    const offset = ((number - 1) % inodesPerGroup) * inodeSize
    const size = this.#source.blockSize
    const block = this.#source.block(this.#inodeTable(group) + Math.floor(offset / size))
    return decodeInode(block.slice(offset % size, (offset % size) + inodeSize), number)
  }

  #inodeTable(group: number): number {
    const { descriptorSize, firstMetaBlock, firstBlock, blocksPerGroup, wide } = this.#geometry
    const perBlock = this.#source.blockSize / descriptorSize
    const index = Math.floor(group / perBlock)
    // They follow the superblock; with meta_bg those of each block's worth of groups are in the first of these groups.
    const superblock = this.#source.blockSize === 1024 ? 1 : 0
    const lead = index >= firstMetaBlock ? index * perBlock : 0
    const number =
      lead === 0
        ? superblock + 1 + (index >= firstMetaBlock ? 0 : index)
        : firstBlock + lead * blocksPerGroup + (hasBackup(lead) ? 1 : 0)
    const bytes = this.#source.block(number)
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length)
    const at = (group % perBlock) * descriptorSize
    return view.getUint32(at + 8, true) + (wide && descriptorSize >= 64 ? view.getUint32(at + 0x28, true) * 2 ** 32 : 0)
  }

  /** Entries of a directory but `.` and `..`. Hashed directories read the same: their index looks like unused space. */
  entries(directory: VolumeInode): VolumeEntry[] {
    const entries: VolumeEntry[] = []
    if (directory.flags & FLAG_INLINE_DATA) {
      // The first four bytes are the parent's number.
      readEntries(directory.iBlock.subarray(4), entries)
      const rest = this.attributes(directory).find(({ name }) => name === 'system.data')
      if (rest) readEntries(rest.value, entries)
      return entries
    }
    if (directory.size > MAX_DIRECTORY) throw new ImageError('CORRUPT', `directory ${directory.number} is too large`)
    const block = new Uint8Array(this.#source.blockSize)
    for (const run of this.runs(directory)) {
      for (let i = 0; i < run.count && (run.from + i) * block.length < directory.size; i++) {
        this.#source.read(run.block + i, block)
        readEntries(block, entries)
      }
    }
    return entries
  }

  /** Where a file's bytes are, in blocks; none for what is stored in the inode itself. */
  runs(inode: VolumeInode): FileRun[] {
    if (inode.flags & FLAG_INLINE_DATA) return []
    return blockMapOf(this.#source, inode.iBlock, inode.flags)
  }

  /** Whether the journal has newer contents for any of these blocks. */
  isReplaced(block: number, count: number): boolean {
    return this.#source.isReplaced(block, count)
  }

  get blockSize(): number {
    return this.#source.blockSize
  }

  /** The target of a symbolic link: a byte string. */
  target(link: VolumeInode): string {
    const { blockSize } = this.#source
    if (link.size > blockSize) throw new ImageError('CORRUPT', `the symbolic link ${link.number} is too long`)
    const isFast = (link.flags & (FLAG_EXTENTS | FLAG_INLINE_DATA)) === 0 && link.size < 60
    const bytes = isFast ? link.iBlock.subarray(0, link.size) : this.read(link, 0, link.size)
    return Buffer.from(bytes).toString('latin1')
  }

  attributes(inode: VolumeInode): Attribute[] {
    return attributesOf(this.#source, inode.extra, inode.attributeBlock)
  }

  /** Bytes of a file from `offset` on; what lies past its end is left out. */
  read(inode: VolumeInode, offset: number, length: number, runs: readonly FileRun[] = this.runs(inode)): Uint8Array {
    const bytes = new Uint8Array(Math.max(0, Math.min(length, inode.size - offset)))
    if (inode.flags & FLAG_INLINE_DATA) {
      const rest = this.attributes(inode).find(({ name }) => name === 'system.data')?.value ?? new Uint8Array(0)
      const all = Buffer.concat([inode.iBlock, rest])
      bytes.set(all.subarray(offset, Math.min(all.length, offset + bytes.length)))
      return bytes
    }
    const size = this.#source.blockSize
    for (const run of runs) {
      const start = Math.max(offset, run.from * size)
      const end = Math.min(offset + bytes.length, (run.from + run.count) * size)
      if (start >= end) continue
      const firstBlock = Math.floor(start / size)
      const part = new Uint8Array(Math.ceil(end / size) * size - firstBlock * size)
      this.#source.read(run.block + (firstBlock - run.from), part)
      bytes.set(part.subarray(start - firstBlock * size, end - firstBlock * size), start - offset)
    }
    return bytes
  }
}

/** sparse_super: copies are in groups 0, 1 and powers of 3, 5 and 7. */
function hasBackup(group: number): boolean {
  if (group <= 1) return true
  for (const base of [3, 5, 7]) {
    let power = base
    while (power < group) power *= base
    if (power === group) return true
  }
  return false
}

function readSuperblock(source: BlockSource, path: string): Geometry {
  const isFirst = source.blockSize === 1024
  // After the journal is replayed the newest superblock may be there.
  const bytes = isFirst ? source.bytes(1024, 1024).slice() : source.block(0).slice(1024, 2048)
  const view = new DataView(bytes.buffer)
  const bad = (what: string): ImageError =>
    new ImageError('CORRUPT', `there is no ext4 file system on ${path} that can be read (${what}): check the disk`)
  if (view.getUint16(0x38, true) !== MAGIC) throw bad('no magic number')
  const incompat = view.getUint32(0x60, true)
  if ((incompat & ~INCOMPAT_KNOWN) !== 0) {
    throw new ImageError(
      'UNSUPPORTED',
      `the file system on ${path} has features (0x${(incompat & ~INCOMPAT_KNOWN).toString(16)}) that are not known here`,
    )
  }
  const logBlock = view.getUint32(0x18, true)
  if (logBlock > 6) throw bad('its block size')
  if (isFirst && logBlock > 0) source.setBlockSize(1024 << logBlock)
  const wide = (incompat & INCOMPAT_64BIT) !== 0
  const blocks = view.getUint32(0x4, true) + (wide ? view.getUint32(0x150, true) * 2 ** 32 : 0)
  const blocksPerGroup = view.getUint32(0x20, true)
  const inodesPerGroup = view.getUint32(0x28, true)
  const firstBlock = view.getUint32(0x14, true)
  const inodeSize = view.getUint32(0x4c, true) === 0 ? 128 : view.getUint16(0x58, true)
  const descriptorSize = wide ? view.getUint16(0xfe, true) : 32
  const isPower = (value: number): boolean => value > 0 && (value & (value - 1)) === 0
  if (!isPower(inodeSize) || inodeSize < 128 || inodeSize > source.blockSize) throw bad('its inode size')
  if (!isPower(descriptorSize) || descriptorSize < 32 || descriptorSize > 1024) throw bad('its descriptors')
  if (blocksPerGroup === 0 || inodesPerGroup === 0 || firstBlock > 1 || blocks > source.blocks) throw bad('its size')
  const groups = Math.ceil((blocks - firstBlock) / blocksPerGroup)
  const inodes = view.getUint32(0x0, true)
  if (inodes > groups * inodesPerGroup) throw bad('its number of inodes')
  return {
    inodes,
    inodesPerGroup,
    blocksPerGroup,
    firstBlock,
    inodeSize,
    descriptorSize,
    wide,
    groups,
    firstMetaBlock: incompat & INCOMPAT_META_BG ? view.getUint32(0x104, true) : Number.MAX_SAFE_INTEGER,
    journalInode: view.getUint32(0x5c, true) & COMPAT_JOURNAL ? view.getUint32(0xe0, true) : 0,
    needsReplay: (incompat & INCOMPAT_RECOVER) !== 0,
  }
}

function decodeInode(bytes: Uint8Array, number: number): VolumeInode {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length)
  const mode = view.getUint16(0, true)
  const kind = KINDS[mode >>> 12]
  if (!kind)
    throw new ImageError('CORRUPT', `inode ${number} is of no known kind (${mode.toString(8)}): check the disk`)
  const extraSize = bytes.length > 128 ? Math.min(view.getUint16(0x80, true), bytes.length - 128) : 0
  const isDevice = kind === 'character' || kind === 'block'
  return {
    number,
    kind,
    mode: mode & 0xfff,
    uid: view.getUint16(2, true) + view.getUint16(0x78, true) * 65536,
    gid: view.getUint16(0x18, true) + view.getUint16(0x7a, true) * 65536,
    size: view.getUint32(4, true) + view.getUint32(0x6c, true) * 2 ** 32,
    links: view.getUint16(0x1a, true),
    device: isDevice ? view.getUint32(0x28, true) || view.getUint32(0x2c, true) : 0,
    flags: view.getUint32(0x20, true),
    iBlock: bytes.subarray(0x28, 0x28 + 60),
    extra: bytes.subarray(Math.min(bytes.length, 128 + extraSize)),
    attributeBlock: view.getUint32(0x68, true) + view.getUint16(0x76, true) * 2 ** 32,
  }
}

function readEntries(block: Uint8Array, entries: VolumeEntry[]): void {
  const view = new DataView(block.buffer, block.byteOffset, block.length)
  for (let at = 0; at + 8 <= block.length; ) {
    const inode = view.getUint32(at, true)
    const length = view.getUint16(at + 4, true)
    const nameLength = view.getUint8(at + 6)
    if (length < 8 || length % 4 !== 0 || at + length > block.length || 8 + nameLength > length) {
      // A record of 64 KiB does not fit 16 bits; anything else is damage.
      if (block.length === 65536 && (length === 0 || length === 65535)) return
      throw new ImageError('CORRUPT', 'a directory is damaged: check the disk')
    }
    if (inode !== 0 && nameLength > 0) {
      const name = Buffer.from(block.subarray(at + 8, at + 8 + nameLength)).toString('latin1')
      if (name !== '.' && name !== '..') entries.push({ name, inode })
    }
    at += length
  }
}

/** The journal's blocks in order; a journal has no holes. */
function journalBlocks(source: BlockSource, journal: VolumeInode): number[] {
  const blocks: number[] = []
  for (const run of blockMapOf(source, journal.iBlock, journal.flags)) {
    if (run.from !== blocks.length || blocks.length > 1 << 22)
      throw new ImageError('CORRUPT', 'the journal of the file system has holes: check the disk')
    for (let i = 0; i < run.count; i++) blocks.push(run.block + i)
  }
  return blocks
}
