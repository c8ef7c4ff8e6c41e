/**
 * Extended attributes (Documentation/filesystems/ext4/attributes.rst): in the inode after its own fields when they fit, else in
 * one block besides.
 */
import { ImageError } from '../errors.ts'
import { crc32c, crc32cWord } from './crc32c.ts'
import { BLOCK, EXTRA_ISIZE, INODE_SIZE } from './layout.ts'

const MAGIC = 0xea020000
const HEADER = 32
const ENTRY = 16
/** The bytes after the inode's own fields. */
const IN_INODE = INODE_SIZE - 128 - EXTRA_ISIZE

/** Name prefixes that are stored as a number; the longest that matches is taken. */
const PREFIXES: readonly (readonly [prefix: string, index: number])[] = [
  ['user.', 1],
  ['trusted.', 4],
  ['security.', 6],
  ['system.', 7],
]
const INDEX_ACL_ACCESS = 2
const INDEX_ACL_DEFAULT = 3

interface Attribute {
  readonly index: number
  readonly name: Uint8Array
  readonly value: Uint8Array
}

export interface EncodedAttributes {
  /** What goes into the inode after its own fields, or nothing. */
  readonly inInode: Uint8Array | undefined
  /** A whole block, whose checksum is set by `sealAttributeBlock` when its place is known. */
  readonly block: Uint8Array | undefined
}

const align = (bytes: number): number => (bytes + 3) & ~3
const sizeOf = (attribute: Attribute): number => ENTRY + align(attribute.name.length) + align(attribute.value.length)

/** True for attributes that may need a block of their own; decides nothing but the size of the file system. */
export function needsAttributeBlock(xattrs: ReadonlyMap<string, Uint8Array>): boolean {
  let bytes = 8
  for (const [name, value] of xattrs) bytes += ENTRY + align(name.length) + align(value.length)
  return bytes > IN_INODE
}

export function encodeAttributes(xattrs: ReadonlyMap<string, Uint8Array>, path: string): EncodedAttributes {
  const attributes: Attribute[] = []
  for (const [name, value] of xattrs) {
    const attribute = toAttribute(name, value)
    if (attribute) attributes.push(attribute)
  }
  if (attributes.length === 0) return { inInode: undefined, block: undefined }
  // Entries of a block are sorted, so that the kernel finds them; the same order serves the inode.
  attributes.sort((a, b) => a.index - b.index || a.name.length - b.name.length || Buffer.compare(a.name, b.name))
  const bytes = attributes.reduce((sum, attribute) => sum + sizeOf(attribute), 4)
  if (bytes + 4 <= IN_INODE) {
    const area = new Uint8Array(IN_INODE)
    new DataView(area.buffer).setUint32(0, MAGIC, true)
    // Value offsets count from the first entry, and hashes stay zero in the inode.
    putEntries(area, 4, 4, attributes, false)
    return { inInode: area, block: undefined }
  }
  if (bytes + HEADER > BLOCK) {
    throw new ImageError(
      'UNSUPPORTED',
      `the extended attributes of ${path} take ${bytes} bytes: ext4 has room for ${BLOCK - HEADER}; remove some from the image`,
    )
  }
  const block = new Uint8Array(BLOCK)
  const view = new DataView(block.buffer)
  view.setUint32(0, MAGIC, true)
  view.setUint32(4, 1, true) // h_refcount
  view.setUint32(8, 1, true) // h_blocks
  let hash = 0
  for (const entryHash of putEntries(block, HEADER, 0, attributes, true)) {
    hash = (((hash << 16) | (hash >>> 16)) ^ entryHash) >>> 0
  }
  view.setUint32(12, hash, true)
  return { inInode: undefined, block }
}

/** Sets h_checksum, which covers the block's own number. */
export function sealAttributeBlock(block: Uint8Array, number: number, seed: number): void {
  const view = new DataView(block.buffer, block.byteOffset, block.byteLength)
  view.setUint32(16, 0, true)
  const crc = crc32cWord(crc32cWord(seed, number >>> 0), Math.floor(number / 2 ** 32))
  view.setUint32(16, crc32c(crc, block), true)
}

/** Entries from `start` upwards, values from the end downwards. Returns the entries' hashes. */
function putEntries(
  area: Uint8Array,
  start: number,
  valueBase: number,
  attributes: readonly Attribute[],
  hashed: boolean,
): number[] {
  const view = new DataView(area.buffer)
  const hashes: number[] = []
  let at = start
  let end = area.length
  for (const attribute of attributes) {
    const { index, name, value } = attribute
    end -= align(value.length)
    area.set(value, end)
    view.setUint8(at, name.length)
    view.setUint8(at + 1, index)
    view.setUint16(at + 2, value.length === 0 ? 0 : end - valueBase, true)
    view.setUint32(at + 8, value.length, true)
    const hash = hashed ? entryHash(attribute) : 0
    hashes.push(hash)
    view.setUint32(at + 12, hash, true)
    area.set(name, at + ENTRY)
    at += ENTRY + align(name.length)
  }
  return hashes
}

/** ext4_xattr_hash_entry. */
function entryHash({ name, value }: Attribute): number {
  let hash = 0
  for (const byte of name) hash = (hash << 5) ^ (hash >>> 27) ^ byte
  const padded = new Uint8Array(align(value.length))
  padded.set(value)
  const view = new DataView(padded.buffer)
  for (let at = 0; at < padded.length; at += 4) hash = (hash << 16) ^ (hash >>> 16) ^ view.getUint32(at, true)
  return hash >>> 0
}

function toAttribute(name: string, value: Uint8Array): Attribute | undefined {
  if (name === 'system.posix_acl_access' || name === 'system.posix_acl_default') {
    const acl = toDiskAcl(value)
    const index = name.endsWith('access') ? INDEX_ACL_ACCESS : INDEX_ACL_DEFAULT
    return acl && { index, name: new Uint8Array(0), value: acl }
  }
  for (const [prefix, index] of PREFIXES) {
    if (name.startsWith(prefix) && name.length > prefix.length) {
      const rest = Buffer.from(name.slice(prefix.length), 'latin1')
      if (rest.length > 255)
        throw new ImageError('UNSUPPORTED', `an attribute name of ${rest.length} bytes: 255 is the most`)
      return { index, name: rest, value }
    }
  }
  // Other systems' name spaces (com.apple.*, for example) mean nothing to Linux, which would refuse them too.
  return undefined
}

/** From the form of getxattr (version 2, every entry with an id) to ext4's (version 1, ids only where they say something). */
function toDiskAcl(value: Uint8Array): Uint8Array | undefined {
  const view = new DataView(value.buffer, value.byteOffset, value.byteLength)
  if (value.length < 4 || (value.length - 4) % 8 !== 0 || view.getUint32(0, true) !== 2) return undefined
  const bytes: number[] = [1, 0, 0, 0]
  for (let at = 4; at < value.length; at += 8) {
    const tag = view.getUint16(at, true)
    const withId = tag === 0x02 || tag === 0x08
    bytes.push(...value.subarray(at, at + (withId ? 8 : 4)))
  }
  return Uint8Array.from(bytes)
}
