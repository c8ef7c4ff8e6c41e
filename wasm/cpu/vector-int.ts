/**
 * The packed-integer operations that MMX and SSE2 share (0F 60 to 0F FE): `packed` computes on 16 bytes; for MMX the
 * operands are the low halves and `packedMmx` puts right the few that depend on the width.
 */

/** Bytes 0 to 15. */
@inline
export function iota(): v128 {
  return i8x16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
}

/** A byte shuffle that selects 32-bit lanes by the four 2-bit fields of `imm`. */
export function laneMask(imm: u32): v128 {
  const one = <u32>0x04040404
  return i32x4(
    (imm & 3) * one + 0x03020100,
    ((imm >> 2) & 3) * one + 0x03020100,
    ((imm >> 4) & 3) * one + 0x03020100,
    ((imm >> 6) & 3) * one + 0x03020100,
  )
}

/** Words of the low 8 bytes, selected by `imm`. */
export function wordMask(imm: u32): u64 {
  return (
    <u64>((imm & 3) * 0x0202 + 0x0100) |
    (<u64>(((imm >> 2) & 3) * 0x0202 + 0x0100) << 16) |
    (<u64>(((imm >> 4) & 3) * 0x0202 + 0x0100) << 32) |
    (<u64>(((imm >> 6) & 3) * 0x0202 + 0x0100) << 48)
  )
}

export function shiftRightBytes(a: v128, count: u32): v128 {
  if (count > 15) return i64x2.splat(0)
  return i8x16.swizzle(a, i8x16.add(iota(), i8x16.splat(<i8>count)))
}

export function shiftLeftBytes(a: v128, count: u32): v128 {
  if (count > 15) return i64x2.splat(0)
  return i8x16.swizzle(a, i8x16.sub(iota(), i8x16.splat(<i8>count)))
}

function highWords(low: v128, high: v128): v128 {
  return i8x16.shuffle(low, high, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31)
}

export function sumOfDifferences(a: v128, b: v128): v128 {
  const difference = v128.or(i8x16.sub_sat_u(a, b), i8x16.sub_sat_u(b, a))
  const sums = i32x4.extadd_pairwise_i16x8_u(i16x8.extadd_pairwise_i8x16_u(difference))
  return i64x2.add(v128.and(sums, i64x2.splat(0xffffffff)), i64x2.shr_u(sums, 32))
}

/** Shifts by a 64-bit count: beyond the width everything goes (or the sign stays). `opcode` as in 0F D1 to F3. */
export function shiftAll(opcode: u32, a: v128, count: u64): v128 {
  const n: i32 = count > 255 ? 255 : <i32>count
  switch (opcode) {
    case 0xd1:
      return n > 15 ? i64x2.splat(0) : i16x8.shr_u(a, n)
    case 0xd2:
      return n > 31 ? i64x2.splat(0) : i32x4.shr_u(a, n)
    case 0xd3:
      return n > 63 ? i64x2.splat(0) : i64x2.shr_u(a, n)
    case 0xe1:
      return i16x8.shr_s(a, n > 15 ? 15 : n)
    case 0xe2:
      return i32x4.shr_s(a, n > 31 ? 31 : n)
    case 0xf1:
      return n > 15 ? i64x2.splat(0) : i16x8.shl(a, n)
    case 0xf2:
      return n > 31 ? i64x2.splat(0) : i32x4.shl(a, n)
    default:
      return n > 63 ? i64x2.splat(0) : i64x2.shl(a, n)
  }
}

/** True when `packed` knows the opcode; 6C and 6D have no MMX form. */
export function isPacked(opcode: u32, mmx: bool): bool {
  if (opcode == 0x6c || opcode == 0x6d) return !mmx
  if (opcode >= 0x60 && opcode <= 0x6b) return true
  if (opcode >= 0x74 && opcode <= 0x76) return true
  if (opcode < 0xd1 || opcode == 0xd6 || opcode == 0xd7 || opcode == 0xe6 || opcode == 0xe7) return false
  return opcode != 0xf0 && opcode != 0xf7 && opcode != 0xff
}

