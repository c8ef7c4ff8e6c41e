/** SSE conversions between integers, singles and doubles, and rounding to integral values (SDM volume 2, CVT*, ROUND*). */
import { cpu } from './cpu'
import {
  aClass,
  aExp,
  aMan,
  aSign,
  CHOP,
  DE,
  DENORMAL,
  flags,
  IE,
  mode,
  NORMAL,
  packF32,
  packF64,
  PE,
  QNAN,
  raiseFlags,
  setResult,
  SNAN,
  setMode,
  unpackAInt,
} from './softfloat'
import { roundToIntegral, toInteger } from './softfloat-convert'
import { S_TEMP2 } from './state'
import { beginInstruction, endInstruction, nextLane, nextLaneKeeping, operandsF32, operandsF64 } from './vector-float'

/** A becomes the result, to be packed in another format. */
function carryOver(): void {
  if (aClass >= QNAN) {
    if (aClass == SNAN) raiseFlags(IE)
    return setResult(QNAN, aSign, 0, aMan, 0)
  }
  if (aClass == DENORMAL) raiseFlags(DE)
  setResult(aClass == DENORMAL ? NORMAL : aClass, aSign, aExp, aMan, 0)
}

export function widen(bits: u32): u64 {
  operandsF32(bits, 0)
  carryOver()
  return packF64()
}

export function narrow(bits: u64): u32 {
  operandsF64(bits, 0)
  carryOver()
  return packF32()
}

export function f64ToInt(bits: u64, width: u32, truncate: bool): i64 {
  if (truncate) setMode(CHOP)
  operandsF64(bits, 0)
  return toInteger(width)
}

export function f32ToInt(bits: u32, width: u32, truncate: bool): i64 {
  if (truncate) setMode(CHOP)
  operandsF32(bits, 0)
  return toInteger(width)
}

export function intToF64(value: i64): u64 {
  unpackAInt(value)
  setResult(aClass, aSign, aExp, aMan, 0)
  return packF64()
}

export function intToF32(value: i64): u32 {
  unpackAInt(value)
  setResult(aClass, aSign, aExp, aMan, 0)
  return packF32()
}

// ---- packed: from the low lanes of `a`; the caller asks `endInstruction`

/** CVTPS2PD. */
export function psToPd(a: v128): v128 {
  beginInstruction()
  const low = widen(i32x4.extract_lane(a, 0))
  nextLane()
  return i64x2(low, widen(i32x4.extract_lane(a, 1)))
}

/** CVTPD2PS. */
export function pdToPs(a: v128): v128 {
  beginInstruction()
  const low = narrow(i64x2.extract_lane(a, 0))
  nextLane()
  return i32x4(low, narrow(i64x2.extract_lane(a, 1)), 0, 0)
}

/** CVTDQ2PS, of `lanes` lanes. */
export function dqToPs(a: v128, lanes: u32): v128 {
  beginInstruction()
  const at = cpu + S_TEMP2
  v128.store(at, a)
  for (let i: u32 = 0; i < lanes; i++) {
    if (i) nextLane()
    store<u32>(at + (i << 2), intToF32(load<i32>(at + (i << 2))))
  }
  return v128.load(at)
}

/** CVTDQ2PD: always exact. */
export function dqToPd(a: v128): v128 {
  return f64x2.convert_low_i32x4_s(a)
}

/** CVTPS2DQ and CVTTPS2DQ, of `lanes` lanes. */
export function psToDq(a: v128, truncate: bool, lanes: u32): v128 {
  beginInstruction()
  const at = cpu + S_TEMP2
  v128.store(at, a)
  for (let i: u32 = 0; i < lanes; i++) {
    if (i) nextLane()
    store<i32>(at + (i << 2), <i32>f32ToInt(load<u32>(at + (i << 2)), 32, truncate))
  }
  return v128.load(at)
}

/** CVTPD2DQ and CVTTPD2DQ. */
export function pdToDq(a: v128, truncate: bool): v128 {
  beginInstruction()
  const low = <i32>f64ToInt(i64x2.extract_lane(a, 0), 32, truncate)
  nextLane()
  return i32x4(low, <i32>f64ToInt(i64x2.extract_lane(a, 1), 32, truncate), 0, 0)
}

// ---- ROUNDPS, ROUNDPD, ROUNDSS, ROUNDSD

/** A to an integral value as the immediate says; the denormal exception does not exist here, precision may be silenced. */
function roundA(imm: u32): void {
  if (!(imm & 4)) setMode(imm & 3)
  if (aClass >= QNAN) carryOver()
  else roundToIntegral()
}

function settle(imm: u32): void {
  // `raiseFlags` only adds; what must not be reported is dropped by starting the lane again with what remains.
  const kept = flags & ~DE & (imm & 8 ? ~PE : ~0)
  nextLaneKeeping(kept)
}

export function roundF64(bits: u64, imm: u32): u64 {
  operandsF64(bits, 0)
  roundA(imm)
  const result = packF64()
  settle(imm)
  return result
}

export function roundF32(bits: u32, imm: u32): u32 {
  operandsF32(bits, 0)
  roundA(imm)
  const result = packF32()
  settle(imm)
  return result
}
