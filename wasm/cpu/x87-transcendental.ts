/**
 * FSIN to FYL2XP1 (SDM volume 1, 8.3.7 to 8.3.10), computed with 128 bits and rounded once: within one unit in the last
 * place of what any processor gives, and right where processors are. Arguments of the trigonometric ones are reduced
 * by the 66-bit pi the hardware uses.
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
  DE,
  DENORMAL,
  extMan,
  extTop,
  flags,
  INFINITE,
  invalidResult,
  NORMAL,
  packExt,
  PE,
  QNAN,
  raiseFlags,
  setResult,
  swapAB,
  ZE,
  ZERO,
} from './softfloat'
import { slot, wAdd, wCopy, wDiv, wDivInt, wExp, wInt, wIsZero, wMul, wNegate, wNotBelow, wResult, wScale, wSet, wSign, wSub } from './widefloat'
import { nanResult, nanResultA } from './x87-arith'
import {
  beginX87,
  C1,
  C2,
  fsw,
  INDEFINITE_MAN,
  INDEFINITE_TOP,
  isEmpty,
  loadA,
  loadB,
  pop,
  postOperation,
  push,
  setFsw,
  setSt,
  stackFault,
  stMan,
  storeResult,
  stTop,
  underflowInto,
} from './x87-state'

/** pi to 128 bits. */
const PI_HI: u64 = 0xc90fdaa22168c234
const PI_LO: u64 = 0xc4c6628b80dc1cd1
/** log2(e) to 128 bits. */
const LOG2E_HI: u64 = 0xb8aa3b295c17f0bb
const LOG2E_LO: u64 = 0xbe87fed0691d3e88
/** ln(2) to 128 bits. */
const LN2_HI: u64 = 0xb17217f7d1cf79ab
const LN2_LO: u64 = 0xc9e3b39803f2f6af

function clearC2(): void {
  setFsw(fsw() & ~C2)
}

/** A as a wide number. */
function wideA(d: usize): void {
  if (aClass == ZERO) wSet(d, aSign, 0, 0, 0)
  else wSet(d, aSign, aExp, aMan, 0)
}

function wideB(d: usize): void {
  if (bClass == ZERO) wSet(d, bSign, 0, 0, 0)
  else wSet(d, bSign, bExp, bMan, 0)
}

// ---- trigonometry

/**
 * Reduces A (|A| < 2^63) into slot 0, |r| <= pi/4, and returns the number of quarter turns modulo 4. Works in units of
 * 2^-65: pi/2 is the 66-bit integer 0x3243F6A8885A308D3 in them, and A an integer wherever reduction is needed.
 */
function reduce(): u32 {
  const r = slot(0)
  wideA(r)
  store<u32>(r, 0, 20)
  if (aClass == ZERO || aExp < -1) return 0
  const pHi: u64 = 3,
    pLo: u64 = 0x243f6a8885a308d3
  let hi: u64 = 0,
    lo: u64 = aMan,
    quarters: u32 = 0
  for (let i = aExp + 2; ; i--) {
    // At most two bits go in at a time, so at most one subtraction a step.
    while (hi > pHi || (hi == pHi && lo >= pLo)) {
      hi = hi - pHi - (lo < pLo ? 1 : 0)
      lo -= pLo
      quarters++
    }
    if (i <= 0) break
    hi = (hi << 1) | (lo >> 63)
    lo <<= 1
    quarters <<= 1
  }
  // Beyond an eighth of a turn, count from the next quarter.
  const doubleHi = (hi << 1) | (lo >> 63),
    doubleLo = lo << 1
  if (doubleHi > pHi || (doubleHi == pHi && doubleLo > pLo)) {
    const borrow: u64 = pLo < lo ? 1 : 0
    wSet(r, 1, 62, pHi - hi - borrow, pLo - lo)
    quarters++
  } else wSet(r, 0, 62, hi, lo)
  return quarters & 3
}

