/**
 * XZ (The .xz File Format 1.1.0): LZMA2 with or without the x86 branch filter, which is how the kernel's build makes it.
 * CRC32 and CRC64 checks of the content are verified; others (SHA-256) are skipped over.
 */
import { crc32, crc64 } from './crc.ts'
import { corrupt } from './faults.ts'
import { Lzma2Decoder, Output } from './lzma.ts'
import { undoX86Filter } from './x86-filter.ts'

const FILTER_X86 = 4
const FILTER_LZMA2 = 0x21
const CHECK_SIZES = [0, 4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64]
const CHECK_CRC32 = 1
const CHECK_CRC64 = 4

export function unxz(data: Uint8Array, limit: number): Uint8Array {
  const reader = new Reader(data)
  const output = new Output(Math.min(limit, data.length * 6), limit)
  while (reader.at < data.length) {
    readStream(reader, output)
    // Stream padding: whole words of zeros.
    while (reader.at + 4 <= data.length && reader.u32(reader.at) === 0) reader.at += 4
  }
  return output.bytes.subarray(0, output.size)
}

class Reader {
  readonly data: Uint8Array
  readonly #view: DataView
  at = 0

  constructor(data: Uint8Array) {
    this.data = data
    this.#view = new DataView(data.buffer, data.byteOffset, data.byteLength)
  }

  need(count: number): void {
    if (this.at + count > this.data.length) throw corrupt('XZ', 'it is truncated')
  }

  u32(at: number): number {
    if (at + 4 > this.data.length) throw corrupt('XZ', 'it is truncated')
    return this.#view.getUint32(at, true)
  }

  u64(at: number): bigint {
    if (at + 8 > this.data.length) throw corrupt('XZ', 'it is truncated')
    return this.#view.getBigUint64(at, true)
  }

  byte(): number {
    this.need(1)
    return this.data[this.at++]!
  }

  /** A number of 7 bits a byte, at most nine bytes; sizes here stay below 2^53. */
  multibyte(): number {
    let value = 0
    let scale = 1
    for (let i = 0; i < 7; i++) {
      const byte = this.byte()
      value += (byte & 0x7f) * scale
      if (byte < 0x80) return value
      scale *= 128
    }
    throw corrupt('XZ', 'a size that is too large')
  }

  requireCrc32(from: number, to: number, at: number, what: string): void {
    if (crc32(this.data.subarray(from, to)) !== this.u32(at)) throw corrupt('XZ', `the check of the ${what} is wrong`)
  }
}

function readStream(reader: Reader, output: Output): void {
  const { data } = reader
  const header = reader.at
  reader.need(12)
  const magic = [0xfd, 0x37, 0x7a, 0x58, 0x5a, 0]
  if (!magic.every((byte, i) => data[header + i] === byte)) throw corrupt('XZ', 'it has no stream header')
  reader.requireCrc32(header + 6, header + 8, header + 8, 'stream header')
  const check = data[header + 7]! & 0xf
  if (data[header + 6] !== 0 || data[header + 7]! > 0xf) throw corrupt('XZ', 'unknown stream flags')
  reader.at += 12

  const blocks: { unpadded: number; uncompressed: number }[] = []
  for (;;) {
    reader.need(1)
    if (data[reader.at] === 0) break
    blocks.push(readBlock(reader, check, output))
  }
  readIndex(reader, blocks)
  // Footer: CRC32, backward size, flags, "YZ".
  reader.need(12)
  reader.requireCrc32(reader.at + 4, reader.at + 10, reader.at, 'stream footer')
  if (data[reader.at + 10] !== 0x59 || data[reader.at + 11] !== 0x5a) throw corrupt('XZ', 'it has no stream footer')
  reader.at += 12
}

function readBlock(reader: Reader, check: number, output: Output): { unpadded: number; uncompressed: number } {
  const { data } = reader
  const start = reader.at
  const headerSize = (data[start]! + 1) * 4
  reader.need(headerSize)
  reader.requireCrc32(start, start + headerSize - 4, start + headerSize - 4, 'block header')
  reader.at++
  const flags = reader.byte()
  if ((flags & 0x3c) !== 0) throw corrupt('XZ', 'unknown block flags')
  const compressedSize = flags & 0x40 ? reader.multibyte() : undefined
  const uncompressedSize = flags & 0x80 ? reader.multibyte() : undefined
  let x86Start: number | undefined
  const filters = (flags & 3) + 1
  for (let i = 0; i < filters; i++) {
    const id = reader.multibyte()
    const size = reader.multibyte()
    reader.need(size)
    const last = i === filters - 1
    if (last ? id !== FILTER_LZMA2 || size !== 1 : id !== FILTER_X86 || (size !== 0 && size !== 4)) {
      throw corrupt('XZ', `filter 0x${id.toString(16)} is not supported: use LZMA2, with or without --x86`)
    }
    if (!last) x86Start = size === 4 ? reader.u32(reader.at) : 0
    reader.at += size
  }
  reader.at = start + headerSize

  const from = output.size
  const packedStart = reader.at
  reader.at = new Lzma2Decoder(data, packedStart, output).decode()
  const packed = reader.at - packedStart
  const uncompressed = output.size - from
  if (compressedSize !== undefined && compressedSize !== packed)
    throw corrupt('XZ', 'a block of another size than it says')
  if (uncompressedSize !== undefined && uncompressedSize !== uncompressed) {
    throw corrupt('XZ', 'a block that decompresses to another size than it says')
  }
  const content = output.bytes.subarray(from, output.size)
  if (x86Start !== undefined) undoX86Filter(content, x86Start)
  const unpaddedEnd = reader.at
  while ((reader.at - packedStart) % 4 !== 0) if (reader.byte() !== 0) throw corrupt('XZ', 'block padding is not zero')
  const checkSize = CHECK_SIZES[check]!
  reader.need(checkSize)
  if (check === CHECK_CRC32 && reader.u32(reader.at) !== crc32(content)) throw corrupt('XZ', 'a content check is wrong')
  if (check === CHECK_CRC64 && reader.u64(reader.at) !== crc64(content)) throw corrupt('XZ', 'a content check is wrong')
  reader.at += checkSize
  return { unpadded: unpaddedEnd - start + checkSize, uncompressed }
}

function readIndex(reader: Reader, blocks: readonly { unpadded: number; uncompressed: number }[]): void {
  const start = reader.at
  reader.at++
  if (reader.multibyte() !== blocks.length) throw corrupt('XZ', 'its index has another number of blocks')
  for (const block of blocks) {
    if (reader.multibyte() !== block.unpadded || reader.multibyte() !== block.uncompressed) {
      throw corrupt('XZ', 'its index does not agree with its blocks')
    }
  }
  while ((reader.at - start) % 4 !== 0) if (reader.byte() !== 0) throw corrupt('XZ', 'index padding is not zero')
  reader.requireCrc32(start, reader.at, reader.at, 'index')
  reader.at += 4
}
