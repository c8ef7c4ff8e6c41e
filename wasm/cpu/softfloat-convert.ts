/**
 * Soft float: conversions to integers, rounding to integral values, comparison and remainders. They work on the
 * operands and the result of softfloat.ts.
 */
import {
  aClass,
  aExp,
  aMan,
  aSign,
  bClass,
  bExp,
  bMan,
  bSign,
  CHOP,
  DE,
  DENORMAL,
  DOWN,
  div128,
  flags,
  IE,
  INFINITE,
  invalidResult,
  mode,
  NEAREST,
  NORMAL,
  normaliseResult,
  PE,
  QNAN,
  raiseFlags,
  remainder128,
  SNAN,
  setResult,
  UP,
  ZERO,
} from './softfloat'

const TOP: u64 = 0x8000000000000000

/** The magnitude of A as an integer in the current mode; `integerLost` when inexact, `integerUp` when rounded up. */
let integerLost: bool = false
export let integerUp: bool = false
let integerTooBig: bool = false

function roundToMagnitude(): u64 {
  integerLost = false
  integerUp = false
  integerTooBig = false
  if (aClass == ZERO) return 0
  if (aExp > 63) {
    integerTooBig = true
    return 0
  }
  const shift = 63 - aExp
  const kept: u64 = shift > 63 ? 0 : aMan >> shift
  const fraction: u64 = shift == 0 ? 0 : shift > 64 ? 1 : shift == 64 ? aMan : aMan << (64 - shift)
  integerLost = fraction != 0
  if (mode == NEAREST) integerUp = fraction > TOP || (fraction == TOP && (kept & 1) != 0)
  else if (mode != CHOP) integerUp = integerLost && (mode == UP) == (aSign == 0)
  if (!integerUp) return kept
  if (kept + 1 == 0) integerTooBig = true
  return kept + 1
}

/** A as a signed integer of `bits` (16, 32, 64); the integer indefinite and IE when it does not fit. */
export function toInteger(bits: u32): i64 {
  const indefinite: i64 = (<i64>-1) << (bits - 1)
  if (aClass >= INFINITE) {
    raiseFlags(IE)
    return indefinite
  }
  const magnitude = roundToMagnitude()
  const limit = (<u64>1) << (bits - 1)
  if (integerTooBig || magnitude > limit || (magnitude == limit && !aSign)) {
    integerUp = false
    raiseFlags(IE)
    return indefinite
  }
  if (integerLost) raiseFlags(PE)
  return aSign ? 0 - <i64>magnitude : <i64>magnitude
}

/** A rounded to an integral value, as a result. A is not a NaN. */
export function roundToIntegral(): void {
  integerUp = false
  if (aClass == DENORMAL) raiseFlags(DE)
  if (aClass == ZERO || aClass == INFINITE) return setResult(aClass, aSign, 0, 0, 0)
  if (aExp >= 63) return setResult(NORMAL, aSign, aExp, aMan, 0)
  const magnitude = roundToMagnitude()
  if (integerLost) raiseFlags(PE)
  if (magnitude == 0) return setResult(ZERO, aSign, 0, 0, 0)
  setResult(NORMAL, aSign, 63, magnitude, 0)
  normaliseResult()
}

export const LESS: u32 = 0
export const EQUAL: u32 = 1
export const GREATER: u32 = 2
export const UNORDERED: u32 = 3

/** A against B. A quiet comparison raises IE only for signalling NaNs and unsupported encodings. */
export function compare(quiet: bool): u32 {
  if (aClass >= QNAN || bClass >= QNAN) {
    if (!quiet || aClass >= SNAN || bClass >= SNAN) raiseFlags(IE)
    return UNORDERED
  }
  if (aClass == DENORMAL || bClass == DENORMAL) raiseFlags(DE)
  if (aClass == ZERO && bClass == ZERO) return EQUAL
  if (aClass == ZERO) return bSign ? GREATER : LESS
  if (bClass == ZERO) return aSign ? LESS : GREATER
  if (aSign != bSign) return aSign ? LESS : GREATER
  const more = aSign ? LESS : GREATER
  const less = aSign ? GREATER : LESS
  if (aClass == INFINITE || bClass == INFINITE) return aClass == bClass ? EQUAL : aClass == INFINITE ? more : less
  if (aExp != bExp) return aExp > bExp ? more : less
  if (aMan != bMan) return aMan > bMan ? more : less
  return EQUAL
}

/** Low bits of the quotient of the last `remainder`, and whether it was only a partial reduction. */
export let quotient: u64 = 0
export let partial: bool = false

/**
 * A rem B as a result: FPREM truncates the quotient, FPREM1 rounds it to nearest even. An exponent difference of 64 or
 * more is reduced by part of it, and the caller is told to go on (SDM volume 2, FPREM). Neither is a NaN.
 */
export function remainder(nearest: bool): void {
  quotient = 0
  partial = false
  if (aClass == INFINITE || bClass == ZERO) return invalidResult()
  if (aClass == DENORMAL || bClass == DENORMAL) raiseFlags(DE)
  if (aClass == ZERO) return setResult(ZERO, aSign, 0, 0, 0)
  if (bClass == INFINITE) return setResult(NORMAL, aSign, aExp, aMan, 0)
  const distance = aExp - bExp
  if (distance < -1 || (distance == -1 && !nearest)) return setResult(NORMAL, aSign, aExp, aMan, 0)
  if (distance >= 64) {
    // A multiple of 32 below the distance, so that what is left ends below 64 exactly as the processors do it.
    const n = (distance & 31) | 32
    partial = true
    const rest = reduce(n)
    if (rest == 0) return setResult(ZERO, aSign, 0, 0, 0)
    setResult(NORMAL, aSign, bExp + distance - n, rest, 0)
    normaliseResult()
    return
  }
  if (distance == -1) {
    // |A| < |B|, and rounds to 0 or 1: 1 when A > B / 2 (a tie goes to the even quotient, 0).
    if (aMan <= bMan) return setResult(NORMAL, aSign, aExp, aMan, 0)
    quotient = 1
    // B - A with A one exponent below: (2 * B - A) at A's exponent.
    setResult(NORMAL, aSign ^ 1, aExp + 1, bMan - (aMan >> 1) - (aMan & 1), (aMan & 1) << 63)
    normaliseResult()
    return
  }
  let rest = reduce(distance)
  let sign = aSign
  if (nearest) {
    // Compare twice the rest with B.
    const double = rest << 1
    const carry = (rest & TOP) != 0
    if (carry || double > bMan || (double == bMan && (quotient & 1) != 0)) {
      rest = bMan - rest
      sign ^= 1
      quotient++
    }
  }
  if (rest == 0) return setResult(ZERO, aSign, 0, 0, 0)
  setResult(NORMAL, sign, bExp, rest, 0)
  normaliseResult()
}

/** aMan * 2^distance mod bMan, for 0 <= distance < 64; leaves the quotient's low 64 bits. */
function reduce(distance: i32): u64 {
  let rest = aMan
  let q: u64 = 0
  if (rest >= bMan) {
    rest -= bMan
    q = 1
  }
  if (distance == 0) {
    quotient = q
    return rest
  }
  // rest < bMan: (rest : 0) >> (64 - distance) is below bMan : 0.
  const low = div128(rest >> (64 - distance), rest << distance, bMan)
  quotient = (q << distance) + low
  return remainder128
}
