/** A file's blocks as extents, and the tree that holds them (Documentation/filesystems/ext4/ifork.rst, "Extent Tree"). */
import { crc32c } from './crc32c.ts'
import { BLOCK, MAX_EXTENT } from './layout.ts'

const MAGIC = 0xf30a
const HEADER = 12
const ENTRY = 12
/** Entries that fit in the inode, and in a block (with its checksum after them). */
const IN_INODE = 4
const IN_BLOCK = (BLOCK - HEADER - 4) / ENTRY

/** Collects the extents of one file at a time: runs that lie together become one. */
export class ExtentList {
  /** Triples: logical block, physical block, count. */
  readonly #runs: number[] = []

  clear(): void {
    this.#runs.length = 0
  }

  get count(): number {
    return this.#runs.length / 3
  }

  /** Blocks mapped. */
  get blocks(): number {
    let sum = 0
    for (let i = 2; i < this.#runs.length; i += 3) sum += this.#runs[i]!
    return sum
  }

  add(logical: number, physical: number, count: number): void {
    const runs = this.#runs
    const last = runs.length - 3
    if (last >= 0) {
      const length = runs[last + 2]!
      if (runs[last]! + length === logical && runs[last + 1]! + length === physical) {
        const take = Math.min(count, MAX_EXTENT - length)
        runs[last + 2] = length + take
        logical += take
        physical += take
        count -= take
      }
    }
    while (count > 0) {
      const take = Math.min(count, MAX_EXTENT)
      runs.push(logical, physical, take)
      logical += take
      physical += take
      count -= take
    }
  }

  /**
   * Writes the root of the tree into the inode's i_block. Blocks for the rest come from `allocate`, and go out through
   * `write`. Returns how many blocks the tree took besides.
   */
  encode(
    iBlock: Uint8Array,
    inodeSeed: number,
    allocate: () => number,
    write: (block: number, bytes: Uint8Array) => void,
  ): number {
    let level = this.#runs
    let depth = 0
    let taken = 0
    while (level.length / 3 > IN_INODE) {
      const upper: number[] = []
      for (let at = 0; at < level.length; at += IN_BLOCK * 3) {
        const part = level.slice(at, at + IN_BLOCK * 3)
        const bytes = new Uint8Array(BLOCK)
        encodeNode(bytes, part, depth, IN_BLOCK)
        const view = new DataView(bytes.buffer)
        view.setUint32(BLOCK - 4, crc32c(inodeSeed, bytes, 0, BLOCK - 4), true)
        const block = allocate()
        write(block, bytes)
        taken++
        upper.push(part[0]!, block, 0)
      }
      level = upper
      depth++
    }
    encodeNode(iBlock, level, depth, IN_INODE)
    return taken
  }
}

/** How many tree blocks a file of so many extents can need at most. */
export function extentTreeBlocks(extents: number): number {
  let sum = 0
  for (let level = extents; level > IN_INODE; ) {
    level = Math.ceil(level / IN_BLOCK)
    sum += level
  }
  return sum
}

function encodeNode(bytes: Uint8Array, entries: readonly number[], depth: number, max: number): void {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  view.setUint16(0, MAGIC, true)
  view.setUint16(2, entries.length / 3, true)
  view.setUint16(4, max, true)
  view.setUint16(6, depth, true)
  for (let i = 0, at = HEADER; i < entries.length; i += 3, at += ENTRY) {
    const physical = entries[i + 1]!
    view.setUint32(at, entries[i]!, true)
    if (depth === 0) {
      // struct ext4_extent: ee_block, ee_len, ee_start_hi, ee_start_lo
      view.setUint16(at + 4, entries[i + 2]!, true)
      view.setUint16(at + 6, Math.floor(physical / 2 ** 32), true)
      view.setUint32(at + 8, physical >>> 0, true)
    } else {
      // struct ext4_extent_idx: ei_block, ei_leaf_lo, ei_leaf_hi
      view.setUint32(at + 4, physical >>> 0, true)
      view.setUint16(at + 8, Math.floor(physical / 2 ** 32), true)
    }
  }
}
