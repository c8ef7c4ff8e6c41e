/** Integer instructions that are not in line in run.ts. */
import { putReg, shift } from './alu'
import { cpu } from './cpu'
import { effective, effectiveSlow, sum } from './ea'
import { raise, raiseError, raiseUd, VECTOR_DE, VECTOR_GP } from './fault'
import { arithmeticFlags, carry, CF, condition, DF, OF, setArithmeticFlags, setCarry, setShiftFlags, ZF } from './flags'
import { read16, read32, read64, read8 } from './memory'
import * as O from './ops'
import { beginRmw, endRmw } from './rmw'
import {
  CS,
  MODE_64,
  MODE_SIZE_MASK,
  S_FAULT,
  S_MODE,
  S_RAX,
  S_RCX,
  S_RDX,
  S_RFLAGS,
  S_SEG,
  SEG_BASE,
  SEG_STRIDE,
} from './state'

/** Effective address of an operand of `bytes` bytes (where OP_SIZE is another operand's). */
@inline
export function effectiveSized(c: usize, op: usize, bytes: u32): u64 {
  if (load<u8>(op, O.OP_EA) == 0) return sum(c, op)
  return effectiveSlow(op, bytes)
}

/** Two RIPs in one linear page: the second needs no new translation. */
@inline
export function samePage(a: u64, b: u64): bool {
  const c = cpu
  if ((load<u32>(c, S_MODE) & MODE_SIZE_MASK) == MODE_64) return ((a ^ b) & ~<u64>0xfff) == 0
  const base = load<u64>(c + CS * SEG_STRIDE, S_SEG + SEG_BASE)
  return (((a + base) ^ (b + base)) & ~<u64>0xfff) == 0
}

/** Stores `value` in OP_DST at OP_SIZE. */
@inline
export function putSized(c: usize, op: usize, value: i64): void {
  const d = c + <usize>load<u8>(op, O.OP_DST)
  const size = <u32>load<u8>(op, O.OP_SIZE)
  if (size == 3) store<i64>(d, value)
  else if (size == 2) store<u64>(d, <u64>value & 0xffff_ffff)
  else if (size == 1) store<u16>(d, <u16>value)
  else store<u8>(d, <u8>value)
}

export function putAt(d: usize, size: u32, value: u64): void {
  if (size == 3) store<u64>(d, value)
  else if (size == 2) store<u64>(d, <u64>value & 0xffff_ffff)
  else if (size == 1) store<u16>(d, <u16>value)
  else store<u8>(d, <u8>value)
}

/** Sign-extended register at state address `at`. */
export function getAt(at: usize, size: u32): i64 {
  if (size == 3) return load<i64>(at)
  if (size == 2) return <i64>load<i32>(at)
  if (size == 1) return <i64>load<i16>(at)
  return <i64>load<i8>(at)
}

/** OP_SRC, sign-extended from OP_SIZE. */
@inline
export function loadRegister(c: usize, op: usize): i64 {
  return getAt(c + <usize>load<u8>(op, O.OP_SRC), load<u8>(op, O.OP_SIZE))
}

export function readSized(address: u64, size: u32): i64 {
  if (size == 3) return <i64>read64(address)
  if (size == 2) return <i64>(<i32>read32(address))
  if (size == 1) return <i64>(<i16>read16(address))
  return <i64>(<i8>read8(address))
}

/** The rm operand, register or memory, sign-extended from OP_SIZE. */
export function readOperand(op: usize): i64 {
  if (load<u8>(op, O.OP_EA) == O.EA_REGISTER) return loadRegister(cpu, op)
  return readSized(effective(cpu, op), load<u8>(op, O.OP_SIZE))
}

export function cmovMemory(op: usize): void {
  const c = cpu
  const value = readSized(effective(c, op), load<u8>(op, O.OP_SIZE))
  if (load<u32>(c, S_FAULT)) return
  if (condition(c, load<u8>(op, O.OP_AUX))) putSized(c, op, value)
  else if (load<u8>(op, O.OP_SIZE) == 2) {
    const d = c + <usize>load<u8>(op, O.OP_DST)
    store<u64>(d, <u64>load<u32>(d))
  }
}

