/** The x87's arithmetic on its stack: everything exact or correctly rounded (SDM volume 1, 8.3). */
import { cpu } from './cpu'
import {
  aClass,
  aExp,
  aMan,
  aSign,
  ADD,
  arith,
  bClass,
  bExp,
  bMan,
  bSign,
  DE,
  DENORMAL,
  DIV,
  flags,
  IE,
  INFINITE,
  invalidResult,
  MUL,
  NORMAL,
  QNAN,
  raiseFlags,
  setResult,
  SNAN,
  squareRoot,
  SUB,
  swapAB,
  UNSUPPORTED,
  unpackBInt,
  ZE,
  ZERO,
  rHi,
  packExt,
  extMan,
  extTop,
  setMode,
  CHOP,
  mode,
} from './softfloat'
import { compare, EQUAL, GREATER, integerUp, LESS, partial, quotient, remainder, roundToIntegral, toInteger } from './softfloat-convert'
import { FLAG_LITERAL, S_FLAG_A, S_FLAG_KIND } from './state'
import {
  beginX87,
  C0,
  C1,
  C2,
  C3,
  canPush,
  fsw,
  INDEFINITE_MAN,
  INDEFINITE_TOP,
  isEmpty,
  loadA,
  loadB,
  moveTop,
  pop,
  post,
  postOperation,
  precision,
  push,
  reported,
  setC1,
  setConditions,
  setFsw,
  setSt,
  stackFault,
  stMan,
  storeResult,
  stTop,
  underflowInto,
} from './x87-state'

/** When A or B is a NaN or unsupported, makes the x87's result of it (SDM volume 1, table 4-7) and says so. */
export function nanResult(): bool {
  if (aClass < QNAN && bClass < QNAN) return false
  if (aClass == UNSUPPORTED || bClass == UNSUPPORTED) {
    invalidResult()
    return true
  }
  if (aClass == SNAN || bClass == SNAN) raiseFlags(IE)
  const quietA = aMan | INDEFINITE_MAN
  const quietB = bMan | INDEFINITE_MAN
  let takeA: bool
  if (aClass >= QNAN && bClass >= QNAN) {
    if (aClass != bClass) takeA = aClass == QNAN
    else if (quietA != quietB) takeA = quietA > quietB
    else takeA = aSign <= bSign
  } else takeA = aClass >= QNAN
  setResult(QNAN, takeA ? aSign : bSign, 0, takeA ? quietA : quietB, 0)
  return true
}

/** The same for an instruction with one operand, A. */
export function nanResultA(): bool {
  if (aClass < QNAN) return false
  if (aClass == UNSUPPORTED) invalidResult()
  else {
    if (aClass == SNAN) raiseFlags(IE)
    setResult(QNAN, aSign, 0, aMan | INDEFINITE_MAN, 0)
  }
  return true
}

/** ModRM.reg of an arithmetic instruction as an operation on A (ST0) and B: 0 add, 1 mul, 4 sub, 5 subr, 6 div, 7 divr. */
function operate(reg: u32): void {
  if (nanResult()) return
  if (reg == 0) arith(ADD)
  else if (reg == 1) arith(MUL)
  else {
    if (reg & 1) swapAB()
    arith(reg < 6 ? SUB : DIV)
  }
}

/** ST(dst) = ST0 op ST(other); `dst` is 0 or `other`. */
export function arithStack(reg: u32, other: u32, dst: u32, popAfter: bool): void {
  if (isEmpty(0) || isEmpty(other)) {
    if (underflowInto(dst) && popAfter) pop()
    return
  }
  beginX87()
  loadA(0)
  loadB(other)
  operate(reg)
  if (storeResult(dst, precision()) && popAfter) pop()
}

/** ST0 = ST0 op B, where B has been unpacked from memory after `beginX87`. */
export function arithMemory(reg: u32): void {
  loadA(0)
  operate(reg)
  storeResult(0, precision())
}

// ---- comparison

function conditionsOf(relation: u32): u32 {
  return relation == GREATER ? 0 : relation == LESS ? C0 : relation == EQUAL ? C3 : C0 | C2 | C3
}

