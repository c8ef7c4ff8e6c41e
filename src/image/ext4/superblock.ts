/** The superblock, the group descriptors and the bitmaps (Documentation/filesystems/ext4: super.rst, group_descr.rst). */
import { crc32c, crc32cWord } from './crc32c.ts'
import { type Geometry, hasSuperblock } from './geometry.ts'
import type { BlockStream } from './image-file.ts'
import {
  BLOCK,
  BLOCKS_PER_GROUP,
  COMPAT,
  DESCRIPTOR_BLOCKS,
  DESCRIPTOR_SIZE,
  EXTRA_ISIZE,
  GROUP_BLOCK_UNINIT,
  GROUP_INODE_UNINIT,
  GROUP_INODE_ZEROED,
  INCOMPAT,
  INO_JOURNAL,
  INO_LOST_FOUND,
  INODE_SIZE,
  LOG_GROUPS_PER_FLEX,
  RO_COMPAT,
} from './layout.ts'

export interface Identity {
  readonly uuid: Uint8Array
  readonly hashSeed: Uint8Array
  /** Seconds since 1970 for "made" and "checked". */
  readonly time: number
  readonly label: string
}

export interface Totals {
  /** The highest inode in use; all below are in use too. */
  readonly lastIno: number
  /** Directories per group. */
  readonly directories: Uint32Array
  /** i_block of the journal, kept in the superblock as a copy. */
  readonly journalBlock: Uint8Array
  readonly journalBytes: number
}

/** Writes bitmaps, descriptors and superblocks: the last thing, since they count everything else. */
export function writeGroups(
  out: BlockStream,
  geometry: Geometry,
  identity: Identity,
  totals: Totals,
  seed: number,
): void {
  const descriptors = new Uint8Array(geometry.descriptorBlocks * BLOCK)
  const bitmap = new Uint8Array(BLOCK)
  let freeBlocks = 0
  let freeInodes = 0
  for (let group = 0; group < geometry.groups; group++) {
    const at = group * DESCRIPTOR_SIZE
    const put = new DescriptorView(descriptors, at)
    put.split(0x00, 0x20, geometry.blockBitmapOf(group))
    put.split(0x04, 0x24, geometry.inodeBitmapOf(group))
    put.split(0x08, 0x28, geometry.inodeTableOf(group))
    let flags = GROUP_INODE_ZEROED

    bitmap.fill(0)
    let free = BLOCKS_PER_GROUP
    geometry.forEachUsed(group, (start, end) => {
      setBits(bitmap, start - group * BLOCKS_PER_GROUP, end - group * BLOCKS_PER_GROUP)
      free -= end - start
    })
    if (geometry.isUntouched(group)) flags |= GROUP_BLOCK_UNINIT
    else {
      out.writeBlock(geometry.blockBitmapOf(group), bitmap)
      put.split16(0x18, 0x38, crc32c(seed, bitmap))
    }
    put.split16(0x0c, 0x2c, free)
    freeBlocks += free

    const perGroup = geometry.inodesPerGroup
    const used = Math.min(Math.max(totals.lastIno - group * perGroup, 0), perGroup)
    if (used === 0) flags |= GROUP_INODE_UNINIT
    else {
      bitmap.fill(0)
      setBits(bitmap, 0, used)
      setBits(bitmap, perGroup, BLOCK * 8)
      out.writeBlock(geometry.inodeBitmapOf(group), bitmap)
      put.split16(0x1a, 0x3a, crc32c(seed, bitmap, 0, perGroup / 8))
    }
    put.split16(0x0e, 0x2e, perGroup - used)
    put.split16(0x10, 0x30, totals.directories[group]!)
    put.split16(0x1c, 0x32, perGroup - used)
    freeInodes += perGroup - used
    put.word16(0x12, flags)
    put.word16(0x1e, crc32c(crc32cWord(seed, group), descriptors, at, at + DESCRIPTOR_SIZE) & 0xffff)
  }
  const superblock = encodeSuperblock(geometry, identity, totals, freeBlocks, freeInodes)
  for (let group = 0; group < geometry.groups; group++) {
    if (!hasSuperblock(group)) continue
    const first = group * BLOCKS_PER_GROUP
    const view = new DataView(superblock.buffer)
    view.setUint16(0x5a, group, true)
    view.setUint32(0x3fc, crc32c(~0, superblock, 0, 0x3fc), true)
    const block = out.reserve(first * BLOCK, BLOCK)
    block.fill(0)
    // The primary is at byte 1024; a copy begins its block.
    block.set(superblock, group === 0 ? 1024 : 0)
    for (let i = 0; i < geometry.descriptorBlocks; i++) {
      out.writeBlock(first + 1 + i, descriptors.subarray(i * BLOCK, (i + 1) * BLOCK))
    }
  }
}