/** slot(d) = sin(slot 0) or cos(slot 0), |slot 0| <= pi/4, by its Taylor series; uses slots 1 to 3. */
function sineSeries(d: u32, cosine: bool): void {
  const r = slot(0),
    z = slot(1),
    s = slot(d),
    one = slot(3)
  wMul(z, r, r)
  wInt(one, 1)
  wInt(s, 1)
  for (let k: u32 = 14; k >= 1; k--) {
    wMul(s, s, z)
    wDivInt(s, s, cosine ? (2 * k - 1) * (2 * k) : 2 * k * (2 * k + 1))
    wSub(s, one, s)
  }
  if (!cosine) wMul(s, s, r)
}

/** slot(d) = sine of A's angle plus `turn` quarters, after `reduce` returned `quarters`. */
function sineOf(d: u32, quarters: u32): void {
  sineSeries(d, (quarters & 1) != 0)
  if (quarters & 2) wNegate(slot(d))
}

/** True when ST0 cannot be an argument: the result has been delivered, or C2 set because it is out of range. */
function refused(extra: bool): bool {
  if (isEmpty(0)) {
    if (underflowInto(0) && extra) push(INDEFINITE_MAN, INDEFINITE_TOP)
    clearC2()
    return true
  }
  if (extra && !isEmpty(7)) {
    clearC2()
    if (stackFault(true)) {
      setSt(0, INDEFINITE_MAN, INDEFINITE_TOP)
      push(INDEFINITE_MAN, INDEFINITE_TOP)
    }
    return true
  }
  beginX87()
  loadA(0)
  let special = nanResultA()
  if (!special && aClass == INFINITE) {
    invalidResult()
    special = true
  }
  if (special) {
    clearC2()
    if (storeResult(0, 64) && extra) push(stMan(0), stTop(0))
    return true
  }
  if (aClass != ZERO && aExp >= 63) {
    setFsw((fsw() & ~C1) | C2)
    return true
  }
  clearC2()
  if (aClass == DENORMAL) raiseFlags(DE)
  return false
}

function trigonometric(shift: u32): void {
  if (refused(false)) return
  if (aClass == ZERO) {
    if (shift) setResult(NORMAL, 0, 0, 0x8000000000000000, 0)
    else setResult(ZERO, aSign, 0, 0, 0)
    storeResult(0, 64)
    return
  }
  const sign = shift ? 0 : aSign
  const quarters = reduce()
  sineOf(2, (quarters + shift) & 3)
  if (sign) wNegate(slot(2))
  wResult(slot(2), false)
  storeResult(0, 64)
}

export function fsin(): void {
  trigonometric(0)
}

export function fcos(): void {
  trigonometric(1)
}

export function fsincos(): void {
  if (refused(true)) return
  if (aClass == ZERO) {
    setResult(ZERO, aSign, 0, 0, 0)
    if (storeResult(0, 64)) push(0x8000000000000000, 0x3fff)
    return
  }
  const sign = aSign
  const quarters = reduce()
  sineOf(4, (quarters + 1) & 3)
  sineOf(2, quarters)
  if (sign) wNegate(slot(2))
  wResult(slot(4), false)
  packExt(64)
  const man = extMan,
    top = extTop
  wResult(slot(2), false)
  if (storeResult(0, 64)) push(man, top)
}

export function fptan(): void {
  if (refused(true)) return
  if (aClass == ZERO) setResult(ZERO, aSign, 0, 0, 0)
  else {
    const sign = aSign
    const quarters = reduce()
    sineOf(4, (quarters + 1) & 3)
    sineOf(2, quarters)
    wDiv(slot(2), slot(2), slot(4))
    if (sign) wNegate(slot(2))
    wResult(slot(2), false)
  }
  if (storeResult(0, 64)) push(0x8000000000000000, 0x3fff)
}

/** slot(2) = atan(slot 0) for 0 <= slot 0 <= 1; uses slots 1 to 5. */
function arctangent(): void {
  const r = slot(0),
    z = slot(1),
    s = slot(2),
    one = slot(3),
    term = slot(4),
    limit = slot(5)
  wInt(one, 1)
  // tan(pi/8), roughly: above it, atan(r) = pi/4 + atan((r - 1) / (r + 1)).
  wSet(limit, 0, -2, 0xd413cccfe7799211, 0)
  const shifted = wNotBelow(r, limit)
  if (shifted) {
    wSub(term, r, one)
    wAdd(s, r, one)
    wDiv(r, term, s)
  }
  wMul(z, r, r)
  wSet(s, 0, 0, 0, 0)
  for (let k: i32 = 32; k >= 0; k--) {
    wMul(s, s, z)
    wDivInt(term, one, 2 * k + 1)
    wSub(s, term, s)
  }
  wMul(s, s, r)
  if (!shifted) return
  wSet(term, 0, -1, PI_HI, PI_LO)
  wAdd(s, s, term)
}

