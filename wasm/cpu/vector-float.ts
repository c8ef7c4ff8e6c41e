/**
 * SSE arithmetic with x86's results and MXCSR's flags (SDM volume 1, 11.5).
 *
 * The wasm engine's own arithmetic rounds to nearest and tells nothing. It is used when that is enough: rounding to
 * nearest, nothing unmasked, no DAZ or FTZ, the precision flag already set, and operands and results that are neither
 * denormal nor special. Everything else goes lane by lane through soft float, which knows every flag.
 */
import { cpu } from './cpu'
import { faulted, raise, raiseUd, VECTOR_XM } from './fault'
import {
  aClass,
  aMan,
  aSign,
  ADD,
  arith,
  bClass,
  begin,
  DE,
  DENORMAL,
  DIV,
  flags,
  IE,
  invalidResult,
  MUL,
  NORMAL,
  OE,
  packF32,
  packF64,
  PE,
  QNAN,
  raiseFlags,
  setA,
  setB,
  setResult,
  SNAN,
  squareRoot,
  SUB,
  UE,
  unpackAF32,
  unpackAF64,
  unpackBF32,
  unpackBF64,
  ZE,
  ZERO,
  bSign,
  bMan,
} from './softfloat'
import { compare, EQUAL, GREATER, LESS, UNORDERED } from './softfloat-convert'
import { S_CR4, S_MXCSR, S_TEMP2 } from './state'

const CR4_OSXMMEXCPT: u64 = 0x400
const MXCSR_DAZ: u32 = 0x40
const MXCSR_FTZ: u32 = 0x8000

/** Operations by the low bits of 0F 51, 58 to 5F. */
export const OP_SQRT: u32 = 0x51
export const OP_ADD: u32 = 0x58
export const OP_MUL: u32 = 0x59
export const OP_SUB: u32 = 0x5c
export const OP_MIN: u32 = 0x5d
export const OP_DIV: u32 = 0x5e
export const OP_MAX: u32 = 0x5f
/** Even lanes are subtracted, odd ones added. */
export const OP_ADDSUB: u32 = 0xd0

@inline
export function mxcsr(): u32 {
  return load<u32>(cpu, S_MXCSR)
}

export function beginSse(): void {
  const control = mxcsr()
  begin((control >> 13) & 3, (control >> 7) & 0x3f, (control & MXCSR_FTZ) != 0)
}

/** Like `beginSse`, for the next lane of the same instruction: flags gather in `gathered`. */
let gathered: u32 = 0

export function beginInstruction(): void {
  gathered = 0
  beginSse()
}

export function nextLane(): void {
  gathered |= flags
  beginSse()
}

/** Ends a lane of which only `kept` is to be reported. */
export function nextLaneKeeping(kept: u32): void {
  gathered |= kept
  beginSse()
}

/**
 * Ends an instruction: sets the sticky flags, raises #XM for an unmasked one. True when the result may be written. An
 * unmasked exception that is found before computing keeps those found after it from being reported.
 */
export function endInstruction(): bool {
  gathered |= flags
  const control = mxcsr()
  const enabled = ~(control >> 7) & 0x3f
  if (gathered & enabled & (IE | DE | ZE)) gathered &= IE | DE | ZE
  store<u32>(cpu, control | gathered, S_MXCSR)
  if (!(gathered & enabled)) return true
  if (load<u64>(cpu, S_CR4) & CR4_OSXMMEXCPT) raise(VECTOR_XM)
  else raiseUd()
  return false
}

/** With DAZ, denormal operands are zeros. */
function applyDaz(): void {
  if (!(mxcsr() & MXCSR_DAZ)) return
  if (aClass == DENORMAL) setA(ZERO, aSign, 0, 0)
  if (bClass == DENORMAL) setB(ZERO, bSign, 0, 0)
}

export function operandsF64(a: u64, b: u64): void {
  unpackAF64(a)
  unpackBF64(b)
  applyDaz()
}

export function operandsF32(a: u32, b: u32): void {
  unpackAF32(a)
  unpackBF32(b)
  applyDaz()
}

/** The first operand when it is a NaN, otherwise the second (SDM volume 1, table 4-7). False when neither is. */
function nanOfTwo(): bool {
  if (aClass < QNAN && bClass < QNAN) return false
  if (aClass == SNAN || bClass == SNAN) raiseFlags(IE)
  if (aClass >= QNAN) setResult(QNAN, aSign, 0, aMan, 0)
  else setResult(QNAN, bSign, 0, bMan, 0)
  return true
}