function encodeSuperblock(
  geometry: Geometry,
  identity: Identity,
  totals: Totals,
  freeBlocks: number,
  freeInodes: number,
): Uint8Array {
  const bytes = new Uint8Array(1024)
  const view = new DataView(bytes.buffer)
  const word = (at: number, value: number): void => view.setUint32(at, value >>> 0, true)
  const half = (at: number, value: number): void => view.setUint16(at, value, true)
  word(0x00, geometry.inodes)
  word(0x04, geometry.blocks)
  word(0x0c, freeBlocks)
  word(0x10, freeInodes)
  word(0x18, 2) // s_log_block_size: 1024 << 2
  word(0x1c, 2) // s_log_cluster_size
  word(0x20, BLOCKS_PER_GROUP)
  word(0x24, BLOCKS_PER_GROUP)
  word(0x28, geometry.inodesPerGroup)
  word(0x30, identity.time) // s_wtime
  half(0x36, 0xffff) // s_max_mnt_count: never check because of mounts
  half(0x38, 0xef53)
  half(0x3a, 1) // s_state: clean
  half(0x3c, 1) // s_errors: continue
  word(0x40, identity.time) // s_lastcheck
  word(0x4c, 1) // s_rev_level: dynamic
  word(0x54, INO_LOST_FOUND) // s_first_ino
  half(0x58, INODE_SIZE)
  word(0x5c, COMPAT)
  word(0x60, INCOMPAT)
  word(0x64, RO_COMPAT)
  bytes.set(identity.uuid, 0x68)
  bytes.set(Buffer.from(identity.label, 'latin1').subarray(0, 16), 0x78)
  half(0xce, DESCRIPTOR_BLOCKS - geometry.descriptorBlocks) // s_reserved_gdt_blocks
  word(0xe0, INO_JOURNAL)
  bytes.set(identity.hashSeed, 0xec)
  view.setUint8(0xfc, 1) // s_def_hash_version: half MD4
  view.setUint8(0xfd, 1) // s_jnl_backup_type: i_block
  half(0xfe, DESCRIPTOR_SIZE)
  word(0x100, 0x0c) // s_default_mount_opts: user_xattr, acl
  word(0x108, identity.time) // s_mkfs_time
  bytes.set(totals.journalBlock, 0x10c)
  word(0x10c + 15 * 4, Math.floor(totals.journalBytes / 2 ** 32))
  word(0x10c + 16 * 4, totals.journalBytes)
  word(0x150, Math.floor(geometry.blocks / 2 ** 32))
  word(0x158, Math.floor(freeBlocks / 2 ** 32))
  half(0x15c, EXTRA_ISIZE)
  half(0x15e, EXTRA_ISIZE)
  word(0x160, 2) // s_flags: unsigned directory hash
  view.setUint8(0x174, LOG_GROUPS_PER_FLEX)
  view.setUint8(0x175, 1) // s_checksum_type: crc32c
  return bytes
}

/** A descriptor's fields, whose upper halves are 32 bytes further on. */
class DescriptorView {
  readonly #view: DataView

  constructor(bytes: Uint8Array, at: number) {
    this.#view = new DataView(bytes.buffer, bytes.byteOffset + at, DESCRIPTOR_SIZE)
  }

  split(low: number, high: number, value: number): void {
    this.#view.setUint32(low, value >>> 0, true)
    this.#view.setUint32(high, Math.floor(value / 2 ** 32), true)
  }

  split16(low: number, high: number, value: number): void {
    this.#view.setUint16(low, value & 0xffff, true)
    this.#view.setUint16(high, value >>> 16, true)
  }

  word16(at: number, value: number): void {
    this.#view.setUint16(at, value, true)
  }
}

function setBits(bitmap: Uint8Array, from: number, to: number): void {
  let bit = from
  for (; bit < to && bit % 8 !== 0; bit++) bitmap[bit >>> 3]! |= 1 << (bit & 7)
  bitmap.fill(0xff, bit >>> 3, Math.max(bit >>> 3, to >>> 3))
  for (bit = Math.max(bit, to & ~7); bit < to; bit++) bitmap[bit >>> 3]! |= 1 << (bit & 7)
}
