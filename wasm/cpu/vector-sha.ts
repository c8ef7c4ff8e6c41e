/** The SHA extensions (SDM volume 2, SHA1* and SHA256*; FIPS 180-4). Lane 3 of a vector holds the first word. */
import { xmm } from './vector-state'

export function isSha(opcode: u32): bool {
  return opcode >= 0xc8 && opcode <= 0xcd
}

export function sha(opcode: u32, a: v128, b: v128): v128 {
  switch (opcode) {
    case 0xc8: // SHA1NEXTE
      return i32x4.replace_lane(b, 3, i32x4.extract_lane(b, 3) + rotl<u32>(i32x4.extract_lane(a, 3), 30))
    case 0xc9: // SHA1MSG1
      return v128.xor(a, i8x16.shuffle(b, a, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23))
    case 0xca:
      return sha1Message2(a, b)
    case 0xcb:
      return sha256Rounds(a, b)
    case 0xcd:
      return sha256Message2(a, b)
    default:
      return sha256Message1(a, b)
  }
}

function sha1Message2(a: v128, b: v128): v128 {
  const w16 = rotl<u32>(i32x4.extract_lane(a, 3) ^ i32x4.extract_lane(b, 2), 1)
  const w17 = rotl<u32>(i32x4.extract_lane(a, 2) ^ i32x4.extract_lane(b, 1), 1)
  const w18 = rotl<u32>(i32x4.extract_lane(a, 1) ^ i32x4.extract_lane(b, 0), 1)
  const w19 = rotl<u32>(i32x4.extract_lane(a, 0) ^ w16, 1)
  return i32x4(w19, w18, w17, w16)
}

export function sha1Rounds(state: v128, message: v128, kind: u32): v128 {
  let a: u32 = i32x4.extract_lane(state, 3),
    b: u32 = i32x4.extract_lane(state, 2),
    c: u32 = i32x4.extract_lane(state, 1),
    d: u32 = i32x4.extract_lane(state, 0),
    e: u32 = 0
  const k: u32 = kind == 0 ? 0x5a827999 : kind == 1 ? 0x6ed9eba1 : kind == 2 ? 0x8f1bbcdc : 0xca62c1d6
  for (let i = 0; i < 4; i++) {
    const f = kind == 0 ? (b & c) ^ (~b & d) : kind == 2 ? (b & c) ^ (b & d) ^ (c & d) : b ^ c ^ d
    const w: u32 =
      i == 0
        ? i32x4.extract_lane(message, 3)
        : i == 1
          ? i32x4.extract_lane(message, 2)
          : i == 2
            ? i32x4.extract_lane(message, 1)
            : i32x4.extract_lane(message, 0)
    const next = f + rotl<u32>(a, 5) + w + e + k
    e = d
    d = c
    c = rotl<u32>(b, 30)
    b = a
    a = next
  }
  return i32x4(d, c, b, a)
}

function sha256Rounds(x: v128, y: v128): v128 {
  const wk = xmm(0)
  let a: u32 = i32x4.extract_lane(y, 3),
    b: u32 = i32x4.extract_lane(y, 2),
    c: u32 = i32x4.extract_lane(x, 3),
    d: u32 = i32x4.extract_lane(x, 2),
    e: u32 = i32x4.extract_lane(y, 1),
    f: u32 = i32x4.extract_lane(y, 0),
    g: u32 = i32x4.extract_lane(x, 1),
    h: u32 = i32x4.extract_lane(x, 0)
  for (let i = 0; i < 2; i++) {
    const w: u32 = i ? i32x4.extract_lane(wk, 1) : i32x4.extract_lane(wk, 0)
    const t =
      ((e & f) ^ (~e & g)) + (rotr<u32>(e, 6) ^ rotr<u32>(e, 11) ^ rotr<u32>(e, 25)) + w + h
    const next = t + ((a & b) ^ (a & c) ^ (b & c)) + (rotr<u32>(a, 2) ^ rotr<u32>(a, 13) ^ rotr<u32>(a, 22))
    h = g
    g = f
    f = e
    e = t + d
    d = c
    c = b
    b = a
    a = next
  }
  return i32x4(f, e, b, a)
}

function sigma0(w: u32): u32 {
  return rotr<u32>(w, 7) ^ rotr<u32>(w, 18) ^ (w >> 3)
}

function sigma1(w: u32): u32 {
  return rotr<u32>(w, 17) ^ rotr<u32>(w, 19) ^ (w >> 10)
}

function sha256Message1(a: v128, b: v128): v128 {
  return i32x4(
    i32x4.extract_lane(a, 0) + sigma0(i32x4.extract_lane(a, 1)),
    i32x4.extract_lane(a, 1) + sigma0(i32x4.extract_lane(a, 2)),
    i32x4.extract_lane(a, 2) + sigma0(i32x4.extract_lane(a, 3)),
    i32x4.extract_lane(a, 3) + sigma0(i32x4.extract_lane(b, 0)),
  )
}

function sha256Message2(a: v128, b: v128): v128 {
  const w16: u32 = i32x4.extract_lane(a, 0) + sigma1(i32x4.extract_lane(b, 2))
  const w17: u32 = i32x4.extract_lane(a, 1) + sigma1(i32x4.extract_lane(b, 3))
  return i32x4(w16, w17, i32x4.extract_lane(a, 2) + sigma1(w16), i32x4.extract_lane(a, 3) + sigma1(w17))
}
