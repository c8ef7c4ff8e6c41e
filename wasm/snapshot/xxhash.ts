/**
 * XXH64 with seed 0 (the xxHash specification, version 0.1.1, "XXH64 algorithm"), over memory of the module's own: the
 * checksums of snapshot files. 32 bytes a step in four lanes that do not wait for each other.
 */
const P1: u64 = 0x9e3779b185ebca87
const P2: u64 = 0xc2b2ae3d27d4eb4f
const P3: u64 = 0x165667b19e3779f9
const P4: u64 = 0x85ebca77c2b2ae63
const P5: u64 = 0x27d4eb2f165667c5

const PAGE: usize = 4096

function round(lane: u64, input: u64): u64 {
  return rotl(lane + input * P2, 31) * P1
}

function merge(hash: u64, lane: u64): u64 {
  return (hash ^ round(0, lane)) * P1 + P4
}

/** The hash of `length` bytes at `from`. */
export function hash(from: usize, length: usize): u64 {
  let at = from
  const end = from + length
  let result: u64
  if (length >= 32) {
    let a: u64 = P1 + P2
    let b: u64 = P2
    let c: u64 = 0
    let d: u64 = 0 - P1
    const last = end - 32
    do {
      a = round(a, load<u64>(at))
      b = round(b, load<u64>(at, 8))
      c = round(c, load<u64>(at, 16))
      d = round(d, load<u64>(at, 24))
      at += 32
    } while (at <= last)
    result = rotl(a, 1) + rotl(b, 7) + rotl(c, 12) + rotl(d, 18)
    result = merge(merge(merge(merge(result, a), b), c), d)
  } else result = P5
  result += <u64>length
  for (; at + 8 <= end; at += 8) result = rotl(result ^ round(0, load<u64>(at)), 27) * P1 + P4
  if (at + 4 <= end) {
    result = rotl(result ^ (<u64>load<u32>(at) * P1), 23) * P2 + P3
    at += 4
  }
  for (; at < end; at++) result = rotl(result ^ (<u64>load<u8>(at) * P5), 11) * P1
  result = (result ^ (result >> 33)) * P2
  result = (result ^ (result >> 29)) * P3
  return result ^ (result >> 32)
}

/** The hashes of `count` pages of 4 KiB at `from`, one after the other to `to`. */
export function hashPages(from: usize, count: usize, to: usize): void {
  for (let i: usize = 0; i < count; i++) store<u64>(to + i * 8, hash(from + i * PAGE, PAGE))
}
