/**
 * Packing a cluster as one zstd frame (RFC 8878): greedy matches, literals as they are, sequences coded with the
 * predefined tables. It packs less than libzstd, since literals get no Huffman code, but every decoder reads it, and
 * Node 20 has no zstd. On a Node that has one, that one is used.
 */
import * as zlib from 'node:zlib'
import { BitWriter, type FseTable, fseTable, LengthCodes } from './zstd-tables.ts'

const MAX_BLOCK = 128 * 1024
const HASH_BITS = 15
const MIN_MATCH = 5

/** The predefined distributions (RFC 8878, 3.1.1.3.2.2). */
const LITERAL_LENGTHS = [
  4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1,
]
const MATCH_LENGTHS = [
  1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
  1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1,
]
const OFFSETS = [1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1]

/** What the encoder works with. */
class Workspace {
  /** Position of the last occurrence of a hash, plus one. */
  readonly heads = new Int32Array(1 << HASH_BITS)
  /** Sequences of the current block: literal length, match length, offset. */
  readonly sequences = new Int32Array(3 * (MAX_BLOCK / MIN_MATCH + 1))
  readonly codes = new LengthCodes()
  readonly literalLengths = fseTable(6, LITERAL_LENGTHS)
  readonly matchLengths = fseTable(6, MATCH_LENGTHS)
  readonly offsets = fseTable(5, OFFSETS)
}

let shared: Workspace | undefined

/** Made by the first who packs something: most programs that read disks never do. */
function workspace(): Workspace {
  shared ??= new Workspace()
  return shared
}

type ZstdSync = (input: Uint8Array) => Uint8Array
const native = (zlib as unknown as { zstdCompressSync?: ZstdSync }).zstdCompressSync

export const compressZstd = (input: Uint8Array): Uint8Array => (native ? native(input) : encodeZstd(input))

/** Our own encoder. `input` has at most 2 MiB. */
export function encodeZstd(input: Uint8Array): Uint8Array {
  // Literal and sequence headers and the last bits need some bytes more than the input at worst.
  const output = new Uint8Array(input.length + 64 + Math.ceil(input.length / MAX_BLOCK) * 16)
  const view = new DataView(output.buffer)
  view.setUint32(0, 0xfd2fb528, true)
  // A single segment, with the content's size in four bytes.
  output[4] = 0xa0
  view.setUint32(5, input.length, true)
  workspace().heads.fill(0)
  let at = 9
  for (let start = 0; start === 0 || start < input.length; start += MAX_BLOCK) {
    const end = Math.min(input.length, start + MAX_BLOCK)
    at = encodeBlock(input, start, end, output, at)
  }
  return output.subarray(0, at)
}

function encodeBlock(input: Uint8Array, start: number, end: number, output: Uint8Array, at: number): number {
  const size = end - start
  const body = at + 3
  const count = findSequences(input, start, end)
  let written = -1
  if (count > 0) written = writeSequences(input, start, end, count, output.subarray(body, body + size))
  let type = 2
  if (written < 0) {
    type = 0
    written = size
    output.set(input.subarray(start, end), body)
  }
  const header = ((type === 2 ? written : size) << 3) | (type << 1) | (end === input.length ? 1 : 0)
  output[at] = header
  output[at + 1] = header >>> 8
  output[at + 2] = header >>> 16
  return body + written
}

const word = (bytes: Uint8Array, at: number): number =>
  bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16) | (bytes[at + 3]! << 24)

/** Greedy matching with one candidate a position; the number of sequences. */
function findSequences(input: Uint8Array, start: number, end: number): number {
  const { heads, sequences } = workspace()
  let count = 0
  let anchor = start
  let at = start
  const last = end - 8
  while (at < last) {
    const here = word(input, at)
    const slot = Math.imul(here, 0x9e3779b1) >>> (32 - HASH_BITS)
    const candidate = heads[slot]! - 1
    heads[slot] = at + 1
    if (candidate < 0 || word(input, candidate) !== here || input[candidate + 4] !== input[at + 4]) {
      // Where nothing matches for long, look at fewer positions.
      at += 1 + ((at - anchor) >>> 7)
      continue
    }
    let length = MIN_MATCH
    while (at + length < end && input[candidate + length] === input[at + length]) length++
    sequences[count * 3] = at - anchor
    sequences[count * 3 + 1] = length
    sequences[count * 3 + 2] = at - candidate
    count++
    at += length
    anchor = at
  }
  return count
}

/** Writes a compressed block to `output`; its length, or -1 when it does not come out smaller. */
function writeSequences(input: Uint8Array, start: number, end: number, count: number, output: Uint8Array): number {
  const { sequences } = workspace()
  let literals = end - start
  for (let i = 0; i < count; i++) literals -= sequences[i * 3 + 1]!
  if (literals + count * 2 + 16 >= output.length) return -1
  // Literals_Section_Header, raw: the size in 20 bits.
  const header = (literals << 4) | (3 << 2)
  output[0] = header
  output[1] = header >>> 8
  output[2] = header >>> 16
  let at = 3
  let from = start
  for (let i = 0; i < count; i++) {
    const run = sequences[i * 3]!
    output.set(input.subarray(from, from + run), at)
    at += run
    from += run + sequences[i * 3 + 1]!
  }
  output.set(input.subarray(from, end), at)
  at += end - from
  if (count < 128) output[at++] = count
  else {
    // Fewer than 0x7F00: a block has at most 128 KiB / 5 of them.
    output[at++] = (count >>> 8) + 128
    output[at++] = count & 255
  }
  // All three tables are the predefined ones.
  output[at++] = 0
  const bits = new BitWriter(output, at)
  codeSequences(count, bits)
  return bits.finish()
}

/** The bits are read backwards: last sequence first, and within each in the reverse of the decoder's order. */
function codeSequences(count: number, bits: BitWriter): void {
  const { sequences, codes, literalLengths, matchLengths, offsets } = workspace()
  let literalState = 0
  let matchState = 0
  let offsetState = 0
  for (let i = count - 1; i >= 0; i--) {
    const literalLength = sequences[i * 3]!
    const matchLength = sequences[i * 3 + 1]! - 3
    const offset = sequences[i * 3 + 2]! + 3
    const literalCode = codes.literalCode(literalLength)
    const matchCode = codes.matchCode(matchLength)
    const offsetCode = 31 - Math.clz32(offset)
    if (i === count - 1) {
      literalState = literalLengths.first[literalCode]!
      matchState = matchLengths.first[matchCode]!
      offsetState = offsets.first[offsetCode]!
    } else {
      offsetState = step(offsets, offsetCode, offsetState, bits)
      matchState = step(matchLengths, matchCode, matchState, bits)
      literalState = step(literalLengths, literalCode, literalState, bits)
    }
    bits.add(literalLength - codes.literalBase[literalCode]!, codes.literalBits[literalCode]!)
    bits.add(matchLength - codes.matchBase[matchCode]!, codes.matchBits[matchCode]!)
    bits.add(offset - (1 << offsetCode), offsetCode)
  }
  bits.add(matchState, 6)
  bits.add(offsetState, 5)
  bits.add(literalState, 6)
}

/** The state before `next` that has `symbol`; the bits by which a decoder gets from it to `next` are written. */
function step(table: FseTable, symbol: number, next: number, bits: BitWriter): number {
  const state = table.before[symbol * table.size + next]!
  bits.add(next - table.baseline[state]!, table.bits[state]!)
  return state
}