/** ST1 = atan2(ST1, ST0), pop. */
export function fpatan(): void {
  if (isEmpty(0) || isEmpty(1)) {
    if (underflowInto(1)) pop()
    return
  }
  beginX87()
  loadA(1)
  loadB(0)
  if (!nanResult()) {
    if (aClass == DENORMAL || bClass == DENORMAL) raiseFlags(DE)
    const s = slot(2)
    const sign = aSign
    if (aClass == ZERO || bClass == INFINITE || bClass == ZERO || aClass == INFINITE) {
      // Multiples of pi/4.
      let quarters: i64
      if (aClass == INFINITE && bClass == INFINITE) quarters = bSign ? 3 : 1
      else if (aClass == ZERO || bClass == INFINITE) quarters = bSign ? 4 : 0
      else quarters = 2
      if (quarters == 0) setResult(ZERO, sign, 0, 0, 0)
      else {
        wSet(slot(0), 0, -1, PI_HI, PI_LO)
        wInt(slot(1), quarters)
        wMul(s, slot(0), slot(1))
        if (sign) wNegate(s)
        wResult(s, false)
      }
    } else {
      const y = slot(6),
        x = slot(7)
      wSet(y, 0, aExp, aMan, 0)
      wSet(x, 0, bExp, bMan, 0)
      const steep = wNotBelow(y, x)
      if (steep) wDiv(slot(0), x, y)
      else wDiv(slot(0), y, x)
      arctangent()
      const t = slot(4)
      if (steep) {
        wSet(t, 0, 0, PI_HI, PI_LO)
        if (bSign) wAdd(s, t, s)
        else wSub(s, t, s)
      } else if (bSign) {
        wSet(t, 0, 1, PI_HI, PI_LO)
        wSub(s, t, s)
      }
      store<u32>(s, sign, 20)
      wResult(s, false)
    }
  }
  if (storeResult(1, 64)) pop()
}

// ---- exponentials and logarithms

/** ST0 = 2^ST0 - 1 for |ST0| <= 1. */
export function f2xm1(): void {
  if (isEmpty(0)) {
    underflowInto(0)
    return
  }
  beginX87()
  loadA(0)
  if (!nanResultA()) {
    if (aClass == DENORMAL) raiseFlags(DE)
    if (aClass == ZERO) setResult(ZERO, aSign, 0, 0, 0)
    else if (aClass == INFINITE) {
      if (aSign) setResult(NORMAL, 1, 0, 0x8000000000000000, 0)
      else setResult(INFINITE, 0, 0, 0, 0)
    } else if (aExp > 0 || (aExp == 0 && aMan != 0x8000000000000000)) {
      // Outside the domain the result is undefined: the argument stays.
      setResult(NORMAL, aSign, aExp, aMan, 0)
    } else if (aExp == 0) setResult(NORMAL, aSign, aSign ? -1 : 0, 0x8000000000000000, 0)
    else {
      const y = slot(0),
        s = slot(1),
        one = slot(2)
      wideA(y)
      wSet(s, 0, -1, LN2_HI, LN2_LO)
      wMul(y, y, s)
      wInt(one, 1)
      wInt(s, 1)
      for (let k: u32 = 28; k >= 2; k--) {
        wMul(s, s, y)
        wDivInt(s, s, k)
        wAdd(s, one, s)
      }
      wMul(s, s, y)
      wResult(s, false)
    }
  }
  storeResult(0, 64)
}

/** slot(2) = log2((1 + t) / (1 - t)) with t in slot 0, |t| < 0.18; uses slots 1 to 4. */
function logarithmSeries(): void {
  const t = slot(0),
    z = slot(1),
    s = slot(2),
    one = slot(3),
    term = slot(4)
  wMul(z, t, t)
  wInt(one, 1)
  wSet(s, 0, 0, 0, 0)
  for (let k: i32 = 24; k >= 0; k--) {
    wMul(s, s, z)
    wDivInt(term, one, 2 * k + 1)
    wAdd(s, term, s)
  }
  wMul(s, s, t)
  wSet(term, 0, 1, LOG2E_HI, LOG2E_LO)
  wMul(s, s, term)
}