export function countInCl(op: usize): u32 {
  return <u32>load<u8>(cpu, S_RCX) & (load<u8>(op, O.OP_SIZE) == 3 ? 63 : 31)
}

export function shiftRegister(op: usize, count: u32): void {
  const c = cpu
  const d = c + <usize>load<u8>(op, O.OP_DST)
  const size = <u32>load<u8>(op, O.OP_SIZE)
  if (!count) {
    if (size == 2) store<u64>(d, <u64>load<u32>(d))
    return
  }
  const kind = <u32>load<u8>(op, O.OP_AUX)
  switch (size) {
    case 0:
      store<i8>(d, shift<i8>(c, kind, load<i8>(d), count))
      return
    case 1:
      store<i16>(d, shift<i16>(c, kind, load<i16>(d), count))
      return
    case 2:
      putReg<i32>(d, shift<i32>(c, kind, load<i32>(d), count))
      return
    default:
      store<i64>(d, shift<i64>(c, kind, load<i64>(d), count))
  }
}

export function shiftMemory(op: usize, count: u32): void {
  const c = cpu
  const size = <u32>load<u8>(op, O.OP_SIZE)
  const kind = <u32>load<u8>(op, O.OP_AUX)
  const address = effective(c, op)
  switch (size) {
    case 0: {
      const p = beginRmw<i8>(address)
      if (!p) return
      if (count) store<i8>(p, shift<i8>(c, kind, load<i8>(p), count))
      endRmw(c, p)
      return
    }
    case 1: {
      const p = beginRmw<i16>(address)
      if (!p) return
      if (count) store<i16>(p, shift<i16>(c, kind, load<i16>(p), count))
      endRmw(c, p)
      return
    }
    case 2: {
      const p = beginRmw<i32>(address)
      if (!p) return
      if (count) store<i32>(p, shift<i32>(c, kind, load<i32>(p), count))
      endRmw(c, p)
      return
    }
    default: {
      const p = beginRmw<i64>(address)
      if (!p) return
      if (count) store<i64>(p, shift<i64>(c, kind, load<i64>(p), count))
      endRmw(c, p)
    }
  }
}

// ---- multiplication and division ----------------------------------------------------------------------------------
/** Upper half of the unsigned 128-bit product. */
export function mulHigh(a: u64, b: u64): u64 {
  const a0 = a & 0xffff_ffff
  const a1 = a >> 32
  const b0 = b & 0xffff_ffff
  const b1 = b >> 32
  const low = a0 * b0
  const mid = a1 * b0 + (low >> 32)
  const mid2 = a0 * b1 + (mid & 0xffff_ffff)
  return a1 * b1 + (mid >> 32) + (mid2 >> 32)
}

/** Upper half of the signed 128-bit product. */
export function mulHighSigned(a: i64, b: i64): i64 {
  return <i64>(mulHigh(<u64>a, <u64>b) - (a < 0 ? <u64>b : 0) - (b < 0 ? <u64>a : 0))
}

/** CF and OF as given; SF, ZF, PF of the low half as hardware leaves them; AF clear. */
function setMulFlags(result: i64, over: bool): void {
  setShiftFlags(cpu, result, over ? CF | OF : 0)
}

/** IMUL with two or three operands; `source` is sign-extended. */
export function imul(op: usize, source: i64): void {
  const c = cpu
  const size = <u32>load<u8>(op, O.OP_SIZE)
  const other = <u32>load<u8>(op, O.OP_AUX) ? load<i64>(op, O.OP_IMM) : getAt(c + <usize>load<u8>(op, O.OP_DST), size)
  const product = source * other
  let over: bool
  let result: i64 = product
  if (size == 3) over = mulHighSigned(source, other) != product >> 63
  else if (size == 2) {
    result = <i64>(<i32>product)
    over = result != product
  } else {
    result = <i64>(<i16>product)
    over = result != product
  }
  putSized(c, op, result)
  setMulFlags(result, over)
}

