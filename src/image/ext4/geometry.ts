/**
 * Where everything lies, decided before the first byte is written.
 *
 * Blocks that belong to nobody's file (superblock copies, descriptors, bitmaps, inode tables) are at places that follow from
 * the number of groups alone. All other blocks are handed out in ascending order, so the state of the allocator is one
 * number, and so is the state of the inode allocator.
 */
import { ImageError } from '../errors.ts'
import {
  BLOCK,
  BLOCKS_PER_GROUP,
  DESCRIPTOR_BLOCKS,
  DESCRIPTOR_SIZE,
  GROUP_BYTES,
  GROUPS_PER_FLEX,
  INODES_PER_BLOCK,
  MAX_GROUPS,
} from './layout.ts'

/** One inode for 16 KiB, as mke2fs does. */
const DEFAULT_INODES_PER_GROUP = GROUP_BYTES / 16384
const MAX_INODES_PER_GROUP = BLOCK * 8
/** Blocks that are always left over. */
const HEADROOM_BLOCKS = 4096

/** sparse_super: groups 0, 1 and the powers of 3, 5 and 7 carry copies of the superblock and the descriptors. */
export function hasSuperblock(group: number): boolean {
  if (group <= 1) return true
  for (const base of [3, 5, 7]) {
    let power = base
    while (power < group) power *= base
    if (power === group) return true
  }
  return false
}

export class Geometry {
  readonly groups: number
  readonly inodesPerGroup: number
  /** Blocks of one group's inode table. */
  readonly tableBlocks: number
  /** Free runs in ascending order: starts and ends (exclusive). */
  readonly #runStarts: number[] = []
  readonly #runEnds: number[] = []
  #run = 0
  /** The next block that will be handed out. */
  cursor: number

  constructor(groups: number, inodesPerGroup: number) {
    this.groups = groups
    this.inodesPerGroup = inodesPerGroup
    this.tableBlocks = inodesPerGroup / INODES_PER_BLOCK
    let free = 0
    for (const [start, end] of this.#reserved()) {
      if (start > free) {
        this.#runStarts.push(free)
        this.#runEnds.push(start)
      }
      free = Math.max(free, end)
    }
    if (free < this.blocks) {
      this.#runStarts.push(free)
      this.#runEnds.push(this.blocks)
    }
    this.cursor = this.#runStarts[0] ?? this.blocks
  }

  get blocks(): number {
    return this.groups * BLOCKS_PER_GROUP
  }

  get inodes(): number {
    return this.groups * this.inodesPerGroup
  }

  /** Descriptor blocks in use; the rest of DESCRIPTOR_BLOCKS is for growing. */
  get descriptorBlocks(): number {
    return Math.ceil((this.groups * DESCRIPTOR_SIZE) / BLOCK)
  }

  blockBitmapOf(group: number): number {
    return this.#flexStart(group) + (group % GROUPS_PER_FLEX)
  }

  inodeBitmapOf(group: number): number {
    return this.#flexStart(group) + this.#flexSize(group) + (group % GROUPS_PER_FLEX)
  }

  inodeTableOf(group: number): number {
    return this.#flexStart(group) + this.#flexSize(group) * 2 + (group % GROUPS_PER_FLEX) * this.tableBlocks
  }

  /** Up to `want` blocks that lie together; moves the cursor past them. Their start is the cursor before the call. */
  take(want: number): { start: number; count: number } {
    const start = this.cursor
    const end = start + this.room(want)
    this.cursor = end
    if (end === this.#runEnds[this.#run]!) {
      this.#run++
      this.cursor = this.#runStarts[this.#run] ?? this.blocks
    }
    return { start, count: end - start }
  }

  /** How many of `want` blocks lie together at the cursor. */
  room(want: number): number {
    const end = this.#runEnds[this.#run]
    if (end === undefined) {
      throw new ImageError('TOO_LARGE', 'the ext4 image is too small for its tree: give it more bytes')
    }
    return Math.min(want, end - this.cursor)
  }

