/** The two checks of XZ: CRC-32 (IEEE 802.3) and CRC-64 (ECMA-182), both reflected. */

const TABLE_32 = new Uint32Array(256)
/** CRC-64 in two halves, so that no BigInt is made for each byte. */
const TABLE_64_LOW = new Uint32Array(256)
const TABLE_64_HIGH = new Uint32Array(256)
for (let i = 0; i < 256; i++) {
  let word = i
  let low = i
  let high = 0
  for (let bit = 0; bit < 8; bit++) {
    word = word & 1 ? (word >>> 1) ^ 0xedb8_8320 : word >>> 1
    const carry = low & 1
    low = (low >>> 1) | ((high & 1) << 31)
    high >>>= 1
    if (carry) {
      low ^= 0xd787_0f42
      high ^= 0xc96c_5795
    }
  }
  TABLE_32[i] = word
  TABLE_64_LOW[i] = low
  TABLE_64_HIGH[i] = high
}

export function crc32(data: Uint8Array): number {
  let crc = 0xffff_ffff
  for (let i = 0; i < data.length; i++) crc = TABLE_32[(crc ^ data[i]!) & 0xff]! ^ (crc >>> 8)
  return ~crc >>> 0
}

export function crc64(data: Uint8Array): bigint {
  let low = 0xffff_ffff
  let high = 0xffff_ffff
  for (let i = 0; i < data.length; i++) {
    const index = (low ^ data[i]!) & 0xff
    low = TABLE_64_LOW[index]! ^ ((low >>> 8) | (high << 24))
    high = TABLE_64_HIGH[index]! ^ (high >>> 8)
  }
  return (BigInt(~high >>> 0) << 32n) | BigInt(~low >>> 0)
}