export function mulDiv(op: usize): void {
  const c = cpu
  const kind = <u32>load<u8>(op, O.OP_AUX)
  const size = <u32>load<u8>(op, O.OP_SIZE)
  const source = readOperand(op)
  if (load<u32>(c, S_FAULT)) return
  if (kind == 4) multiplyUnsigned(size, source)
  else if (kind == 5) multiplySigned(size, source)
  else if (size == 3) {
    if (kind == 6) divide128(<u64>source)
    else divideSigned128(source)
  } else divideSmall(size, source, kind == 7)
}

function multiplyUnsigned(size: u32, source: i64): void {
  const c = cpu
  switch (size) {
    case 0: {
      const product = <u32>load<u8>(c, S_RAX) * (<u32>source & 0xff)
      store<u16>(c, <u16>product, S_RAX)
      setMulFlags(<i64>(<i8>product), product >> 8 != 0)
      return
    }
    case 1: {
      const product = <u32>load<u16>(c, S_RAX) * (<u32>source & 0xffff)
      store<u16>(c, <u16>product, S_RAX)
      store<u16>(c, <u16>(product >> 16), S_RDX)
      setMulFlags(<i64>(<i16>product), product >> 16 != 0)
      return
    }
    case 2: {
      const product = <u64>load<u32>(c, S_RAX) * <u64>(<u32>source)
      store<u64>(c, product & 0xffff_ffff, S_RAX)
      store<u64>(c, product >> 32, S_RDX)
      setMulFlags(<i64>(<i32>product), product >> 32 != 0)
      return
    }
    default: {
      const a = load<u64>(c, S_RAX)
      const high = mulHigh(a, <u64>source)
      store<u64>(c, a * <u64>source, S_RAX)
      store<u64>(c, high, S_RDX)
      setMulFlags(<i64>(a * <u64>source), high != 0)
    }
  }
}

function multiplySigned(size: u32, source: i64): void {
  const c = cpu
  switch (size) {
    case 0: {
      const product = <i32>load<i8>(c, S_RAX) * <i32>source
      store<u16>(c, <u16>product, S_RAX)
      setMulFlags(<i64>(<i8>product), <i32>(<i8>product) != product)
      return
    }
    case 1: {
      const product = <i32>load<i16>(c, S_RAX) * <i32>source
      store<u16>(c, <u16>product, S_RAX)
      store<u16>(c, <u16>(product >> 16), S_RDX)
      setMulFlags(<i64>(<i16>product), <i32>(<i16>product) != product)
      return
    }
    case 2: {
      const product = <i64>load<i32>(c, S_RAX) * source
      store<u64>(c, <u64>product & 0xffff_ffff, S_RAX)
      store<u64>(c, <u64>product >> 32, S_RDX)
      setMulFlags(<i64>(<i32>product), <i64>(<i32>product) != product)
      return
    }
    default: {
      const a = load<i64>(c, S_RAX)
      const low = a * source
      const high = mulHighSigned(a, source)
      store<i64>(c, low, S_RAX)
      store<i64>(c, high, S_RDX)
      setMulFlags(low, high != low >> 63)
    }
  }
}

/** 8, 16 and 32-bit divisions; the dividend fits in 64 bits. */
function divideSmall(size: u32, source: i64, signed: bool): void {
  const c = cpu
  const bits: u64 = 8 << size
  const mask: u64 = (<u64>1 << bits) - 1
  let dividend: u64
  if (size == 0) dividend = load<u16>(c, S_RAX)
  else if (size == 1) dividend = (<u64>load<u16>(c, S_RDX) << 16) | load<u16>(c, S_RAX)
  else dividend = (<u64>load<u32>(c, S_RDX) << 32) | load<u32>(c, S_RAX)
  let quotient: u64
  let remainder: u64
  if (signed) {
    const n = size == 2 ? <i64>dividend : size == 1 ? <i64>(<i32>dividend) : <i64>(<i16>dividend)
    if (source == 0 || (n == i64.MIN_VALUE && source == -1)) {
      raise(VECTOR_DE)
      return
    }
    const q = n / source
    if (q < -(<i64>1 << (bits - 1)) || q > (<i64>1 << (bits - 1)) - 1) {
      raise(VECTOR_DE)
      return
    }
    quotient = <u64>q
    remainder = <u64>(n % source)
  } else {
    const d = <u64>source & mask
    if (d == 0) {
      raise(VECTOR_DE)
      return
    }
    quotient = dividend / d
    remainder = dividend % d
    if (quotient > mask) {
      raise(VECTOR_DE)
      return
    }
  }
  if (size == 0) store<u16>(c, <u16>((quotient & 0xff) | ((remainder & 0xff) << 8)), S_RAX)
  else {
    putAt(c + S_RAX, size, quotient)
    putAt(c + S_RDX, size, remainder)
  }
}