  /** Visits the runs of a group's blocks that are in use: metadata, and everything handed out. */
  forEachUsed(group: number, visit: (start: number, end: number) => void): void {
    const first = group * BLOCKS_PER_GROUP
    const last = first + BLOCKS_PER_GROUP
    let at = first
    for (let run = this.#firstRunEndingAfter(first); run < this.#runStarts.length && at < last; run++) {
      const start = Math.max(this.#runStarts[run]!, this.cursor, first)
      const end = Math.min(this.#runEnds[run]!, last)
      if (start >= end) continue
      if (start > at) visit(at, start)
      at = end
    }
    if (at < last) visit(at, last)
  }

  /** True when nothing lies in a group but its own superblock copy and descriptors. e2fsck wants the last one written. */
  isUntouched(group: number): boolean {
    const first = group * BLOCKS_PER_GROUP
    if (group % GROUPS_PER_FLEX === 0 || group === this.groups - 1) return false
    return this.cursor <= first + (hasSuperblock(group) ? 1 + DESCRIPTOR_BLOCKS : 0)
  }

  #firstRunEndingAfter(block: number): number {
    let low = 0
    let high = this.#runEnds.length
    while (low < high) {
      const middle = (low + high) >>> 1
      if (this.#runEnds[middle]! > block) high = middle
      else low = middle + 1
    }
    return low
  }

  #flexSize(group: number): number {
    const first = group - (group % GROUPS_PER_FLEX)
    return Math.min(GROUPS_PER_FLEX, this.groups - first)
  }

  #flexBlocks(group: number): number {
    return this.#flexSize(group) * (2 + this.tableBlocks)
  }

  /** The first metadata block of the flex group that `group` is in. */
  #flexStart(group: number): number {
    const first = group - (group % GROUPS_PER_FLEX)
    return first * BLOCKS_PER_GROUP + (hasSuperblock(first) ? 1 + DESCRIPTOR_BLOCKS : 0)
  }

  /** Ranges that are not for files, ascending. A flex group's tables end in its first group: see MAX_TABLE_BLOCKS. */
  *#reserved(): Generator<[start: number, end: number]> {
    for (let group = 0; group < this.groups; group++) {
      const first = group * BLOCKS_PER_GROUP
      if (hasSuperblock(group)) yield [first, first + 1 + DESCRIPTOR_BLOCKS]
      if (group % GROUPS_PER_FLEX === 0)
        yield [this.#flexStart(group), this.#flexStart(group) + this.#flexBlocks(group)]
    }
  }

  freeBlocks(): number {
    let sum = 0
    for (let run = 0; run < this.#runStarts.length; run++) {
      sum += Math.max(0, this.#runEnds[run]! - Math.max(this.#runStarts[run]!, this.cursor))
    }
    return sum
  }
}

/** The largest table size for which a full flex group's metadata stays inside its first group. */
const MAX_TABLE_BLOCKS = Math.floor((BLOCKS_PER_GROUP - 1 - DESCRIPTOR_BLOCKS) / GROUPS_PER_FLEX) - 2

/** The smallest file system of at least `minimumBytes` that holds so many blocks of content and so many inodes. */
export function planGeometry(contentBlocks: number, inodes: number, minimumBytes: number): Geometry {
  const maxInodesPerGroup = Math.min(MAX_INODES_PER_GROUP, MAX_TABLE_BLOCKS * INODES_PER_BLOCK)
  // A fifth more inodes than the tree has, and never fewer than the usual ratio.
  const wanted = Math.ceil(inodes * 1.2) + 1024
  let groups = Math.max(1, Math.ceil(minimumBytes / GROUP_BYTES), Math.ceil(contentBlocks / BLOCKS_PER_GROUP))
  for (; groups <= MAX_GROUPS; groups++) {
    const perGroup = Math.max(
      DEFAULT_INODES_PER_GROUP,
      Math.ceil(wanted / groups / INODES_PER_BLOCK) * INODES_PER_BLOCK,
    )
    if (perGroup > maxInodesPerGroup) continue
    const geometry = new Geometry(groups, perGroup)
    if (geometry.freeBlocks() >= contentBlocks + HEADROOM_BLOCKS) return geometry
  }
  throw new ImageError(
    'TOO_LARGE',
    `the tree needs ${contentBlocks} blocks and ${inodes} inodes: more than a file system of 1 TiB has`,
  )
}