function operate(op: u32): void {
  if (nanOfTwo()) return
  if (op == OP_SQRT) squareRoot()
  else arith(op == OP_ADD ? ADD : op == OP_SUB ? SUB : op == OP_MUL ? MUL : DIV)
}

/** True when MIN or MAX takes the first operand. A NaN or two zeros give the second, and any NaN raises IE. */
function takesFirst(op: u32): bool {
  const relation = compare(false)
  return relation == (op == OP_MIN ? LESS : GREATER)
}

/** One lane of a double operation by soft float; the unary ones take their operand as `b` and give it as `a` too. */
export function slowF64(op: u32, a: u64, b: u64): u64 {
  if (op == OP_SQRT) a = b
  operandsF64(a, b)
  if (op == OP_MIN || op == OP_MAX) {
    const first = takesFirst(op)
    // DAZ applies to the result as well: what is delivered is the operand as it was used.
    const value = first ? a : b
    return (first ? aClass : bClass) == ZERO ? value & 0x8000000000000000 : value
  }
  operate(op)
  return packF64()
}

export function slowF32(op: u32, a: u32, b: u32): u32 {
  if (op == OP_SQRT) a = b
  operandsF32(a, b)
  if (op == OP_MIN || op == OP_MAX) {
    const first = takesFirst(op)
    const value = first ? a : b
    return (first ? aClass : bClass) == ZERO ? value & 0x80000000 : value
  }
  operate(op)
  return packF32()
}

/** True when the engine's arithmetic will do, as far as the control register is concerned. */
@inline
export function engineWillDo(): bool {
  return (mxcsr() & (MXCSR_FTZ | MXCSR_DAZ | 0x7f80 | PE)) == (0x1f80 | PE)
}

/**
 * Doubles that are zero or normal. Where zero is not allowed, neither is the least normal number: a tiny result may have been rounded up
 * to it, and that is an underflow.
 */
@inline
function plainF64(a: v128, allowZero: bool): v128 {
  const bits = v128.and(a, i64x2.splat(0x7fffffffffffffff))
  const least: i64 = allowZero ? 0x000fffffffffffff : 0x0010000000000000
  const normal = v128.and(i64x2.gt_s(bits, i64x2.splat(least)), i64x2.lt_s(bits, i64x2.splat(0x7ff0000000000000)))
  return allowZero ? v128.or(normal, i64x2.eq(bits, i64x2.splat(0))) : normal
}

@inline
function plainF32(a: v128, allowZero: bool): v128 {
  const bits = v128.and(a, i32x4.splat(0x7fffffff))
  const least: i32 = allowZero ? 0x007fffff : 0x00800000
  const normal = v128.and(i32x4.gt_s(bits, i32x4.splat(least)), i32x4.lt_s(bits, i32x4.splat(0x7f800000)))
  return allowZero ? v128.or(normal, i32x4.eq(bits, i32x4.splat(0))) : normal
}

function engineF64(op: u32, a: v128, b: v128): v128 {
  switch (op) {
    case OP_SQRT:
      return f64x2.sqrt(b)
    case OP_ADD:
      return f64x2.add(a, b)
    case OP_MUL:
      return f64x2.mul(a, b)
    case OP_SUB:
      return f64x2.sub(a, b)
    case OP_DIV:
      return f64x2.div(a, b)
    case OP_ADDSUB:
      return v128.bitselect(f64x2.sub(a, b), f64x2.add(a, b), i64x2(-1, 0))
    case OP_MIN:
      return f64x2.pmin(b, a)
    default:
      return f64x2.pmax(b, a)
  }
}

function engineF32(op: u32, a: v128, b: v128): v128 {
  switch (op) {
    case OP_SQRT:
      return f32x4.sqrt(b)
    case OP_ADD:
      return f32x4.add(a, b)
    case OP_MUL:
      return f32x4.mul(a, b)
    case OP_SUB:
      return f32x4.sub(a, b)
    case OP_DIV:
      return f32x4.div(a, b)
    case OP_ADDSUB:
      return v128.bitselect(f32x4.sub(a, b), f32x4.add(a, b), i32x4(-1, 0, -1, 0))
    case OP_MIN:
      return f32x4.pmin(b, a)
    default:
      return f32x4.pmax(b, a)
  }
}

@inline
function laneOperation(op: u32, lane: u32): u32 {
  return op != OP_ADDSUB ? op : lane & 1 ? OP_ADD : OP_SUB
}

/** A zero result may hide an underflow, except of these. */
@inline
function zeroIsExact(op: u32): bool {
  return op != OP_MUL && op != OP_DIV
}

