/**
 * Floating point with a 128-bit significand for the transcendental instructions: room enough that a result rounded to
 * 64 bits is right but for the rarest cases. Truncating, no special values.
 *
 * A number is 32 bytes of the vCPU's scratch space: u64 high, u64 low (the top bit of high is set, or both are zero), i32
 * exponent of that top bit, u32 sign. `slot(n)` is the n-th of them.
 */
import { cpu } from './cpu'
import { div128, mulHigh, NORMAL, remainder128, setResult, ZERO } from './softfloat'
import { S_FPU_SCRATCH } from './state'

const TOP: u64 = 0x8000000000000000
const LOW: usize = 8
const EXP: usize = 16
const SIGN: usize = 20

@inline
export function slot(n: u32): usize {
  return cpu + S_FPU_SCRATCH + (n << 5)
}

export function wSet(d: usize, sign: u32, exp: i32, hi: u64, lo: u64): void {
  if (hi == 0) {
    hi = lo
    lo = 0
    exp -= 64
  }
  if (hi != 0) {
    const shift = clz(hi)
    if (shift) {
      hi = (hi << shift) | (lo >> (64 - shift))
      lo <<= shift
      exp -= <i32>shift
    }
  }
  store<u64>(d, hi)
  store<u64>(d, lo, LOW)
  store<i32>(d, exp, EXP)
  store<u32>(d, sign, SIGN)
}

export function wCopy(d: usize, a: usize): void {
  v128.store(d, v128.load(a))
  store<u64>(d, load<u64>(a, EXP), EXP)
}

export function wInt(d: usize, value: i64): void {
  wSet(d, value < 0 ? 1 : 0, 63, abs(value), 0)
}

export function wIsZero(a: usize): bool {
  return load<u64>(a) == 0
}

export function wSign(a: usize): u32 {
  return load<u32>(a, SIGN)
}

export function wExp(a: usize): i32 {
  return load<i32>(a, EXP)
}

export function wNegate(d: usize): void {
  store<u32>(d, load<u32>(d, SIGN) ^ 1, SIGN)
}

/** Multiplies by a power of two. */
export function wScale(d: usize, by: i32): void {
  store<i32>(d, load<i32>(d, EXP) + by, EXP)
}

export function wMul(d: usize, a: usize, b: usize): void {
  const ah = load<u64>(a),
    al = load<u64>(a, LOW),
    bh = load<u64>(b),
    bl = load<u64>(b, LOW)
  const sign = load<u32>(a, SIGN) ^ load<u32>(b, SIGN)
  if (ah == 0 || bh == 0) return wSet(d, sign, 0, 0, 0)
  let hi = mulHigh(ah, bh),
    lo = ah * bh
  const x = mulHigh(ah, bl),
    y = mulHigh(al, bh)
  lo += x
  if (lo < x) hi++
  lo += y
  if (lo < y) hi++
  wSet(d, sign, load<i32>(a, EXP) + load<i32>(b, EXP) + 1, hi, lo)
}

/** |a| compared with |b|: true when |a| >= |b|. */
export function wNotBelow(a: usize, b: usize): bool {
  const ah = load<u64>(a),
    bh = load<u64>(b)
  if (bh == 0) return true
  if (ah == 0) return false
  if (load<i32>(a, EXP) != load<i32>(b, EXP)) return load<i32>(a, EXP) > load<i32>(b, EXP)
  return ah > bh || (ah == bh && load<u64>(a, LOW) >= load<u64>(b, LOW))
}

function addSigned(d: usize, a: usize, b: usize, signB: u32): void {
  if (!wNotBelow(a, b)) {
    const signA = load<u32>(a, SIGN)
    const t = a
    a = b
    b = t
    combine(d, a, b, signB, signA)
  } else combine(d, a, b, load<u32>(a, SIGN), signB)
}

/** a + b for |a| >= |b|, with the signs given. */
function combine(d: usize, a: usize, b: usize, signA: u32, signB: u32): void {
  let ah = load<u64>(a),
    al = load<u64>(a, LOW),
    exp = load<i32>(a, EXP)
  let bh = load<u64>(b),
    bl = load<u64>(b, LOW)
  const shift = exp - load<i32>(b, EXP)
  if (bh == 0 || shift >= 128) {
    bh = 0
    bl = 0
  } else if (shift >= 64) {
    bl = bh >> (shift - 64)
    bh = 0
  } else if (shift) {
    bl = (bl >> shift) | (bh << (64 - shift))
    bh >>= shift
  }
  if (signA == signB) {
    const lo = al + bl
    const carry: u64 = lo < al ? 1 : 0
    let hi = ah + bh
    let out = hi < ah
    hi += carry
    if (carry && hi == 0) out = true
    if (out) return wSet(d, signA, exp + 1, (hi >> 1) | TOP, (lo >> 1) | (hi << 63))
    return wSet(d, signA, exp, hi, lo)
  }
  const borrow: u64 = al < bl ? 1 : 0
  wSet(d, signA, exp, ah - bh - borrow, al - bl)
}

export function wAdd(d: usize, a: usize, b: usize): void {
  addSigned(d, a, b, load<u32>(b, SIGN))
}

export function wSub(d: usize, a: usize, b: usize): void {
  addSigned(d, a, b, load<u32>(b, SIGN) ^ 1)
}

/** Divides by a small integer. */
export function wDivInt(d: usize, a: usize, n: u32): void {
  const hi = load<u64>(a),
    lo = load<u64>(a, LOW)
  const shift = clz(<u64>n)
  const divisor = <u64>n << shift
  // Scale the divisor up to 64 bits; the dividend's exponent goes with it.
  let first = hi,
    below = lo,
    exp = load<i32>(a, EXP) - (63 - <i32>shift)
  if (first >= divisor) {
    below = (first << 63) | (below >> 1)
    first >>= 1
  } else exp--
  const q1 = div128(first, below, divisor)
  const q0 = div128(remainder128, 0, divisor)
  wSet(d, load<u32>(a, SIGN), exp, q1, q0)
}

/** a / b, bit by bit. */
export function wDiv(d: usize, a: usize, b: usize): void {
  let ah = load<u64>(a),
    al = load<u64>(a, LOW)
  const bh = load<u64>(b),
    bl = load<u64>(b, LOW)
  const sign = load<u32>(a, SIGN) ^ load<u32>(b, SIGN)
  let exp = load<i32>(a, EXP) - load<i32>(b, EXP)
  let qh: u64 = 0,
    ql: u64 = 0
  if (ah == 0) return wSet(d, sign, 0, 0, 0)
  let over: u64 = 0
  for (let i = 0; i < 128; i++) {
    qh = (qh << 1) | (ql >> 63)
    ql <<= 1
    if (over || ah > bh || (ah == bh && al >= bl)) {
      ah = ah - bh - (al < bl ? 1 : 0)
      al -= bl
      ql |= 1
    }
    over = ah >> 63
    ah = (ah << 1) | (al >> 63)
    al <<= 1
  }
  wSet(d, sign, exp, qh, ql)
}

/** The result of the running soft-float operation, inexact. */
export function wResult(a: usize, exact: bool): void {
  if (load<u64>(a) == 0) setResult(ZERO, load<u32>(a, SIGN), 0, 0, 0)
  else setResult(NORMAL, load<u32>(a, SIGN), load<i32>(a, EXP), load<u64>(a), exact ? load<u64>(a, LOW) : load<u64>(a, LOW) | 1)
}
