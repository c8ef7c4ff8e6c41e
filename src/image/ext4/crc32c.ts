/**
 * CRC-32C (Castagnoli, reflected polynomial 0x82F63B78) as ext4's metadata_csum uses it: no inversion at either end, so that
 * checksums chain. Eight bytes a step through eight tables (slicing-by-8).
 */
const TABLES = new Int32Array(8 * 256)
for (let i = 0; i < 256; i++) {
  let crc = i
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1
  TABLES[i] = crc
}
for (let i = 256; i < TABLES.length; i++) {
  const previous = TABLES[i - 256]!
  TABLES[i] = TABLES[previous & 0xff]! ^ (previous >>> 8)
}

/** Goes on from `crc` (start with ~0) over `bytes[start, end)`. The result is an unsigned 32-bit number. */
export function crc32c(crc: number, bytes: Uint8Array, start = 0, end = bytes.length): number {
  const t = TABLES
  let c = crc | 0
  let i = start
  for (const stop = end - 7; i < stop; i += 8) {
    c ^= bytes[i]! | (bytes[i + 1]! << 8) | (bytes[i + 2]! << 16) | (bytes[i + 3]! << 24)
    c =
      t[1792 + (c & 0xff)]! ^
      t[1536 + ((c >>> 8) & 0xff)]! ^
      t[1280 + ((c >>> 16) & 0xff)]! ^
      t[1024 + (c >>> 24)]! ^
      t[768 + bytes[i + 4]!]! ^
      t[512 + bytes[i + 5]!]! ^
      t[256 + bytes[i + 6]!]! ^
      t[bytes[i + 7]!]!
  }
  for (; i < end; i++) c = t[(c ^ bytes[i]!) & 0xff]! ^ (c >>> 8)
  return c >>> 0
}

/** Goes on over the four bytes of a little-endian number. */
export function crc32cWord(crc: number, value: number): number {
  let c = crc | 0
  for (let shift = 0; shift < 32; shift += 8) c = TABLES[(c ^ (value >>> shift)) & 0xff]! ^ (c >>> 8)
  return c >>> 0
}
