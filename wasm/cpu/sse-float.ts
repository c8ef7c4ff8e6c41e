/** The floating-point instructions of 0F 2A to 5F, 7C, 7D, C2, D0 and E6: operands, forms and prefixes. */
import { cpu, gpr, setGpr } from './cpu'
import { faulted, fpuTrapSse, raiseUd } from './fault'
import { OP_IMM, OP_SIZE, PREFIX_66, PREFIX_F2, PREFIX_F3, PREFIX_NONE } from './ops'
import { FLAG_LITERAL, S_FLAG_A, S_FLAG_KIND } from './state'
import { read32, read64 } from './memory'
import { dqToPd, dqToPs, f32ToInt, f64ToInt, intToF32, intToF64, narrow, pdToDq, pdToPs, psToDq, psToPd, widen } from './vector-convert'
import {
  beginInstruction,
  compareF32,
  compareF64,
  compareToFlags,
  endInstruction,
  ok,
  OP_ADD,
  OP_ADDSUB,
  OP_SUB,
  operandsF32,
  operandsF64,
  packedF32,
  packedF64,
} from './vector-float'
import { reciprocal, reciprocalRoot } from './vector-approx'
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
  src,
  xmm,
  xmm64,
} from './vector-state'

export function execFloat(op: usize, ea: u64, opcode: u32, prefix: i32): void {
  if (!isDefined(op, opcode, prefix)) return raiseUd()
  const mmx = prefix <= PREFIX_66 && (opcode == 0x2a || opcode == 0x2c || opcode == 0x2d)
  if (fpuTrapSse()) return
  if (mmx) return convertMmx(op, ea, opcode, prefix)
  const d = dst(op)
  switch (opcode) {
    case 0x2a: {
      // CVTSI2SS, CVTSI2SD
      const wide = load<u8>(op, OP_SIZE) == 3
      const value: i64 = isRegister(op)
        ? wide
          ? <i64>gpr(src(op))
          : <i64>(<i32>gpr(src(op)))
        : wide
          ? <i64>read64(ea)
          : <i64>(<i32>read32(ea))
      if (faulted()) return
      beginInstruction()
      if (prefix == PREFIX_F3) {
        const bits = intToF32(value)
        if (endInstruction()) setXmm32(d, bits)
      } else {
        const bits = intToF64(value)
        if (endInstruction()) setXmm64(d, bits)
      }
      return
    }
    case 0x2c:
    case 0x2d: {
      const width: u32 = load<u8>(op, OP_SIZE) == 3 ? 64 : 32
      const single = prefix == PREFIX_F3
      const bits: u64 = single ? source32(op, ea) : source64(op, ea)
      if (faulted()) return
      beginInstruction()
      const value = single ? f32ToInt(<u32>bits, width, opcode == 0x2c) : f64ToInt(bits, width, opcode == 0x2c)
      if (endInstruction()) setGpr(d, width == 64 ? value : value & 0xffffffff)
      return
    }
    case 0x2e:
    case 0x2f: {
      if (prefix == PREFIX_66) {
        const b = source64(op, ea)
        if (faulted()) return
        beginInstruction()
        operandsF64(xmm64(d), b)
      } else {
        const b = source32(op, ea)
        if (faulted()) return
        beginInstruction()
        operandsF32(<u32>xmm64(d), b)
      }
      const literal = compareToFlags(opcode == 0x2e)
      if (!ok) return
      store<u32>(cpu, FLAG_LITERAL, S_FLAG_KIND)
      store<i64>(cpu, literal, S_FLAG_A)
      return
    }
    case 0x50: {
      const value = xmm(src(op))
      return setGpr(d, prefix == PREFIX_66 ? i64x2.bitmask(value) : i32x4.bitmask(value))
    }
    case 0x52:
    case 0x53:
      return approximate(op, ea, opcode, prefix)
    case 0x54:
      return commit(op, v128.and(xmm(d), source(op, ea)))
    case 0x55:
      return commit(op, v128.andnot(source(op, ea), xmm(d)))
    case 0x56:
      return commit(op, v128.or(xmm(d), source(op, ea)))
    case 0x57:
      return commit(op, v128.xor(xmm(d), source(op, ea)))
    case 0x5a:
    case 0x5b:
    case 0xe6:
      return convert(op, ea, opcode, prefix)
    case 0x7c:
    case 0x7d:
      return horizontal(op, ea, prefix, opcode == 0x7c ? OP_ADD : OP_SUB)
    case 0xc2:
      return compareMask(op, ea, prefix, load<u8>(op, OP_IMM) & 7)
    case 0xd0:
      return addSub(op, ea, prefix)
    default:
      arithmetic(op, ea, opcode, prefix)
  }
}

