/** Extended attributes of an inode: in the inode, in its block, and large values in inodes of their own. */
import type { BlockSource } from './block-source.ts'

const MAGIC = 0xea020000
const BLOCK_HEADER = 32
const ENTRY = 16

const PREFIXES: Readonly<Record<number, string>> = {
  0: '',
  1: 'user.',
  2: 'system.posix_acl_access',
  3: 'system.posix_acl_default',
  4: 'trusted.',
  6: 'security.',
  7: 'system.',
  8: 'system.richacl',
}

export interface Attribute {
  readonly name: string
  readonly value: Uint8Array
  /** The value is in this inode, and not in `value`; 0 for none. */
  readonly inode: number
  readonly size: number
}

const viewOf = (bytes: Uint8Array): DataView => new DataView(bytes.buffer, bytes.byteOffset, bytes.length)

/** `extra` are the bytes of the inode after its own fields. Damaged lists end where they stop making sense. */
export function attributesOf(source: BlockSource, extra: Uint8Array, block: number): Attribute[] {
  const found: Attribute[] = []
  if (extra.length >= 4 && viewOf(extra).getUint32(0, true) === MAGIC) readEntries(extra, 4, 4, found)
  if (block !== 0) {
    const bytes = source.block(block)
    if (viewOf(bytes).getUint32(0, true) === MAGIC) readEntries(bytes, BLOCK_HEADER, 0, found)
  }
  return found.sort((a, b) => (a.name < b.name ? -1 : 1))
}

function readEntries(bytes: Uint8Array, start: number, valueBase: number, found: Attribute[]): void {
  const view = viewOf(bytes)
  for (let at = start; at + ENTRY <= bytes.length && view.getUint32(at, true) !== 0; ) {
    const nameLength = view.getUint8(at)
    const prefix = PREFIXES[view.getUint8(at + 1)]
    const from = valueBase + view.getUint16(at + 2, true)
    const inode = view.getUint32(at + 4, true)
    const size = view.getUint32(at + 8, true)
    if (at + ENTRY + nameLength > bytes.length || (inode === 0 && from + size > bytes.length)) return
    const name = Buffer.from(bytes.subarray(at + ENTRY, at + ENTRY + nameLength)).toString('latin1')
    const value = inode === 0 ? bytes.subarray(from, from + size) : new Uint8Array(0)
    found.push({ name: `${prefix ?? '?'}${name}`, value, inode, size })
    at += ENTRY + ((nameLength + 3) & ~3)
  }
}
