/** The 256-byte inode (struct ext4_inode, Documentation/filesystems/ext4/inodes.rst). */
import type { Inode, InodeKind } from '../tree/inode.ts'
import { crc32c, crc32cWord } from './crc32c.ts'
import { EXTRA_ISIZE, INODE_SIZE } from './layout.ts'

const FILE_TYPE_BITS: Record<InodeKind, number> = {
  fifo: 0x1000,
  character: 0x2000,
  directory: 0x4000,
  block: 0x6000,
  file: 0x8000,
  symlink: 0xa000,
  socket: 0xc000,
}

/** What an inode says besides what the tree knows. */
export interface InodeFields {
  readonly links: number
  readonly size: number
  /** Blocks of 4 KiB, the ones of the extent tree and the attributes included. */
  readonly blocks: number
  readonly flags: number
  /** i_block: the extent root, a short link target, or a device number. */
  readonly iBlock: Uint8Array
  /** The block with the attributes, or 0. */
  readonly attributeBlock: number
  readonly inlineAttributes: Uint8Array | undefined
}

/** The checksum seed of everything that belongs to an inode; the generation is always 0 here. */
export const inodeSeed = (seed: number, ino: number): number => crc32cWord(crc32cWord(seed, ino), 0)

/** i_block for a device: the old 16-bit form when it fits, the new one in the second word else. */
export function encodeDevice(iBlock: Uint8Array, major: number, minor: number): void {
  const view = new DataView(iBlock.buffer, iBlock.byteOffset, iBlock.byteLength)
  if (major < 256 && minor < 256) view.setUint32(0, (major << 8) | minor, true)
  else view.setUint32(4, ((minor & 0xff) | (major << 8) | ((minor & ~0xff) << 12)) >>> 0, true)
}

/** Writes an inode over `INODE_SIZE` bytes of `table` at `at`. */
export function encodeInode(table: Uint8Array, at: number, inode: Inode, fields: InodeFields, seed: number): void {
  const bytes = table.subarray(at, at + INODE_SIZE)
  bytes.fill(0)
  const view = new DataView(bytes.buffer, bytes.byteOffset, INODE_SIZE)
  const sectors = fields.blocks * 8
  view.setUint16(0x00, FILE_TYPE_BITS[inode.kind] | inode.mode, true)
  view.setUint16(0x02, inode.uid & 0xffff, true)
  view.setUint32(0x04, fields.size >>> 0, true)
  view.setUint16(0x18, inode.gid & 0xffff, true)
  view.setUint16(0x1a, fields.links, true)
  view.setUint32(0x1c, sectors >>> 0, true)
  view.setUint32(0x20, fields.flags, true)
  bytes.set(fields.iBlock, 0x28)
  view.setUint32(0x68, fields.attributeBlock >>> 0, true)
  view.setUint32(0x6c, Math.floor(fields.size / 2 ** 32), true)
  view.setUint16(0x74, Math.floor(sectors / 2 ** 32), true)
  view.setUint16(0x76, Math.floor(fields.attributeBlock / 2 ** 32), true)
  view.setUint16(0x78, inode.uid >>> 16, true)
  view.setUint16(0x7a, inode.gid >>> 16, true)
  view.setUint16(0x80, EXTRA_ISIZE, true)
  // Access, change, modification and creation are one time here: the layers know no other.
  const seconds = clampTime(inode.mtime)
  const extra = timeExtra(seconds, inode.mtimeNs)
  for (const [low, high] of TIME_FIELDS) {
    view.setInt32(low, seconds | 0, true)
    view.setUint32(high, extra, true)
  }
  if (fields.inlineAttributes) bytes.set(fields.inlineAttributes, 128 + EXTRA_ISIZE)
  const crc = crc32c(seed, bytes)
  view.setUint16(0x7c, crc & 0xffff, true)
  view.setUint16(0x82, crc >>> 16, true)
}

/** i_atime, i_ctime, i_mtime, i_crtime and where their upper halves are. */
const TIME_FIELDS = [
  [0x08, 0x8c],
  [0x0c, 0x84],
  [0x10, 0x88],
  [0x90, 0x94],
] as const

/** 34 bits of seconds: 1901 to 2446. */
const clampTime = (seconds: number): number => Math.min(Math.max(seconds, -(2 ** 31)), 2 ** 34 - 2 ** 31 - 1)

/** Two bits of epoch below thirty of nanoseconds. */
function timeExtra(seconds: number, nanoseconds: number): number {
  const epoch = Math.floor((seconds - (seconds | 0)) / 2 ** 32) & 3
  return ((nanoseconds << 2) | epoch) >>> 0
}