/** Multiplies slot(2), the logarithm, by B and makes it the result. */
function timesB(exact: bool): void {
  const s = slot(2),
    y = slot(0)
  wideB(y)
  wMul(s, s, y)
  wResult(s, exact)
}

/** ST1 = ST1 * log2(ST0), pop. */
export function fyl2x(): void {
  if (isEmpty(0) || isEmpty(1)) {
    if (underflowInto(1)) pop()
    return
  }
  beginX87()
  loadA(0)
  loadB(1)
  if (!nanResult()) logarithmOfA()
  if (storeResult(1, 64)) pop()
}

function logarithmOfA(): void {
  if (aClass == ZERO) {
    // -infinity times y.
    if (bClass == ZERO) return invalidResult()
    if (bClass != INFINITE) raiseFlags(ZE)
    return setResult(INFINITE, bSign ^ 1, 0, 0, 0)
  }
  if (aSign) return invalidResult()
  const isOne = aExp == 0 && aMan == 0x8000000000000000
  const below = aClass != INFINITE && aExp < 0
  if (aClass == INFINITE) {
    if (bClass == ZERO) return invalidResult()
    if (bClass == DENORMAL) raiseFlags(DE)
    return setResult(INFINITE, bSign, 0, 0, 0)
  }
  if (bClass == INFINITE) {
    if (isOne) return invalidResult()
    if (aClass == DENORMAL) raiseFlags(DE)
    return setResult(INFINITE, bSign ^ (below ? 1 : 0), 0, 0, 0)
  }
  if (aClass == DENORMAL || bClass == DENORMAL) raiseFlags(DE)
  if (isOne || bClass == ZERO) return setResult(ZERO, bSign ^ (below ? 1 : 0), 0, 0, 0)
  let exponent = aExp
  if (aMan == 0x8000000000000000) {
    wInt(slot(2), exponent)
    return timesB(true)
  }
  // Significand in [0.707, 1.414).
  const t = slot(0),
    one = slot(3),
    s = slot(2)
  const upper = aMan > 0xb504f333f9de6484
  if (upper) exponent++
  wSet(t, 0, upper ? -1 : 0, aMan, 0)
  wInt(one, 1)
  wAdd(s, t, one)
  wSub(t, t, one)
  wDiv(t, t, s)
  logarithmSeries()
  if (exponent) {
    wInt(slot(4), exponent)
    wAdd(s, slot(4), s)
  }
  timesB(false)
}

/** ST1 = ST1 * log2(ST0 + 1), pop; defined for |ST0| below 1 - sqrt(1/2). */
export function fyl2xp1(): void {
  if (isEmpty(0) || isEmpty(1)) {
    if (underflowInto(1)) pop()
    return
  }
  beginX87()
  loadA(0)
  loadB(1)
  if (!nanResult()) {
    if (aClass == INFINITE) {
      if (aSign || bClass == ZERO) invalidResult()
      else {
        if (bClass == DENORMAL) raiseFlags(DE)
        setResult(INFINITE, bSign, 0, 0, 0)
      }
    } else if (bClass == INFINITE) {
      if (aClass == ZERO) invalidResult()
      else {
        if (aClass == DENORMAL) raiseFlags(DE)
        setResult(INFINITE, aSign ^ bSign, 0, 0, 0)
      }
    } else {
      if (aClass == DENORMAL || bClass == DENORMAL) raiseFlags(DE)
      if (aClass == ZERO || bClass == ZERO) setResult(ZERO, aSign ^ bSign, 0, 0, 0)
      else if (aExp >= 0) setResult(NORMAL, bSign, bExp, bMan, 0)
      else {
        const t = slot(0),
          two = slot(3),
          s = slot(2)
        wideA(t)
        wInt(two, 2)
        wAdd(s, t, two)
        wDiv(t, t, s)
        logarithmSeries()
        timesB(false)
      }
    }
  }
  if (storeResult(1, 64)) pop()
}