function isDefined(op: usize, opcode: u32, prefix: i32): bool {
  const scalar = prefix >= PREFIX_F3
  switch (opcode) {
    case 0x2e:
    case 0x2f:
    case 0x54:
    case 0x55:
    case 0x56:
    case 0x57:
      return !scalar
    case 0x50:
      return !scalar && isRegister(op)
    case 0x52:
    case 0x53:
      return prefix == PREFIX_NONE || prefix == PREFIX_F3
    case 0x5b:
      return prefix != PREFIX_F2
    case 0x7c:
    case 0x7d:
    case 0xd0:
      return prefix == PREFIX_66 || prefix == PREFIX_F2
    case 0xe6:
      return prefix != PREFIX_NONE
    default:
      return true
  }
}

function arithmetic(op: usize, ea: u64, opcode: u32, prefix: i32): void {
  const d = dst(op)
  if (prefix == PREFIX_NONE) {
    const result = packedF32(opcode, xmm(d), source(op, ea), 4)
    if (ok) setXmm(d, result)
  } else if (prefix == PREFIX_66) {
    const result = packedF64(opcode, xmm(d), source(op, ea), 2)
    if (ok) setXmm(d, result)
  } else if (prefix == PREFIX_F3) {
    const result = packedF32(opcode, xmm(d), i32x4.splat(source32(op, ea)), 1)
    if (ok) setXmm32(d, i32x4.extract_lane(result, 0))
  } else {
    const result = packedF64(opcode, xmm(d), i64x2.splat(source64(op, ea)), 1)
    if (ok) setXmm64(d, i64x2.extract_lane(result, 0))
  }
}

function compareMask(op: usize, ea: u64, prefix: i32, predicate: u32): void {
  const d = dst(op)
  if (prefix <= PREFIX_66) {
    const b = source(op, ea)
    if (faulted()) return
    const result = prefix == PREFIX_NONE ? compareF32(predicate, xmm(d), b, 4) : compareF64(predicate, xmm(d), b, 2)
    if (ok) setXmm(d, result)
  } else if (prefix == PREFIX_F3) {
    const b = source32(op, ea)
    if (faulted()) return
    const result = compareF32(predicate, xmm(d), i32x4.splat(b), 1)
    if (ok) setXmm32(d, i32x4.extract_lane(result, 0))
  } else {
    const b = source64(op, ea)
    if (faulted()) return
    const result = compareF64(predicate, xmm(d), i64x2.splat(b), 1)
    if (ok) setXmm64(d, i64x2.extract_lane(result, 0))
  }
}

