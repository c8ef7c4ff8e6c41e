/** The three-byte maps: SSSE3, SSE4.1 and SSE4.2 (0F 38 and 0F 3A). AES, PCLMULQDQ, SHA and string compares are elsewhere. */
import { cpu, gpr, setGpr } from './cpu'
import { faulted, fpuTrapSse, raiseGp, raiseUd } from './fault'
import { read128, read16, read32, read64, read8, write16, write32, write64, write8 } from './memory'
import { OP_IMM, OP_SIZE, PREFIX_66, PREFIX_NONE } from './ops'
import { FLAG_LITERAL, S_FLAG_A, S_FLAG_KIND, S_TEMP2, S_XMM } from './state'
import { aesAssist, aesRound, carrylessMultiply, inverseMixColumns } from './vector-crypto'
import { iota, packed, shiftRightBytes } from './vector-int'
import { roundF32, roundF64 } from './vector-convert'
import { beginInstruction, endInstruction, ok, OP_ADD, OP_MUL, packedF32, packedF64 } from './vector-float'
import { isSha, sha, sha1Rounds } from './vector-sha'
import { compareStrings } from './vector-string'
import {
  commit,
  dst,
  enterMmx,
  isRegister,
  low64,
  mm,
  mmxTrap,
  setMm,
  setXmm,
  setXmm32,
  setXmm64,
  source,
  source32,
  source64,
  sourceMm,
  sourceUnaligned,
  src,
  xmm,
} from './vector-state'

// ---- 0F 38

/** SSSE3: defined for MMX too. */
function isSsse3(opcode: u32): bool {
  return opcode <= 0x0b || (opcode >= 0x1c && opcode <= 0x1e)
}

export function exec0f38(op: usize, ea: u64, opcode: u32, prefix: i32): void {
  if (prefix == PREFIX_NONE && isSha(opcode)) {
    if (!fpuTrapSse()) commit(op, sha(opcode, xmm(dst(op)), source(op, ea)))
    return
  }
  if (prefix == PREFIX_NONE && isSsse3(opcode)) {
    if (mmxTrap()) return
    const value = sourceMm(op, ea)
    if (faulted()) return
    enterMmx()
    const d = dst(op)
    return setMm(d, i64x2.extract_lane(ssse3Mmx(opcode, low64(mm(d)), low64(value)), 0))
  }
  if (prefix != PREFIX_66) return raiseUd()
  if (opcode >= 0x20 && opcode <= 0x35 && (opcode & 7) < 6 && (opcode & 8) == 0) return extend(op, ea, opcode)
  if (!isBinary(opcode)) return raiseUd()
  if (opcode == 0x2a && isRegister(op)) return raiseUd()
  if (fpuTrapSse()) return
  const a = xmm(dst(op)),
    b = source(op, ea)
  if (opcode != 0x17) return commit(op, binary(opcode, a, b))
  // PTEST
  if (faulted()) return
  const zero = !v128.any_true(v128.and(a, b)),
    carry = !v128.any_true(v128.andnot(b, a))
  setLiteralFlags((zero ? 0x40 : 0) | (carry ? 1 : 0))
}

function setLiteralFlags(bits: u32): void {
  store<u32>(cpu, FLAG_LITERAL, S_FLAG_KIND)
  store<i64>(cpu, bits, S_FLAG_A)
}

function isBinary(opcode: u32): bool {
  if (isSsse3(opcode) || opcode == 0x10 || opcode == 0x14 || opcode == 0x15 || opcode == 0x17) return true
  if (opcode >= 0x28 && opcode <= 0x2b) return true
  return (opcode >= 0x37 && opcode <= 0x41) || (opcode >= 0xdb && opcode <= 0xdf)
}