/** Compares A with B and sets C0, C2, C3. False when an unmasked exception forbids the pop. */
function compareConditions(quiet: bool): bool {
  const conditions = conditionsOf(compare(quiet))
  setConditions(conditions)
  return !post(flags)
}

/** Unordered, whether masked or not; the answer is whether a pop may follow. */
export function compareUnderflow(): bool {
  const masked = stackFault(false)
  setConditions(C0 | C2 | C3)
  return masked
}

/** FCOM, FUCOM and their popping forms. */
export function compareStack(other: u32, quiet: bool, pops: u32): void {
  let done: bool
  if (isEmpty(0) || isEmpty(other)) done = compareUnderflow()
  else {
    beginX87()
    loadA(0)
    loadB(other)
    done = compareConditions(quiet)
  }
  if (!done) return
  if (pops > 0) pop()
  if (pops > 1) pop()
}

/** FCOM with B unpacked from memory after `beginX87`. */
export function compareMemory(pops: u32): void {
  loadA(0)
  if (compareConditions(false) && pops) pop()
}

/** FCOMI and FUCOMI: into ZF, PF and CF; OF, SF and AF are cleared. */
export function compareFlags(other: u32, quiet: bool, popAfter: bool): void {
  let literal: i64
  if (isEmpty(0) || isEmpty(other)) {
    if (!stackFault(false)) popAfter = false
    literal = 0x45
  } else {
    beginX87()
    loadA(0)
    loadB(other)
    const relation = compare(quiet)
    const forbidden = post(flags)
    literal = relation == GREATER ? 0 : relation == LESS ? 1 : relation == EQUAL ? 0x40 : 0x45
    if (forbidden) popAfter = false
  }
  store<u32>(cpu, FLAG_LITERAL, S_FLAG_KIND)
  store<i64>(cpu, literal, S_FLAG_A)
  if (popAfter) pop()
}

export function ftst(): void {
  if (isEmpty(0)) {
    compareUnderflow()
    return
  }
  beginX87()
  loadA(0)
  unpackBInt(0)
  compareConditions(false)
}

export function fxam(): void {
  const sign = (stTop(0) >> 15) & 1 ? C1 : 0
  let kind: u32
  loadA(0)
  if (isEmpty(0)) kind = C3 | C0
  else if (aClass == ZERO) kind = C3
  else if (aClass == NORMAL) kind = C2
  else if (aClass == DENORMAL) kind = C3 | C2
  else if (aClass == INFINITE) kind = C2 | C0
  else if (aClass == UNSUPPORTED) kind = 0
  else kind = C0
  setConditions(kind | sign)
}

// ---- one operand

export function fsqrt(): void {
  if (isEmpty(0)) {
    underflowInto(0)
    return
  }
  beginX87()
  loadA(0)
  if (!nanResultA()) squareRoot()
  storeResult(0, precision())
}

export function frndint(): void {
  if (isEmpty(0)) {
    underflowInto(0)
    return
  }
  beginX87()
  loadA(0)
  let up = false
  if (!nanResultA()) {
    roundToIntegral()
    up = integerUp
  }
  packExt(64)
  setC1(up && reported() == flags)
  if (!post(reported())) setSt(0, extMan, extTop)
}

