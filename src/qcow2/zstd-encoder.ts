/** Packing a cluster as one zstd frame (RFC 8878). */
const MAGIC = [0x28, 0xb5, 0x2f, 0xfd]
const MAX_BLOCK = 128 * 1024

export function compressZstd(input: Uint8Array): Uint8Array {
  const out: number[] = [
    ...MAGIC,
    0xa0,
    input.length & 255,
    (input.length >>> 8) & 255,
    (input.length >>> 16) & 255,
    input.length >>> 24,
  ]
  const chunks: Uint8Array[] = [Uint8Array.from(out)]
  for (let at = 0; at < input.length; at += MAX_BLOCK) {
    const block = input.subarray(at, Math.min(input.length, at + MAX_BLOCK))
    const last = at + MAX_BLOCK >= input.length ? 1 : 0
    const same = block.every(byte => byte === block[0])
    const header = (block.length << 3) | (same ? 2 : 0) | last
    chunks.push(Uint8Array.of(header & 255, (header >>> 8) & 255, header >>> 16), same ? block.subarray(0, 1) : block)
  }
  return Buffer.concat(chunks)
}
