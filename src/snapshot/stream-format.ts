/**
 * An exported snapshot: one stream that can go through a pipe in both directions. Numbers are little-endian.
 *
 *   'VITREXPT' | u32 version | u32 1 if the image is included, else 0; then frames:
 *   u8 kind | u8 packing | u16 0 | u32 stored | u32 plain | u32 0 | u64 offset | u64 XXH64 of the plain bytes | stored bytes
 *
 *   manifest   the snapshot's JSON (manifest.ts)
 *   state      CPUs and devices, in pieces, in order
 *   memory     pages that are not zeros, by RAM offset, ascending
 *   base       the image's ext4, if it is included, by offset, ascending
 *   disk       what the layers have over the image, by offset, ascending
 *   disk-zero  no bytes: `plain` bytes at `offset` are zeros where the image has something else
 *   end        SHA-256 of the stream before this frame
 *
 * Frames come in that order (disk and disk-zero mixed). A frame holds at most 1 MiB; it is packed with deflate when that saves a tenth.
 */
import { promisify } from 'node:util'
import { deflateRaw, inflateRaw } from 'node:zlib'
import { SnapshotError } from './errors.ts'
import { hash64 } from './hash.ts'

export const STREAM_MAGIC = 'VITREXPT'
export const STREAM_VERSION = 1
export const STREAM_HEAD_BYTES = 16
export const FRAME_BYTES = 32
/** The most that a frame holds. */
export const MAX_FRAME = 1 << 20
/** A manifest is one frame, however long. */
export const MAX_MANIFEST = 16 << 20

export const FRAME_KINDS = ['manifest', 'state', 'memory', 'base', 'disk', 'disk-zero', 'end'] as const
export type FrameKind = (typeof FRAME_KINDS)[number]

const PLAIN = 0
const DEFLATE = 1

export interface Frame {
  readonly kind: FrameKind
  readonly offset: number
  /** For `disk-zero` this many zeros, and no bytes. */
  readonly length: number
  readonly bytes: Uint8Array
}

export interface FrameHead {
  readonly kind: FrameKind
  readonly packing: number
  readonly stored: number
  readonly plain: number
  readonly offset: number
  readonly sum: bigint
}

const deflate = promisify<Uint8Array, { level: number }, Buffer>(deflateRaw)
const inflate = promisify<Uint8Array, { maxOutputLength: number }, Buffer>(inflateRaw)

export function encodeStreamHead(withImage: boolean): Buffer {
  const head = Buffer.alloc(STREAM_HEAD_BYTES)
  head.write(STREAM_MAGIC, 'latin1')
  head.writeUInt32LE(STREAM_VERSION, 8)
  head.writeUInt32LE(withImage ? 1 : 0, 12)
  return head
}

export function checkStreamHead(head: Buffer, where: string): { withImage: boolean } {
  if (head.toString('latin1', 0, 8) !== STREAM_MAGIC) {
    throw new SnapshotError(
      'FOREIGN',
      `${where} is not a snapshot that Vitrine exported: give a file that 'vitrine export' wrote`,
    )
  }
  const version = head.readUInt32LE(8)
  if (version !== STREAM_VERSION) {
    throw new SnapshotError(
      version > STREAM_VERSION ? 'NEWER_VERSION' : 'FOREIGN',
      `${where} has export version ${version}, and this Vitrine knows ${STREAM_VERSION}: use the Vitrine that made it`,
    )
  }
  const flags = head.readUInt32LE(12)
  if (flags > 1) throw corrupt(where, 'its flags')
  return { withImage: flags === 1 }
}

/** A frame as bytes, packed if that pays. */
export async function encodeFrame(frame: Frame): Promise<Buffer[]> {
  const { kind, bytes, offset, length } = frame
  let stored = bytes
  let packing = PLAIN
  if (bytes.length >= 64) {
    const packed = await deflate(bytes, { level: 1 })
    if (packed.length < bytes.length * 0.9) {
      stored = packed
      packing = DEFLATE
    }
  }
  const head = Buffer.alloc(FRAME_BYTES)
  head.writeUInt8(FRAME_KINDS.indexOf(kind) + 1, 0)
  head.writeUInt8(packing, 1)
  head.writeUInt32LE(stored.length, 4)
  head.writeUInt32LE(length, 8)
  head.writeBigUInt64LE(BigInt(offset), 16)
  head.writeBigUInt64LE(hash64(bytes), 24)
  return [head, Buffer.from(stored.buffer, stored.byteOffset, stored.length)]
}