/**
 * The lanes of `used` (a mask of 64-bit lanes) of a op b, as an instruction; `ok` tells whether to commit. Lanes that
 * are not used must hold plain values.
 */
export let ok: bool = false

export function packedF64(op: u32, a: v128, b: v128, lanes: u32): v128 {
  ok = true
  if (faulted()) {
    ok = false
    return a
  }
  if (engineWillDo()) {
    const result = engineF64(op, a, b)
    let plain = v128.and(v128.and(plainF64(a, true), plainF64(b, true)), plainF64(result, zeroIsExact(op)))
    if (lanes == 1) plain = i64x2.replace_lane(plain, 1, -1)
    if (op == OP_SQRT) plain = v128.and(plainF64(result, true), plainF64(b, true))
    if (op == OP_SQRT && lanes == 1) plain = i64x2.replace_lane(plain, 1, -1)
    if (i64x2.all_true(plain)) return result
  }
  beginInstruction()
  let result = i64x2.replace_lane(a, 0, slowF64(laneOperation(op, 0), i64x2.extract_lane(a, 0), i64x2.extract_lane(b, 0)))
  if (lanes > 1) {
    nextLane()
    result = i64x2.replace_lane(result, 1, slowF64(laneOperation(op, 1), i64x2.extract_lane(a, 1), i64x2.extract_lane(b, 1)))
  }
  ok = endInstruction()
  return result
}

export function packedF32(op: u32, a: v128, b: v128, lanes: u32): v128 {
  ok = true
  if (faulted()) {
    ok = false
    return a
  }
  if (engineWillDo()) {
    const result = engineF32(op, a, b)
    let plain = v128.and(plainF32(b, true), plainF32(result, zeroIsExact(op)))
    if (op == OP_SQRT) plain = v128.and(plainF32(b, true), plainF32(result, true))
    else plain = v128.and(plain, plainF32(a, true))
    if (lanes == 1) plain = v128.or(plain, i32x4(0, -1, -1, -1))
    if (i32x4.all_true(plain)) return result
  }
  beginInstruction()
  const at = cpu + S_TEMP2
  v128.store(at, a)
  v128.store(at + 16, b)
  for (let i: u32 = 0; i < lanes; i++) {
    if (i) nextLane()
    store<u32>(at + (i << 2), slowF32(laneOperation(op, i), load<u32>(at + (i << 2)), load<u32>(at + (i << 2), 16)))
  }
  ok = endInstruction()
  return v128.load(at)
}

// ---- comparisons

/** CMPPS and its kin: EQ LT LE UNORD NEQ NLT NLE ORD. */
function holds(predicate: u32): bool {
  // LT, LE and their negations signal for quiet NaNs, the others do not.
  const relation = compare(!((predicate & 3) == 1 || (predicate & 3) == 2))
  let result: bool
  switch (predicate & 3) {
    case 0:
      result = relation == EQUAL
      break
    case 1:
      result = relation == LESS
      break
    case 2:
      result = relation == LESS || relation == EQUAL
      break
    default:
      result = relation == UNORDERED
  }
  return (predicate & 4) != 0 ? !result : result
}

export function compareF64(predicate: u32, a: v128, b: v128, lanes: u32): v128 {
  beginInstruction()
  let result = a
  operandsF64(i64x2.extract_lane(a, 0), i64x2.extract_lane(b, 0))
  result = i64x2.replace_lane(result, 0, holds(predicate) ? -1 : 0)
  if (lanes > 1) {
    nextLane()
    operandsF64(i64x2.extract_lane(a, 1), i64x2.extract_lane(b, 1))
    result = i64x2.replace_lane(result, 1, holds(predicate) ? -1 : 0)
  }
  ok = endInstruction()
  return result
}

export function compareF32(predicate: u32, a: v128, b: v128, lanes: u32): v128 {
  beginInstruction()
  const at = cpu + S_TEMP2
  v128.store(at, a)
  v128.store(at + 16, b)
  for (let i: u32 = 0; i < lanes; i++) {
    if (i) nextLane()
    operandsF32(load<u32>(at + (i << 2)), load<u32>(at + (i << 2), 16))
    store<i32>(at + (i << 2), holds(predicate) ? -1 : 0)
  }
  ok = endInstruction()
  return v128.load(at)
}

/** COMISx and UCOMISx after `operands*`: the literal flags ZF PF CF, with `ok`. */
export function compareToFlags(quiet: bool): i64 {
  const relation = compare(quiet)
  ok = endInstruction()
  return relation == GREATER ? 0 : relation == LESS ? 1 : relation == EQUAL ? 0x40 : 0x45
}