function evenWords(a: v128, b: v128): v128 {
  return i8x16.shuffle(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29)
}
function oddWords(a: v128, b: v128): v128 {
  return i8x16.shuffle(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31)
}
function evenDwords(a: v128, b: v128): v128 {
  return i8x16.shuffle(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
}
function oddDwords(a: v128, b: v128): v128 {
  return i8x16.shuffle(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31)
}

/** The MMX forms: neighbours of both operands are in one 16-byte value, and a shuffle's index has 3 bits. */
function ssse3Mmx(opcode: u32, a: v128, b: v128): v128 {
  if (opcode == 0) return binary(0, a, v128.and(b, i8x16.splat(<i8>0x87)))
  if ((opcode >= 1 && opcode <= 3) || (opcode >= 5 && opcode <= 7)) {
    const both = packed(0x6c, a, b)
    return binary(opcode, both, both)
  }
  return binary(opcode, a, b)
}

function binary(opcode: u32, a: v128, b: v128): v128 {
  switch (opcode) {
    case 0x00: {
      // PSHUFB: a set top bit gives 0; swizzle gives 0 for any index above 15.
      return i8x16.swizzle(a, v128.and(b, i8x16.splat(<i8>0x8f)))
    }
    case 0x01:
      return i16x8.add(evenWords(a, b), oddWords(a, b))
    case 0x02:
      return i32x4.add(evenDwords(a, b), oddDwords(a, b))
    case 0x03:
      return i16x8.add_sat_s(evenWords(a, b), oddWords(a, b))
    case 0x04: {
      const even = i16x8.mul(v128.and(a, i16x8.splat(0xff)), i16x8.shr_s(i16x8.shl(b, 8), 8))
      const odd = i16x8.mul(i16x8.shr_u(a, 8), i16x8.shr_s(b, 8))
      return i16x8.add_sat_s(even, odd)
    }
    case 0x05:
      return i16x8.sub(evenWords(a, b), oddWords(a, b))
    case 0x06:
      return i32x4.sub(evenDwords(a, b), oddDwords(a, b))
    case 0x07:
      return i16x8.sub_sat_s(evenWords(a, b), oddWords(a, b))
    case 0x08: {
      const sign = i8x16.shr_s(b, 7)
      return v128.andnot(i8x16.sub(v128.xor(a, sign), sign), i8x16.eq(b, i64x2.splat(0)))
    }
    case 0x09: {
      const sign = i16x8.shr_s(b, 15)
      return v128.andnot(i16x8.sub(v128.xor(a, sign), sign), i16x8.eq(b, i64x2.splat(0)))
    }
    case 0x0a: {
      const sign = i32x4.shr_s(b, 31)
      return v128.andnot(i32x4.sub(v128.xor(a, sign), sign), i32x4.eq(b, i64x2.splat(0)))
    }
    case 0x0b: {
      // PMULHRSW: as wasm's, but -1 times -1 wraps instead of saturating.
      const lowest = i16x8.splat(<i16>0x8000)
      const wraps = v128.and(i16x8.eq(a, lowest), i16x8.eq(b, lowest))
      return v128.xor(i16x8.q15mulr_sat_s(a, b), wraps)
    }
    case 0x10:
      return v128.bitselect(b, a, i8x16.shr_s(xmm(0), 7))
    case 0x14:
      return v128.bitselect(b, a, i32x4.shr_s(xmm(0), 31))
    case 0x15:
      return v128.bitselect(b, a, i64x2.shr_s(xmm(0), 63))
    case 0x1c:
      return i8x16.abs(b)
    case 0x1d:
      return i16x8.abs(b)
    case 0x1e:
      return i32x4.abs(b)
    case 0x28:
      return i64x2.mul(i64x2.shr_s(i64x2.shl(a, 32), 32), i64x2.shr_s(i64x2.shl(b, 32), 32))
    case 0x29:
      return i64x2.eq(a, b)
    case 0x2a:
      return b
    case 0x2b:
      return i16x8.narrow_i32x4_u(a, b)
    case 0x37:
      return i64x2.gt_s(a, b)
    case 0x38:
      return i8x16.min_s(a, b)
    case 0x39:
      return i32x4.min_s(a, b)
    case 0x3a:
      return i16x8.min_u(a, b)
    case 0x3b:
      return i32x4.min_u(a, b)
    case 0x3c:
      return i8x16.max_s(a, b)
    case 0x3d:
      return i32x4.max_s(a, b)
    case 0x3e:
      return i16x8.max_u(a, b)
    case 0x3f:
      return i32x4.max_u(a, b)
    case 0x40:
      return i32x4.mul(a, b)
    case 0x41:
      return smallestWord(b)
    case 0xdb:
      return inverseMixColumns(b)
    default:
      return v128.xor(aesRound(opcode, a), b)
  }
}

/** PHMINPOSUW: the smallest word and its index. */
function smallestWord(b: v128): v128 {
  const at = cpu + S_TEMP2
  v128.store(at, b)
  let best: u32 = 0x10000,
    index: u32 = 0
  for (let i: u32 = 0; i < 8; i++) {
    const word: u32 = load<u16>(at + (i << 1))
    if (word < best) {
      best = word
      index = i
    }
  }
  return low64(best | (index << 16))
}

/** PMOVSX and PMOVZX: memory operands are as narrow as what is used of them. */
function extend(op: usize, ea: u64, opcode: u32): void {
  if (fpuTrapSse()) return
  const kind = opcode & 7
  let a: v128
  if (isRegister(op)) a = xmm(src(op))
  else a = low64(kind == 2 ? read16(ea) : kind == 1 || kind == 4 ? read32(ea) : read64(ea))
  const signed = opcode < 0x30
  let result: v128
  switch (kind) {
    case 0:
      result = signed ? i16x8.extend_low_i8x16_s(a) : i16x8.extend_low_i8x16_u(a)
      break
    case 1:
      result = signed
        ? i32x4.extend_low_i16x8_s(i16x8.extend_low_i8x16_s(a))
        : i32x4.extend_low_i16x8_u(i16x8.extend_low_i8x16_u(a))
      break
    case 2:
      result = signed
        ? i64x2.extend_low_i32x4_s(i32x4.extend_low_i16x8_s(i16x8.extend_low_i8x16_s(a)))
        : i64x2.extend_low_i32x4_u(i32x4.extend_low_i16x8_u(i16x8.extend_low_i8x16_u(a)))
      break
    case 3:
      result = signed ? i32x4.extend_low_i16x8_s(a) : i32x4.extend_low_i16x8_u(a)
      break
    case 4:
      result = signed
        ? i64x2.extend_low_i32x4_s(i32x4.extend_low_i16x8_s(a))
        : i64x2.extend_low_i32x4_u(i32x4.extend_low_i16x8_u(a))
      break
    default:
      result = signed ? i64x2.extend_low_i32x4_s(a) : i64x2.extend_low_i32x4_u(a)
  }
  commit(op, result)
}

// ---- 0F 3A

export function exec0f3a(op: usize, ea: u64, opcode: u32, prefix: i32): void {
  const imm: u32 = load<u8>(op, OP_IMM)
  const d = dst(op)
  if (prefix == PREFIX_NONE) {
    if (opcode == 0xcc) {
      if (!fpuTrapSse()) commit(op, sha1Rounds(xmm(d), source(op, ea), imm & 3))
      return
    }
    if (opcode != 0x0f) return raiseUd()
    // PALIGNR on MMX.
    if (mmxTrap()) return
    const value = sourceMm(op, ea)
    if (faulted()) return
    enterMmx()
    return setMm(d, i64x2.extract_lane(shiftRightBytes(i64x2(value, mm(d)), imm), 0))
  }
  if (prefix != PREFIX_66) return raiseUd()
  switch (opcode) {
    case 0x08:
    case 0x09:
      if (!fpuTrapSse()) roundPacked(op, ea, imm, opcode == 0x09)
      return
    case 0x0a:
    case 0x0b:
      if (!fpuTrapSse()) roundScalar(op, ea, imm, opcode == 0x0b)
      return
    case 0x0c: {
      if (fpuTrapSse()) return
      const mask = i32x4(imm & 1 ? -1 : 0, imm & 2 ? -1 : 0, imm & 4 ? -1 : 0, imm & 8 ? -1 : 0)
      return commit(op, v128.bitselect(source(op, ea), xmm(d), mask))
    }
    case 0x0d: {
      if (fpuTrapSse()) return
      return commit(op, v128.bitselect(source(op, ea), xmm(d), i64x2(imm & 1 ? -1 : 0, imm & 2 ? -1 : 0)))
    }
    case 0x0e: {
      if (fpuTrapSse()) return
      // Bit i of the immediate to all of word i.
      const bits = i16x8(1, 2, 4, 8, 16, 32, 64, 128)
      const mask = i16x8.eq(v128.and(i16x8.splat(<i16>imm), bits), bits)
      return commit(op, v128.bitselect(source(op, ea), xmm(d), mask))
    }
    case 0x0f: {
      if (fpuTrapSse()) return
      const b = source(op, ea)
      if (imm > 31) return commit(op, i64x2.splat(0))
      const at = i8x16.add(iota(), i8x16.splat(<i8>imm))
      return commit(op, v128.or(i8x16.swizzle(b, at), i8x16.swizzle(xmm(d), i8x16.sub(at, i8x16.splat(16)))))
    }
    case 0x14:
    case 0x15:
    case 0x16:
    case 0x17:
      if (!fpuTrapSse()) extract(op, ea, opcode, imm)
      return
    case 0x20:
    case 0x21:
    case 0x22:
      if (!fpuTrapSse()) insert(op, ea, opcode, imm)
      return
    case 0x40:
      if (!fpuTrapSse()) dotSingle(op, ea, imm)
      return
    case 0x41:
      if (!fpuTrapSse()) dotDouble(op, ea, imm)
      return
    case 0x42:
      if (!fpuTrapSse()) commit(op, blockDifferences(xmm(d), source(op, ea), imm))
      return
    case 0x44: {
      if (fpuTrapSse()) return
      const b = source(op, ea)
      const a = xmm(d)
      const x: u64 = imm & 1 ? i64x2.extract_lane(a, 1) : i64x2.extract_lane(a, 0)
      const y: u64 = imm & 16 ? i64x2.extract_lane(b, 1) : i64x2.extract_lane(b, 0)
      return commit(op, carrylessMultiply(x, y))
    }
    case 0x60:
    case 0x61:
    case 0x62:
    case 0x63: {
      if (fpuTrapSse()) return
      const b = sourceUnaligned(op, ea)
      if (!faulted()) compareStrings(opcode, xmm(d), b, imm, load<u8>(op, OP_SIZE) == 3)
      return
    }
    case 0xdf:
      if (!fpuTrapSse()) commit(op, aesAssist(source(op, ea), imm))
      return
    default:
      raiseUd()
  }
}

function roundPacked(op: usize, ea: u64, imm: u32, double: bool): void {
  const b = source(op, ea)
  if (faulted()) return
  const at = cpu + S_TEMP2
  v128.store(at, b)
  beginInstruction()
  if (double) for (let i: u32 = 0; i < 16; i += 8) store<u64>(at + i, roundF64(load<u64>(at + i), imm))
  else for (let i: u32 = 0; i < 16; i += 4) store<u32>(at + i, roundF32(load<u32>(at + i), imm))
  if (endInstruction()) setXmm(dst(op), v128.load(at))
}

function roundScalar(op: usize, ea: u64, imm: u32, double: bool): void {
  const bits: u64 = double ? source64(op, ea) : source32(op, ea)
  if (faulted()) return
  beginInstruction()
  if (double) {
    const result = roundF64(bits, imm)
    if (endInstruction()) setXmm64(dst(op), result)
  } else {
    const result = roundF32(<u32>bits, imm)
    if (endInstruction()) setXmm32(dst(op), result)
  }
}

function extract(op: usize, ea: u64, opcode: u32, imm: u32): void {
  const at = cpu + dst(op) * 32 + S_XMM
  const wide = load<u8>(op, OP_SIZE) == 3
  let value: u64
  if (opcode == 0x14) value = load<u8>(at + (imm & 15))
  else if (opcode == 0x15) value = load<u16>(at + ((imm & 7) << 1))
  else if (opcode == 0x16 && wide) value = load<u64>(at + ((imm & 1) << 3))
  else value = load<u32>(at + ((imm & 3) << 2))
  if (isRegister(op)) setGpr(src(op), value)
  else if (opcode == 0x14) write8(ea, <u32>value)
  else if (opcode == 0x15) write16(ea, <u32>value)
  else if (opcode == 0x16 && wide) write64(ea, value)
  else write32(ea, <u32>value)
}

function insert(op: usize, ea: u64, opcode: u32, imm: u32): void {
  const at = cpu + dst(op) * 32 + S_XMM
  const register = isRegister(op)
  if (opcode == 0x20) {
    const value: u32 = register ? <u32>gpr(src(op)) : read8(ea)
    if (!faulted()) store<u8>(at + (imm & 15), <u8>value)
  } else if (opcode == 0x22 && load<u8>(op, OP_SIZE) == 3) {
    const value: u64 = register ? gpr(src(op)) : read64(ea)
    if (!faulted()) store<u64>(at + ((imm & 1) << 3), value)
  } else if (opcode == 0x22) {
    const value: u32 = register ? <u32>gpr(src(op)) : read32(ea)
    if (!faulted()) store<u32>(at + ((imm & 3) << 2), value)
  } else {
    // INSERTPS
    const value: u32 = register ? load<u32>(cpu + src(op) * 32 + (((imm >> 6) & 3) << 2), S_XMM) : read32(ea)
    if (faulted()) return
    store<u32>(at + (((imm >> 4) & 3) << 2), value)
    for (let i: u32 = 0; i < 4; i++) if ((imm >> i) & 1) store<u32>(at + (i << 2), 0)
  }
}

function dotSingle(op: usize, ea: u64, imm: u32): void {
  const a = xmm(dst(op)),
    b = source(op, ea)
  const used = i32x4(imm & 16 ? -1 : 0, imm & 32 ? -1 : 0, imm & 64 ? -1 : 0, imm & 128 ? -1 : 0)
  const products = packedF32(OP_MUL, v128.and(a, used), v128.and(b, used), 4)
  if (!ok) return
  // (p0 + p1) and (p2 + p3), then their sum.
  const pairs = packedF32(OP_ADD, evenDwords(products, i64x2.splat(0)), oddDwords(products, i64x2.splat(0)), 2)
  if (!ok) return
  const sum = packedF32(OP_ADD, pairs, i8x16.shuffle(pairs, pairs, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7), 1)
  if (!ok) return
  const kept = i32x4(imm & 1 ? -1 : 0, imm & 2 ? -1 : 0, imm & 4 ? -1 : 0, imm & 8 ? -1 : 0)
  setXmm(dst(op), v128.and(i32x4.splat(i32x4.extract_lane(sum, 0)), kept))
}

function dotDouble(op: usize, ea: u64, imm: u32): void {
  const a = xmm(dst(op)),
    b = source(op, ea)
  const used = i64x2(imm & 16 ? -1 : 0, imm & 32 ? -1 : 0)
  const products = packedF64(OP_MUL, v128.and(a, used), v128.and(b, used), 2)
  if (!ok) return
  const sum = packedF64(OP_ADD, products, i64x2.splat(i64x2.extract_lane(products, 1)), 1)
  if (!ok) return
  const kept = i64x2(imm & 1 ? -1 : 0, imm & 2 ? -1 : 0)
  setXmm(dst(op), v128.and(i64x2.splat(i64x2.extract_lane(sum, 0)), kept))
}

/** MPSADBW: eight sums of four absolute differences against one block of the second operand. */
function blockDifferences(a: v128, b: v128, imm: u32): v128 {
  const at = cpu + S_TEMP2
  v128.store(at, a)
  v128.store(at + 16, b)
  const block = at + 16 + ((imm & 3) << 2),
    from = at + (imm & 4)
  for (let i: u32 = 0; i < 8; i++) {
    let sum: i32 = 0
    for (let j: u32 = 0; j < 4; j++) sum += abs<i32>(<i32>load<u8>(from + i + j) - <i32>load<u8>(block + j))
    store<u16>(at + 32 + (i << 1), <u16>sum)
  }
  return v128.load(at + 32)
}