export function fxtract(): void {
  if (isEmpty(0)) {
    if (underflowInto(0)) push(INDEFINITE_MAN, INDEFINITE_TOP)
    return
  }
  if (!isEmpty(7)) {
    if (stackFault(true)) {
      setSt(0, INDEFINITE_MAN, INDEFINITE_TOP)
      push(INDEFINITE_MAN, INDEFINITE_TOP)
    }
    return
  }
  beginX87()
  loadA(0)
  setC1(false)
  if (nanResultA()) {
    packExt(64)
    if (post(flags)) return
    setSt(0, extMan, extTop)
    return push(extMan, extTop)
  }
  if (aClass == ZERO) {
    if (post(ZE)) return
    const sign = aSign << 15
    setSt(0, 0x8000000000000000, 0xffff)
    return push(0, sign)
  }
  if (aClass == INFINITE) {
    const sign = aSign << 15
    setSt(0, 0x8000000000000000, 0x7fff)
    return push(0x8000000000000000, sign | 0x7fff)
  }
  if (aClass == DENORMAL && post(DE)) return
  const man = aMan,
    top = (aSign << 15) | 0x3fff
  const exponent = aExp
  const magnitude: u64 = abs(exponent)
  if (exponent == 0) setSt(0, 0, 0)
  else {
    const shift = clz(magnitude)
    setSt(0, magnitude << shift, (exponent < 0 ? 0x8000 : 0) | (16383 + 63 - <u32>shift))
  }
  push(man, top)
}

// ---- two operands of the stack

export function fscale(): void {
  if (isEmpty(0) || isEmpty(1)) {
    underflowInto(0)
    return
  }
  beginX87()
  loadA(1)
  const scaleClass = aClass,
    scaleSign = aSign
  let scale: i64 = 0
  if (aClass == NORMAL || aClass == DENORMAL) {
    // Truncated, and beyond 2^16 it makes no difference.
    if (aExp >= 17) scale = 0x20000
    else if (aExp >= 0) scale = aMan >> (63 - aExp)
    if (aSign) scale = -scale
  }
  loadB(1)
  loadA(0)
  if (!nanResult()) {
    if (scaleClass == INFINITE) {
      if (scaleSign ? aClass == INFINITE : aClass == ZERO) invalidResult()
      else {
        if (aClass == DENORMAL) raiseFlags(DE)
        setResult(scaleSign ? ZERO : INFINITE, aSign, 0, 0, 0)
      }
    } else {
      if (aClass == DENORMAL || scaleClass == DENORMAL) raiseFlags(DE)
      if (aClass == ZERO || aClass == INFINITE) setResult(aClass, aSign, 0, 0, 0)
      else setResult(NORMAL, aSign, aExp + <i32>scale, aMan, 0)
    }
  }
  storeResult(0, 64)
}

/** FPREM and FPREM1: ST0 = ST0 rem ST1, the quotient's low bits in C0, C3, C1, C2 when not finished. */
export function fprem(nearest: bool): void {
  if (isEmpty(0) || isEmpty(1)) {
    underflowInto(0)
    setFsw(fsw() & ~C2)
    return
  }
  beginX87()
  loadA(0)
  loadB(1)
  // A NaN or an invalid operation leaves C0 and C3 alone.
  let conditions = fsw() & (C0 | C3)
  if (!nanResult()) {
    remainder(nearest)
    if (partial) conditions = C2
    else if (!(flags & IE)) {
      const q = <u32>quotient
      conditions = (q & 4 ? C0 : 0) | (q & 2 ? C3 : 0) | (q & 1 ? C1 : 0)
    }
  }
  packExt(64)
  const kept = fsw() & (C0 | C3)
  const written = !post(reported())
  setConditions(written ? conditions : kept)
  if (written) setSt(0, extMan, extTop)
}

export function fxch(other: u32): void {
  const empty0 = isEmpty(0),
    emptyOther = isEmpty(other)
  if (empty0 || emptyOther) {
    if (!stackFault(false)) return
    if (empty0) setSt(0, INDEFINITE_MAN, INDEFINITE_TOP)
    if (emptyOther) setSt(other, INDEFINITE_MAN, INDEFINITE_TOP)
  } else setC1(false)
  const man = stMan(0),
    top = stTop(0)
  setSt(0, stMan(other), stTop(other))
  setSt(other, man, top)
}

/** ST0 to an integer of `bits`: FIST truncating (FISTTP) or not. The value; exceptions are in `flags`, not yet posted. */
export function integerOfTop(bits: u32, truncate: bool): i64 {
  beginX87()
  if (truncate) setMode(CHOP)
  loadA(0)
  return toInteger(bits)
}

export function integerRoundedUp(): bool {
  return integerUp && !(flags & IE)
}
