/**
 * Directory blocks (Documentation/filesystems/ext4/directory.rst). One that fits in a block is a plain list; a larger one is a
 * hash tree: block 0 is its root, leaves hold the entries in order of their hash, and index blocks come in between when the
 * root cannot point at all leaves.
 */
import { ImageError } from '../errors.ts'
import type { InodeKind } from '../tree/inode.ts'
import { crc32c, crc32cWord } from './crc32c.ts'
import { directoryHash } from './dir-hash.ts'
import { BLOCK } from './layout.ts'

/** struct ext4_dir_entry_tail: a fake entry whose last word is the block's checksum. */
const TAIL = 12
const ROOM = BLOCK - TAIL
/** Leaves are filled so far, to leave room for new names (e2fsck -D does the same). */
const FILL = Math.floor(ROOM * 0.8)
/** Where the (limit, count) pair is: after `.`, `..` and dx_root_info in the root; after a fake entry in a node. */
const ROOT_ENTRIES = 32
const NODE_ENTRIES = 8
const ROOT_LIMIT = (BLOCK - ROOT_ENTRIES) / 8 - 1
const NODE_LIMIT = (BLOCK - NODE_ENTRIES) / 8 - 1
const HASH_HALF_MD4 = 1
const MAX_NAME = 255

const FILE_TYPES: Record<InodeKind, number> = {
  file: 1,
  directory: 2,
  character: 3,
  block: 4,
  fifo: 5,
  socket: 6,
  symlink: 7,
}

export interface DirectoryEntry {
  readonly name: string
  readonly ino: number
  readonly kind: InodeKind
}

export interface EncodedDirectory {
  readonly blocks: Uint8Array
  readonly indexed: boolean
}

const sizeOf = (nameLength: number): number => (8 + nameLength + 3) & ~3

/** An upper limit of the blocks that a directory with such names takes, for sizing the file system. */
export function directoryBlocksBound(names: Iterable<string>): number {
  let bytes = 24
  for (const name of names) bytes += sizeOf(name.length)
  if (bytes <= ROOM) return 1
  // A leaf is closed when the next entry would pass FILL, so it holds at least FILL minus the largest entry.
  const leaves = Math.ceil(bytes / (FILL - sizeOf(MAX_NAME))) + 1
  return 1 + leaves + Math.ceil(leaves / NODE_LIMIT)
}

export class DirectoryEncoder {
  readonly #hashSeed: Uint32Array

  constructor(hashSeed: Uint32Array) {
    this.#hashSeed = hashSeed
  }