let quotient128: u64 = 0
let remainder128: u64 = 0

/** high:low / divisor where high < divisor: Knuth's algorithm D with 32-bit digits. */
function divideWide(high: u64, low: u64, divisor: u64): void {
  if (high == 0) {
    quotient128 = low / divisor
    remainder128 = low % divisor
    return
  }
  const s = clz<u64>(divisor)
  const d = divisor << s
  const d1 = d >> 32
  const d0 = d & 0xffff_ffff
  const n32 = s ? (high << s) | (low >> (64 - s)) : high
  const n10 = low << s
  const n1 = n10 >> 32
  const n0 = n10 & 0xffff_ffff
  let q1 = n32 / d1
  let r = n32 % d1
  while (q1 >= 0x1_0000_0000 || q1 * d0 > ((r << 32) | n1)) {
    q1--
    r += d1
    if (r >= 0x1_0000_0000) break
  }
  const n21 = (n32 << 32) + n1 - q1 * d
  let q0 = n21 / d1
  r = n21 % d1
  while (q0 >= 0x1_0000_0000 || q0 * d0 > ((r << 32) | n0)) {
    q0--
    r += d1
    if (r >= 0x1_0000_0000) break
  }
  quotient128 = (q1 << 32) + q0
  remainder128 = ((n21 << 32) + n0 - q0 * d) >> s
}

function divide128(divisor: u64): void {
  const c = cpu
  const high = load<u64>(c, S_RDX)
  if (high >= divisor) {
    // Divisor 0 too.
    raise(VECTOR_DE)
    return
  }
  divideWide(high, load<u64>(c, S_RAX), divisor)
  store<u64>(c, quotient128, S_RAX)
  store<u64>(c, remainder128, S_RDX)
}

function divideSigned128(divisor: i64): void {
  const c = cpu
  let high = load<u64>(c, S_RDX)
  let low = load<u64>(c, S_RAX)
  const negative = <i64>high < 0
  if (negative) {
    low = 0 - low
    high = ~high + (low == 0 ? 1 : 0)
  }
  const d = divisor < 0 ? <u64>0 - <u64>divisor : <u64>divisor
  if (high >= d) {
    raise(VECTOR_DE)
    return
  }
  divideWide(high, low, d)
  const negativeQuotient = negative != divisor < 0
  if (quotient128 > (negativeQuotient ? 0x8000_0000_0000_0000 : 0x7fff_ffff_ffff_ffff)) {
    raise(VECTOR_DE)
    return
  }
  store<u64>(c, negativeQuotient ? 0 - quotient128 : quotient128, S_RAX)
  store<u64>(c, negative ? 0 - remainder128 : remainder128, S_RDX)
}

// ---- bits -----------------------------------------------------------------------------------------------------------
export function bitScan(op: usize): void {
  const c = cpu
  const size = <u32>load<u8>(op, O.OP_SIZE)
  const kind = <u32>load<u8>(op, O.OP_AUX)
  const value = readOperand(op)
  if (load<u32>(c, S_FAULT)) return
  const x = size == 3 ? <u64>value : size == 2 ? <u64>value & 0xffff_ffff : <u64>(<u16>value)
  if (kind == 4) {
    putSized(c, op, popcnt<i64>(<i64>x))
    setArithmeticFlags(x == 0 ? ZF : 0)
    return
  }
  if (x == 0) {
    // The destination is left as it was; hardware still clears the upper half for 32 bits on some models, not on others.
    setShiftFlags(c, 0, 0)
    return
  }
  const result: i64 = kind == 0 ? <i64>ctz<u64>(x) : <i64>(63 - clz<u64>(x))
  putSized(c, op, result)
  // ZF is clear; the others are undefined.
  setShiftFlags(c, 1, 0)
}