/** Checks all that can be checked before the frame's bytes are read. */
export function decodeFrameHead(head: Buffer, where: string): FrameHead {
  const kind = FRAME_KINDS[head.readUInt8(0) - 1]
  const packing = head.readUInt8(1)
  const stored = head.readUInt32LE(4)
  const plain = head.readUInt32LE(8)
  const offset = head.readBigUInt64LE(16)
  const most = kind === 'manifest' ? MAX_MANIFEST : MAX_FRAME
  const isSane =
    kind !== undefined &&
    packing <= DEFLATE &&
    head.readUInt16LE(2) === 0 &&
    head.readUInt32LE(12) === 0 &&
    offset <= BigInt(Number.MAX_SAFE_INTEGER) &&
    (kind === 'disk-zero' ? stored === 0 && packing === PLAIN : plain <= most) &&
    (packing === PLAIN ? kind === 'disk-zero' || stored === plain : stored < plain)
  if (!isSane || kind === undefined) throw corrupt(where, 'a frame that cannot be')
  return { kind, packing, stored, plain, offset: Number(offset), sum: head.readBigUInt64LE(24) }
}

export async function decodeFrame(head: FrameHead, stored: Buffer, where: string): Promise<Frame> {
  let bytes: Uint8Array = stored
  if (head.packing === DEFLATE) {
    try {
      bytes = await inflate(stored, { maxOutputLength: head.plain })
    } catch {
      throw corrupt(where, 'a packed frame')
    }
    if (bytes.length !== head.plain) throw corrupt(where, 'a packed frame')
  }
  if (hash64(bytes) !== head.sum) throw corrupt(where, `the checksum of ${head.kind} at ${head.offset}`)
  return { kind: head.kind, offset: head.offset, length: head.plain, bytes }
}

export const corrupt = (where: string, what: string): SnapshotError =>
  new SnapshotError('CORRUPT', `${where} is damaged (${what}): export the snapshot again`)

/** Takes exact numbers of bytes from a stream of pieces of any size. */
export class StreamReader {
  readonly #source: AsyncIterator<Uint8Array>
  readonly where: string
  #pieces: Buffer[] = []
  #ready = 0
  #read = 0
  #ended = false

  constructor(source: AsyncIterable<Uint8Array>, where: string) {
    this.#source = source[Symbol.asyncIterator]()
    this.where = where
  }

  /** Bytes taken so far. */
  get position(): number {
    return this.#read
  }

  async take(length: number): Promise<Buffer> {
    while (this.#ready < length && (await this.#more())) {
      // Until there is enough.
    }
    if (this.#ready < length) {
      throw new SnapshotError(
        'TRUNCATED',
        `${this.where} ends after ${this.#read + this.#ready} bytes, in the middle of a snapshot: export or transfer it again`,
      )
    }
    const parts: Buffer[] = []
    let left = length
    while (left > 0) {
      const piece = this.#pieces[0]!
      if (piece.length <= left) {
        parts.push(piece)
        this.#pieces.shift()
        left -= piece.length
      } else {
        parts.push(piece.subarray(0, left))
        this.#pieces[0] = piece.subarray(left)
        left = 0
      }
    }
    this.#ready -= length
    this.#read += length
    return parts.length === 1 ? parts[0]! : Buffer.concat(parts, length)
  }

  /** True when nothing follows. */
  async atEnd(): Promise<boolean> {
    while (this.#ready === 0 && (await this.#more())) {
      // Empty pieces are nothing.
    }
    return this.#ready === 0
  }

  async #more(): Promise<boolean> {
    if (this.#ended) return false
    const next = await this.#source.next()
    if (next.done) {
      this.#ended = true
      return false
    }
    const piece = Buffer.from(next.value.buffer, next.value.byteOffset, next.value.length)
    if (piece.length > 0) this.#pieces.push(piece)
    this.#ready += piece.length
    return true
  }

  /** Lets the source go. */
  async close(): Promise<void> {
    if (!this.#ended) await this.#source.return?.()
  }
}
