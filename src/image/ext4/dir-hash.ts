/**
 * The hash that orders the entries of an indexed directory: half MD4 over the name, seeded per file system, with unsigned
 * characters (Documentation/filesystems/ext4/directory.rst, "Hash Tree Directories"; `debugfs -R "dx_hash ..."` agrees).
 */
const input = new Int32Array(8)

/** Fills `input` with the next 32 bytes of the name; what is missing is padding made of the remaining length. */
function load(name: Uint8Array, from: number): void {
  const length = name.length - from
  let pad = length | (length << 8)
  pad |= pad << 16
  for (let word = 0; word < 8; word++) {
    let value = pad
    const start = from + word * 4
    for (let i = start; i < start + 4 && i < name.length; i++) value = name[i]! + (value << 8)
    input[word] = value
  }
}

const rotate = (value: number, by: number): number => (value << by) | (value >>> (32 - by))
const choose = (x: number, y: number, z: number): number => z ^ (x & (y ^ z))
const majority = (x: number, y: number, z: number): number => ((x & y) + ((x ^ y) & z)) | 0
const parity = (x: number, y: number, z: number): number => x ^ y ^ z

/** Which input word each step of the three rounds takes, the rounds' shifts and constants. */
const ROUNDS = [
  { mix: choose, order: [0, 1, 2, 3, 4, 5, 6, 7], shifts: [3, 7, 11, 19], constant: 0 },
  { mix: majority, order: [1, 3, 5, 7, 0, 2, 4, 6], shifts: [3, 5, 9, 13], constant: 0x5a827999 },
  { mix: parity, order: [3, 7, 2, 6, 1, 5, 0, 4], shifts: [3, 9, 11, 15], constant: 0x6ed9eba1 },
] as const

/** The major hash of a name; `seed` is the superblock's s_hash_seed as four words. Bit 0 is always clear. */
export function directoryHash(name: Uint8Array, seed: Uint32Array): number {
  let [s0, s1, s2, s3] = [seed[0]! | 0, seed[1]! | 0, seed[2]! | 0, seed[3]! | 0]
  for (let from = 0; from < name.length; from += 32) {
    load(name, from)
    let [a, b, c, d] = [s0, s1, s2, s3]
    for (const { mix, order, shifts, constant } of ROUNDS) {
      for (let i = 0; i < 8; i++) {
        const next = rotate((a + mix(b, c, d) + input[order[i]!]! + constant) | 0, shifts[i & 3]!)
        a = d
        d = c
        c = b
        b = next
      }
    }
    s0 = (s0 + a) | 0
    s1 = (s1 + b) | 0
    s2 = (s2 + c) | 0
    s3 = (s3 + d) | 0
  }
  const hash = (s1 & ~1) >>> 0
  // The largest value means "end of directory" to readdir.
  return hash === 0xfffffffe ? 0xfffffffc : hash
}
