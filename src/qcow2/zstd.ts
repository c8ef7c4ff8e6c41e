/** Unpacking one zstd frame (RFC 8878) that padding may follow: its end is found first, then fzstd unpacks it. */
import { decompress } from 'fzstd'
import { viewOver } from './bytes.ts'

const MAGIC = 0xfd2fb528

/** The length of the frame at the start of `input`, by walking its block headers ("Frames", "Blocks"). */
export function zstdFrameLength(input: Uint8Array): number {
  const view = viewOver(input)
  if (input.length < 9 || view.getUint32(0, true) !== MAGIC) throw new Error('not a zstd frame')
  const descriptor = input[4]!
  const singleSegment = (descriptor & 0x20) !== 0
  const contentSizeBytes = [singleSegment ? 1 : 0, 2, 4, 8][descriptor >>> 6]!
  const dictionaryBytes = [0, 1, 2, 4][descriptor & 3]!
  let at = 5 + (singleSegment ? 0 : 1) + dictionaryBytes + contentSizeBytes
  for (;;) {
    if (at + 3 > input.length) throw new Error('the zstd frame is cut short')
    const header = input[at]! | (input[at + 1]! << 8) | (input[at + 2]! << 16)
    const type = (header >>> 1) & 3
    if (type === 3) throw new Error('reserved zstd block type')
    at += 3 + (type === 1 ? 1 : header >>> 3)
    if ((header & 1) !== 0) break
  }
  if ((descriptor & 4) !== 0) at += 4
  if (at > input.length) throw new Error('the zstd frame is cut short')
  return at
}

/** Unpacks the frame at the start of `input` to `size` bytes; throws when it holds more or less. */
export function decompressZstd(input: Uint8Array, size: number): Uint8Array {
  const output = new Uint8Array(size)
  return decompress(input.subarray(0, zstdFrameLength(input)), output)
}