  /** All blocks of a directory. `inodeSeed` is the checksum seed of its inode. */
  encode(ino: number, parent: number, entries: readonly DirectoryEntry[], inodeSeed: number): EncodedDirectory {
    let bytes = 24
    for (const entry of entries) {
      if (entry.name.length > MAX_NAME || entry.name.length === 0) {
        throw new ImageError('UNSUPPORTED', `a name of ${entry.name.length} bytes cannot be in ext4: 255 is the most`)
      }
      bytes += sizeOf(entry.name.length)
    }
    if (bytes <= ROOM) return { blocks: encodeLinear(ino, parent, entries, inodeSeed), indexed: false }
    return { blocks: this.#encodeIndexed(ino, parent, entries, inodeSeed), indexed: true }
  }

  #encodeIndexed(ino: number, parent: number, entries: readonly DirectoryEntry[], inodeSeed: number): Uint8Array {
    const hashes = new Uint32Array(entries.length)
    for (let i = 0; i < entries.length; i++) {
      hashes[i] = directoryHash(Buffer.from(entries[i]!.name, 'latin1'), this.#hashSeed)
    }
    const order = sortedByHash(hashes)
    // Cut the sorted entries into leaves: [first entry, hash in the index].
    const leafStarts: number[] = []
    const leafHashes: number[] = []
    let room = 0
    for (let i = 0; i < order.length; i++) {
      const size = sizeOf(entries[order[i]!]!.name.length)
      if (size > room) {
        const hash = hashes[order[i]!]!
        // Bit 0 says that entries of the same hash began in the leaf before.
        leafHashes.push(i > 0 && hashes[order[i - 1]!] === hash ? hash | 1 : hash)
        leafStarts.push(i)
        room = FILL
      }
      room -= size
    }
    const leaves = leafStarts.length
    const nodes = leaves > ROOT_LIMIT ? Math.ceil(leaves / NODE_LIMIT) : 0
    if (nodes > ROOT_LIMIT) {
      throw new ImageError('UNSUPPORTED', `a directory of ${entries.length} entries is more than ext4's index can hold`)
    }
    const blocks = new Uint8Array((1 + nodes + leaves) * BLOCK)
    const view = new DataView(blocks.buffer)
    // The root: `.` and `..`, then dx_root_info: reserved, hash version, its length, levels below, flags.
    putEntry(view, 0, ino, 12, '.', 2)
    putEntry(view, 12, parent, BLOCK - 12, '..', 2)
    view.setUint8(28, HASH_HALF_MD4)
    view.setUint8(29, 8)
    view.setUint8(30, nodes > 0 ? 1 : 0)
    const firstLeaf = 1 + nodes
    if (nodes === 0) {
      putIndex(blocks, 0, ROOT_ENTRIES, ROOT_LIMIT, leafHashes, 0, leaves, firstLeaf, inodeSeed)
    } else {
      const nodeHashes: number[] = []
      for (let node = 0; node < nodes; node++) {
        const from = node * NODE_LIMIT
        const count = Math.min(NODE_LIMIT, leaves - from)
        nodeHashes.push(leafHashes[from]!)
        const at = (1 + node) * BLOCK
        view.setUint16(at + 4, BLOCK, true)
        putIndex(blocks, at, NODE_ENTRIES, NODE_LIMIT, leafHashes, from, count, firstLeaf + from, inodeSeed)
      }
      putIndex(blocks, 0, ROOT_ENTRIES, ROOT_LIMIT, nodeHashes, 0, nodes, 1, inodeSeed)
    }
    for (let leaf = 0; leaf < leaves; leaf++) {
      const end = leafStarts[leaf + 1] ?? order.length
      const base = (firstLeaf + leaf) * BLOCK
      let at = base
      for (let i = leafStarts[leaf]!; i < end; i++) {
        const { name, ino: child, kind } = entries[order[i]!]!
        const size = i === end - 1 ? base + ROOM - at : sizeOf(name.length)
        putEntry(view, at, child, size, name, FILE_TYPES[kind])
        at += size
      }
      putTail(blocks, base, inodeSeed)
    }
    return blocks
  }
}

function sortedByHash(hashes: Uint32Array): Uint32Array {
  const order = new Uint32Array(hashes.length)
  if (hashes.length < 2 ** 21) {
    // Hash and position in one number: 32 + 21 bits, sorted without a comparator.
    const keys = new Float64Array(hashes.length)
    for (let i = 0; i < keys.length; i++) keys[i] = hashes[i]! * 2 ** 21 + i
    keys.sort()
    for (let i = 0; i < keys.length; i++) order[i] = keys[i]! % 2 ** 21
    return order
  }
  for (let i = 0; i < order.length; i++) order[i] = i
  return order.sort((a, b) => hashes[a]! - hashes[b]! || a - b)
}

function encodeLinear(ino: number, parent: number, entries: readonly DirectoryEntry[], inodeSeed: number): Uint8Array {
  const block = new Uint8Array(BLOCK)
  const view = new DataView(block.buffer)
  putEntry(view, 0, ino, 12, '.', 2)
  let at = 12
  putEntry(view, at, parent, entries.length === 0 ? ROOM - at : 12, '..', 2)
  at += 12
  entries.forEach(({ name, ino: child, kind }, i) => {
    const size = i === entries.length - 1 ? ROOM - at : sizeOf(name.length)
    putEntry(view, at, child, size, name, FILE_TYPES[kind])
    at += size
  })
  putTail(block, 0, inodeSeed)
  return block
}

/** struct ext4_dir_entry_2: inode, rec_len, name_len, file_type, name. */
function putEntry(view: DataView, at: number, ino: number, size: number, name: string, type: number): void {
  view.setUint32(at, ino, true)
  view.setUint16(at + 4, size, true)
  view.setUint8(at + 6, name.length)
  view.setUint8(at + 7, type)
  for (let i = 0; i < name.length; i++) view.setUint8(at + 8 + i, name.charCodeAt(i))
}

function putTail(blocks: Uint8Array, base: number, inodeSeed: number): void {
  const view = new DataView(blocks.buffer)
  view.setUint16(base + ROOM + 4, TAIL, true)
  view.setUint8(base + ROOM + 7, 0xde)
  view.setUint32(base + ROOM + 8, crc32c(inodeSeed, blocks, base, base + ROOM), true)
}

/** The (limit, count) pair, the index entries, and the checksum after the last possible one (struct dx_tail). */
function putIndex(
  blocks: Uint8Array,
  base: number,
  offset: number,
  limit: number,
  hashes: readonly number[],
  from: number,
  count: number,
  firstBlock: number,
  inodeSeed: number,
): void {
  const view = new DataView(blocks.buffer)
  const at = base + offset
  for (let i = 0; i < count; i++) {
    view.setUint32(at + i * 8, hashes[from + i]!, true)
    view.setUint32(at + i * 8 + 4, firstBlock + i, true)
  }
  // The first entry has no hash (it is the smallest possible): the pair stands there.
  view.setUint16(at, limit, true)
  view.setUint16(at + 2, count, true)
  const crc = crc32c(inodeSeed, blocks, base, at + count * 8)
  view.setUint32(at + limit * 8 + 4, crc32cWord(crc32cWord(crc, 0), 0), true)
}