export function packed(opcode: u32, a: v128, b: v128): v128 {
  switch (opcode) {
    case 0x60:
      return i8x16.shuffle(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
    case 0x61:
      return i8x16.shuffle(a, b, 0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23)
    case 0x62:
      return i8x16.shuffle(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23)
    case 0x63:
      return i8x16.narrow_i16x8_s(a, b)
    case 0x64:
      return i8x16.gt_s(a, b)
    case 0x65:
      return i16x8.gt_s(a, b)
    case 0x66:
      return i32x4.gt_s(a, b)
    case 0x67:
      return i8x16.narrow_i16x8_u(a, b)
    case 0x68:
      return i8x16.shuffle(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
    case 0x69:
      return i8x16.shuffle(a, b, 8, 9, 24, 25, 10, 11, 26, 27, 12, 13, 28, 29, 14, 15, 30, 31)
    case 0x6a:
      return i8x16.shuffle(a, b, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31)
    case 0x6b:
      return i16x8.narrow_i32x4_s(a, b)
    case 0x6c:
      return i8x16.shuffle(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
    case 0x6d:
      return i8x16.shuffle(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
    case 0x74:
      return i8x16.eq(a, b)
    case 0x75:
      return i16x8.eq(a, b)
    case 0x76:
      return i32x4.eq(a, b)
    case 0xd1:
    case 0xd2:
    case 0xd3:
    case 0xe1:
    case 0xe2:
    case 0xf1:
    case 0xf2:
    case 0xf3:
      return shiftAll(opcode, a, i64x2.extract_lane(b, 0))
    case 0xd4:
      return i64x2.add(a, b)
    case 0xd5:
      return i16x8.mul(a, b)
    case 0xd8:
      return i8x16.sub_sat_u(a, b)
    case 0xd9:
      return i16x8.sub_sat_u(a, b)
    case 0xda:
      return i8x16.min_u(a, b)
    case 0xdb:
      return v128.and(a, b)
    case 0xdc:
      return i8x16.add_sat_u(a, b)
    case 0xdd:
      return i16x8.add_sat_u(a, b)
    case 0xde:
      return i8x16.max_u(a, b)
    case 0xdf:
      return v128.andnot(b, a)
    case 0xe0:
      return i8x16.avgr_u(a, b)
    case 0xe3:
      return i16x8.avgr_u(a, b)
    case 0xe4:
      return highWords(i32x4.extmul_low_i16x8_u(a, b), i32x4.extmul_high_i16x8_u(a, b))
    case 0xe5:
      return highWords(i32x4.extmul_low_i16x8_s(a, b), i32x4.extmul_high_i16x8_s(a, b))
    case 0xe8:
      return i8x16.sub_sat_s(a, b)
    case 0xe9:
      return i16x8.sub_sat_s(a, b)
    case 0xea:
      return i16x8.min_s(a, b)
    case 0xeb:
      return v128.or(a, b)
    case 0xec:
      return i8x16.add_sat_s(a, b)
    case 0xed:
      return i16x8.add_sat_s(a, b)
    case 0xee:
      return i16x8.max_s(a, b)
    case 0xef:
      return v128.xor(a, b)
    case 0xf4:
      return i64x2.mul(v128.and(a, i64x2.splat(0xffffffff)), v128.and(b, i64x2.splat(0xffffffff)))
    case 0xf5:
      return i32x4.dot_i16x8_s(a, b)
    case 0xf6:
      return sumOfDifferences(a, b)
    case 0xf8:
      return i8x16.sub(a, b)
    case 0xf9:
      return i16x8.sub(a, b)
    case 0xfa:
      return i32x4.sub(a, b)
    case 0xfb:
      return i64x2.sub(a, b)
    case 0xfc:
      return i8x16.add(a, b)
    case 0xfd:
      return i16x8.add(a, b)
    default:
      return i32x4.add(a, b)
  }
}

/** The same on the low 8 bytes of `a` and `b`; only the low 8 bytes of the result count. */
export function packedMmx(opcode: u32, a: v128, b: v128): v128 {
  // Packing takes both operands' words: side by side they are one 16-byte operand.
  if (opcode == 0x63 || opcode == 0x67 || opcode == 0x6b) {
    const both = packed(0x6c, a, b)
    return packed(opcode, both, both)
  }
  // The high half of an 8-byte unpack is the second half of the 16-byte low unpack.
  if (opcode >= 0x68 && opcode <= 0x6a) {
    const low = packed(opcode - 8, a, b)
    return packed(0x6d, low, low)
  }
  return packed(opcode, a, b)
}