/** HADDPS, HSUBPD and so on: neighbours of the first operand, then of the second. */
function horizontal(op: usize, ea: u64, prefix: i32, operation: u32): void {
  const d = dst(op)
  const a = xmm(d),
    b = source(op, ea)
  let result: v128
  if (prefix == PREFIX_66)
    result = packedF64(
      operation,
      i8x16.shuffle(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
      i8x16.shuffle(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31),
      2,
    )
  else
    result = packedF32(
      operation,
      i8x16.shuffle(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27),
      i8x16.shuffle(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31),
      4,
    )
  if (ok) setXmm(d, result)
}

function addSub(op: usize, ea: u64, prefix: i32): void {
  const d = dst(op)
  const b = source(op, ea)
  const result = prefix == PREFIX_66 ? packedF64(OP_ADDSUB, xmm(d), b, 2) : packedF32(OP_ADDSUB, xmm(d), b, 4)
  if (ok) setXmm(d, result)
}

function convert(op: usize, ea: u64, opcode: u32, prefix: i32): void {
  const d = dst(op)
  let result: v128
  if (opcode == 0x5a) {
    if (prefix == PREFIX_F3 || prefix == PREFIX_F2) {
      const bits: u64 = prefix == PREFIX_F3 ? source32(op, ea) : source64(op, ea)
      if (faulted()) return
      beginInstruction()
      if (prefix == PREFIX_F3) {
        const wide = widen(<u32>bits)
        if (endInstruction()) setXmm64(d, wide)
      } else {
        const single = narrow(bits)
        if (endInstruction()) setXmm32(d, single)
      }
      return
    }
    if (prefix == PREFIX_NONE) {
      const bits = source64(op, ea)
      if (faulted()) return
      result = psToPd(low64(bits))
    } else {
      const a = source(op, ea)
      if (faulted()) return
      result = pdToPs(a)
    }
  } else if (opcode == 0xe6 && prefix == PREFIX_F3) {
    return commit(op, dqToPd(low64(source64(op, ea))))
  } else {
    const a = source(op, ea)
    if (faulted()) return
    if (opcode == 0xe6) result = pdToDq(a, prefix == PREFIX_66)
    else if (prefix == PREFIX_NONE) result = dqToPs(a, 4)
    else result = psToDq(a, prefix == PREFIX_F3, 4)
  }
  if (endInstruction()) setXmm(d, result)
}

/** CVTPI2PS, CVTPI2PD, CVTPS2PI, CVTPD2PI and the truncating ones: between MMX and XMM. */
function convertMmx(op: usize, ea: u64, opcode: u32, prefix: i32): void {
  const d = dst(op)
  // A conversion from memory does not touch the MMX registers; one that does makes them current even when it raises #XM.
  const touches = opcode != 0x2a || isRegister(op)
  if (touches && mmxTrap()) return
  if (opcode == 0x2a) {
    const value = sourceMm(op, ea)
    if (faulted()) return
    if (touches) enterMmx()
    if (prefix == PREFIX_66) return setXmm(d, dqToPd(low64(value)))
    const result = dqToPs(low64(value), 2)
    if (endInstruction()) setXmm64(d, i64x2.extract_lane(result, 0))
    return
  }
  const truncate = opcode == 0x2c
  let result: v128
  if (prefix == PREFIX_66) {
    const a = source(op, ea)
    if (faulted()) return
    result = pdToDq(a, truncate)
  } else {
    const bits = source64(op, ea)
    if (faulted()) return
    result = psToDq(low64(bits), truncate, 2)
  }
  enterMmx()
  if (endInstruction()) setMm(d, i64x2.extract_lane(result, 0))
}

/** RSQRTPS, RCPPS and the scalar ones: no exceptions. */
function approximate(op: usize, ea: u64, opcode: u32, prefix: i32): void {
  const d = dst(op)
  if (prefix == PREFIX_F3) {
    const bits = source32(op, ea)
    if (!faulted()) setXmm32(d, opcode == 0x52 ? reciprocalRoot(bits) : reciprocal(bits))
    return
  }
  const a = source(op, ea)
  if (faulted()) return
  const at = cpu + 0x740
  v128.store(at, a)
  for (let i: u32 = 0; i < 4; i++) {
    const bits = load<u32>(at + (i << 2))
    store<u32>(at + (i << 2), opcode == 0x52 ? reciprocalRoot(bits) : reciprocal(bits))
  }
  setXmm(d, v128.load(at))
}