/** SHLD (OP_AUX 0) and SHRD. */
export function doubleShift(op: usize): void {
  const c = cpu
  const size = <u32>load<u8>(op, O.OP_SIZE)
  const bits: u32 = 8 << size
  const count =
    (load<u8>(op, O.OP_AUX2) ? <u32>load<u8>(c, S_RCX) : load<u32>(op, O.OP_IMM)) & (size == 3 ? 63 : 31)
  const register = <u32>load<u8>(op, O.OP_EA) == O.EA_REGISTER
  let p: usize
  if (register) p = c + <usize>load<u8>(op, O.OP_SRC)
  else if (size == 3) p = beginRmw<u64>(effective(c, op))
  else if (size == 2) p = beginRmw<u32>(effective(c, op))
  else p = beginRmw<u16>(effective(c, op))
  if (!register && !p) return
  const left = <u32>load<u8>(op, O.OP_AUX) == 0
  const mask: u64 = size == 3 ? <u64>-1 : (<u64>1 << bits) - 1
  const a = <u64>getAt(p, size) & mask
  if (count == 0) {
    if (register && size == 2) store<u64>(p, a)
    if (!register) endRmw(c, p)
    return
  }
  const b = <u64>getAt(c + <usize>load<u8>(op, O.OP_DST), size) & mask
  let result: u64
  let out: u64
  if (size == 1) {
    // Counts up to 31 on 16 bits: what hardware does is shift a : b : a.
    const n = count & 31
    if (left) {
      const wide = (a << 32) | (b << 16) | a
      result = (wide >> (32 - n)) & 0xffff
      out = (wide >> (48 - n)) & 1
    } else {
      const wide = (a << 32) | (b << 16) | a
      result = (wide >> n) & 0xffff
      out = (wide >> (n - 1)) & 1
    }
  } else if (left) {
    result = ((a << count) | (b >> (bits - count))) & mask
    out = (a >> (bits - count)) & 1
  } else {
    result = ((a >> count) | (b << (bits - count))) & mask
    out = (a >> (count - 1)) & 1
  }
  const top = bits - 1
  const over = ((result ^ a) >> top) & 1
  const extended = size == 3 ? <i64>result : size == 2 ? <i64>(<i32>result) : <i64>(<i16>result)
  setShiftFlags(c, extended, (out ? CF : 0) | (over ? OF : 0))
  if (register) putAt(p, size, result)
  else {
    if (size == 3) store<u64>(p, result)
    else if (size == 2) store<u32>(p, <u32>result)
    else store<u16>(p, <u16>result)
    endRmw(c, p)
  }
}

// ---- flags ----------------------------------------------------------------------------------------------------------
export function flagOperation(op: usize): void {
  const c = cpu
  switch (<u32>load<u8>(op, O.OP_AUX)) {
    case O.FLAGOP_CLC:
      setCarry(false)
      return
    case O.FLAGOP_STC:
      setCarry(true)
      return
    case O.FLAGOP_CMC:
      setCarry(!carry())
      return
    case O.FLAGOP_CLD:
      store<u32>(c, load<u32>(c, S_RFLAGS) & ~DF, S_RFLAGS)
      return
    case O.FLAGOP_STD:
      store<u32>(c, load<u32>(c, S_RFLAGS) | DF, S_RFLAGS)
      return
    case O.FLAGOP_LAHF:
      store<u8>(c, <u8>((arithmeticFlags() & 0xd5) | 2), S_RAX + 1)
      return
    case O.FLAGOP_SAHF:
      setArithmeticFlags((arithmeticFlags() & OF) | (<u32>load<u8>(c, S_RAX + 1) & 0xd5))
      return
    default:
      store<u8>(c, carry() ? 0xff : 0, S_RAX)
  }
}

export function undefinedOperation(op: usize): void {
  if (load<u8>(op, O.OP_AUX) == 1) raiseError(VECTOR_GP, 0)
  else raiseUd()
}
