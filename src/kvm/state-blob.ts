/**
 * Saved state as bytes: a header and tagged sections, in the order in which they are restored.
 *
 *   u32 magic | u32 version | u32 sections | { u32 tag | u32 length | bytes, padded to 8 }...
 *
 * Reading checks every number before it is used; what the sections hold is checked by length here and by KVM itself.
 */
import { KvmError } from './errors.ts'

const HEADER = 12
const pad = (length: number): number => (length + 7) & ~7

export type Sections = ReadonlyMap<number, Uint8Array>

export function encodeState(magic: number, version: number, sections: Sections): Uint8Array {
  let size = HEADER
  for (const bytes of sections.values()) size += 8 + pad(bytes.length)
  const blob = new Uint8Array(size)
  const view = new DataView(blob.buffer)
  view.setUint32(0, magic, true)
  view.setUint32(4, version, true)
  view.setUint32(8, sections.size, true)
  let at = HEADER
  for (const [tag, bytes] of sections) {
    view.setUint32(at, tag, true)
    view.setUint32(at + 4, bytes.length, true)
    blob.set(bytes, at + 8)
    at += 8 + pad(bytes.length)
  }
  return blob
}

export function decodeState(blob: Uint8Array, magic: number, version: number, what: string): Map<number, Uint8Array> {
  const bad = (why: string) => new KvmError('BAD_STATE', `the saved state of the ${what} cannot be restored: ${why}`)
  if (blob.length < HEADER) throw bad(`it has ${blob.length} bytes`)
  const view = new DataView(blob.buffer, blob.byteOffset, blob.byteLength)
  if (view.getUint32(0, true) !== magic) throw bad('it is not such a state')
  const found = view.getUint32(4, true)
  if (found !== version) throw bad(`it has version ${found}; this program reads version ${version}`)
  const count = view.getUint32(8, true)
  const sections = new Map<number, Uint8Array>()
  let at = HEADER
  for (let i = 0; i < count; i++) {
    if (at + 8 > blob.length) throw bad('it ends inside a section')
    const tag = view.getUint32(at, true)
    const length = view.getUint32(at + 4, true)
    if (at + 8 + length > blob.length) throw bad('it ends inside a section')
    if (sections.has(tag)) throw bad(`section ${tag} is there twice`)
    // A copy, aligned and of the section's own: it is handed to the kernel.
    sections.set(tag, blob.slice(at + 8, at + 8 + length))
    at += 8 + pad(length)
  }
  if (at !== blob.length) throw bad('bytes follow its last section')
  return sections
}

/** A section of exactly this size, or of a whole number of `size` bytes when `many`. */
export function section(sections: Sections, tag: number, size: number, what: string, many = false): Uint8Array {
  const bytes = sections.get(tag)
  if (bytes === undefined || (many ? bytes.length % size !== 0 : bytes.length !== size)) {
    const found = bytes === undefined ? 'is missing' : `has ${bytes.length} bytes`
    throw new KvmError('BAD_STATE', `the saved state of the ${what} cannot be restored: section ${tag} ${found}`)
  }
  return bytes
}
