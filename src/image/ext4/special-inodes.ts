/** The two inodes that no directory names: the journal, and the one that owns the blocks for growing. */

import { type Geometry, hasSuperblock } from './geometry.ts'
import { BLOCK, BLOCKS_PER_GROUP, DESCRIPTOR_BLOCKS, JOURNAL_BLOCKS, JOURNAL_MAGIC } from './layout.ts'

const POINTERS = BLOCK / 4
/** The index of the double-indirect pointer in i_block. */
const DOUBLE_INDIRECT = 13

/** An empty jbd2 journal: a version 2 superblock, big-endian, with nothing to replay (s_start = 0). */
export function journalSuperblock(): Uint8Array {
  const block = new Uint8Array(BLOCK)
  const view = new DataView(block.buffer)
  view.setUint32(0x00, JOURNAL_MAGIC)
  view.setUint32(0x04, 4) // h_blocktype: superblock, version 2
  view.setUint32(0x0c, BLOCK)
  view.setUint32(0x10, JOURNAL_BLOCKS) // s_maxlen
  view.setUint32(0x14, 1) // s_first
  view.setUint32(0x18, 1) // s_sequence
  view.setUint32(0x40, 1) // s_nr_users
  return block
}

export interface ResizeInode {
  readonly iBlock: Uint8Array
  readonly size: number
  readonly blocks: number
}

/**
 * The resize inode maps the descriptor blocks that are set aside: its double-indirect block points at those after the primary
 * descriptors, and each of them points at its twins in the groups with copies (fs/ext4/resize.c, reserve_backup_gdb).
 */
export function writeResizeInode(
  geometry: Geometry,
  doubleIndirect: number,
  write: (block: number, bytes: Uint8Array) => void,
): ResizeInode {
  const copies: number[] = []
  for (let group = 1; group < geometry.groups; group++) if (hasSuperblock(group)) copies.push(group)
  const pointers = new Uint8Array(BLOCK)
  const view = new DataView(pointers.buffer)
  const twins = new Uint8Array(BLOCK)
  const twinsView = new DataView(twins.buffer)
  let blocks = 1
  for (let index = geometry.descriptorBlocks; index < DESCRIPTOR_BLOCKS; index++) {
    const primary = 1 + index
    view.setUint32((index % POINTERS) * 4, primary, true)
    copies.forEach((group, i) => {
      twinsView.setUint32(i * 4, primary + group * BLOCKS_PER_GROUP, true)
    })
    write(primary, twins)
    blocks += 1 + copies.length
  }
  write(doubleIndirect, pointers)
  const iBlock = new Uint8Array(60)
  new DataView(iBlock.buffer).setUint32(DOUBLE_INDIRECT * 4, doubleIndirect, true)
  // The size that a file with all direct, indirect and double-indirect blocks would have, as mke2fs sets it.
  return { iBlock, size: (POINTERS * POINTERS + POINTERS + 12) * BLOCK, blocks }
}
