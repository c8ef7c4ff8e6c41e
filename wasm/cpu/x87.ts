/**
 * The x87 instructions, D8 to DF: `execX87` is called by the interpreter with the predecoded record and the linear
 * address of the memory operand. SDM volume 2, appendix B.17 (the opcode map) and volume 1, chapter 8.
 */
import { cpu, gpr, setGpr } from './cpu'
import { faulted, fpuTrapX87, raise, raiseUd, VECTOR_MF } from './fault'
import { probeWrite, read16, read32, read64, read8, write16, write32, write64, write8 } from './memory'
import { EA_REGISTER, OP_AUX, OP_EA, OP_FLAGS, OP_IMM, OP_OFFSET, OPF_O16 } from './ops'
import {
  aClass,
  DENORMAL,
  extMan,
  extTop,
  flags,
  IE,
  packExt,
  packF32,
  packF64,
  PE,
  QNAN,
  raiseFlags,
  setResult,
  unpackAF32,
  unpackAF64,
  unpackAInt,
  unpackBF32,
  unpackBF64,
  unpackBInt,
  DE,
  aSign,
  aExp,
  aMan,
  NORMAL,
  OE,
  UE,
  roundedUp,
  SNAN,
} from './softfloat'
import {
  FLAG_ADC,
  FLAG_ADD,
  FLAG_DEC1,
  FLAG_INC1,
  FLAG_LITERAL,
  FLAG_SBB,
  FLAG_SHIFT,
  FLAG_SUB,
  S_FLAG_A,
  S_FLAG_B,
  S_FLAG_KIND,
  S_FLAG_RES,
} from './state'
import { S_BLOCK_RIP, S_FCS, S_FDP, S_FDS, S_FIP, S_FOP, S_FSW, S_SEG, SEG_SELECTOR, SEG_STRIDE } from './state'
import {
  arithMemory,
  arithStack,
  compareFlags,
  compareMemory,
  compareStack,
  compareUnderflow,
  fprem,
  frndint,
  fscale,
  fsqrt,
  ftst,
  fxam,
  fxch,
  fxtract,
  integerOfTop,
  integerRoundedUp,
  nanResultA,
} from './x87-arith'
import { fldcw, fldenv, fninit, fnsave, fnstcw, fnstenv, frstor } from './x87-env'
import {
  beginX87,
  canPush,
  fcw,
  fsw,
  INDEFINITE_MAN,
  INDEFINITE_TOP,
  isEmpty,
  loadA,
  moveTop,
  pop,
  post,
  postOperation,
  push,
  setC1,
  setEmpty,
  setFsw,
  setSt,
  stackFault,
  statusWord,
  stMan,
  stTop,
  underflowInto,
} from './x87-state'
import { f2xm1, fcos, fpatan, fptan, fsin, fsincos, fyl2x, fyl2xp1 } from './x87-transcendental'

/** #NM, then #MF when an earlier exception waits to be reported. True when the instruction must not run. */
function waits(): bool {
  if (fpuTrapX87()) return true
  if (!(fsw() & 0x80)) return false
  raise(VECTOR_MF)
  return true
}

export function execX87(op: usize, ea: u64): void {
  // FWAIT only looks.
  if (load<u8>(op, OP_AUX) == 8) {
    waits()
    return
  }
  const encoded = load<u32>(op, OP_IMM)
  const group = (encoded >> 8) & 7
  const modrm = encoded & 0xff
  const before = fsw()
  if (load<u8>(op, OP_EA) == EA_REGISTER) registerForm(group, modrm)
  else memoryForm(group, (modrm >> 3) & 7, ea, (load<u8>(op, OP_FLAGS) & OPF_O16) != 0)
  // The instruction and data pointers are kept for the exception handler only, as AMD's processors do.
  if ((fsw() & ~before & 0x80) != 0 && !faulted()) {
    store<u16>(cpu, ((group << 8) | modrm) & 0x7ff, S_FOP)
    store<u64>(cpu, load<u64>(cpu, S_BLOCK_RIP) + load<u16>(op, OP_OFFSET), S_FIP)
    store<u64>(cpu, ea, S_FDP)
    store<u16>(cpu, load<u16>(cpu, S_SEG + SEG_STRIDE + SEG_SELECTOR), S_FCS)
    store<u16>(cpu, load<u16>(cpu, S_SEG + 3 * SEG_STRIDE + SEG_SELECTOR), S_FDS)
  }
}

// ---- memory operands

function memoryForm(group: u32, reg: u32, ea: u64, o16: bool): void {
  if (group == 1 && reg >= 4) return control(reg, ea, o16)
  if (group == 5 && reg >= 4) {
    if (reg == 5) return raiseUd()
    if (fpuTrapX87()) return
    if (reg == 6) return fnsave(ea, o16)
    if (reg == 7) return write16(ea, statusWord())
    if (waits()) return
    return frstor(ea, o16)
  }
  if ((group == 1 && reg == 1) || (group == 3 && (reg == 4 || reg == 6))) return raiseUd()
  if (waits()) return
  if (!(group & 1)) return arithmeticMemory(group, reg, ea)
  if (reg == 0 || (reg == 5 && group != 1)) return loadMemory(group, reg, ea)
  if (reg == 4) return fbld(ea)
  if (reg == 6) return fbstp(ea)
  if (reg == 7 && group == 3) return fstpExt(ea)
  if (group == 1) return storeSingle(ea, reg == 3)
  if (group == 5 && reg != 1) return storeDouble(ea, reg == 3)
  const bits: u32 = reg == 7 ? 64 : group == 3 ? 32 : group == 5 ? 64 : 16
  storeInteger(ea, bits, reg == 1, reg != 2)
}

function control(reg: u32, ea: u64, o16: bool): void {
  if (reg >= 6 ? fpuTrapX87() : waits()) return
  if (reg == 4) fldenv(ea, o16)
  else if (reg == 5) fldcw(ea)
  else if (reg == 6) fnstenv(ea, o16)
  else fnstcw(ea)
}

/** D8 m32, DA m32 integer, DC m64, DE m16 integer. */
function arithmeticMemory(group: u32, reg: u32, ea: u64): void {
  const compares = reg == 2 || reg == 3
  let bits: u64
  if (group == 4) bits = read64(ea)
  else if (group == 6) bits = read16(ea)
  else bits = read32(ea)
  if (faulted()) return
  if (isEmpty(0)) {
    if (compares) {
      if (compareUnderflow() && reg == 3) pop()
    } else underflowInto(0)
    return
  }
  beginX87()
  if (group == 0) unpackBF32(<u32>bits)
  else if (group == 4) unpackBF64(bits)
  else unpackBInt(group == 2 ? <i64>(<i32>bits) : <i64>(<i16>bits))
  if (compares) compareMemory(reg == 3 ? 1 : 0)
  else arithMemory(reg)
}

function loadMemory(group: u32, reg: u32, ea: u64): void {
  let man: u64 = 0,
    top: u32 = 0
  if (group == 3 && reg == 5) {
    man = read64(ea)
    top = read16(ea + 8)
    if (faulted() || !canPush()) return
    setC1(false)
    return push(man, top)
  }
  let bits: u64
  if (group == 5 || reg == 5) bits = read64(ea)
  else if (group == 7) bits = read16(ea)
  else bits = read32(ea)
  if (faulted() || !canPush()) return
  beginX87()
  const real = reg == 0 && (group == 1 || group == 5)
  if (!real) unpackAInt(reg == 5 ? <i64>bits : group == 7 ? <i64>(<i16>bits) : <i64>(<i32>bits))
  else if (group == 1) unpackAF32(<u32>bits)
  else unpackAF64(bits)
  if (!nanResultA()) {
    if (aClass == DENORMAL) raiseFlags(DE)
    setResult(aClass == DENORMAL ? NORMAL : aClass, aSign, aExp, aMan, 0)
  }
  packExt(64)
  setC1(false)
  // A denormal is normal in this format, and is loaded even when its exception is not masked.
  post(flags)
  if (flags & IE & ~fcw()) return
  push(extMan, extTop)
}

function fstpExt(ea: u64): void {
  let man = stMan(0),
    top = stTop(0)
  if (!probeWrite(ea, 10)) return
  if (isEmpty(0)) {
    if (!stackFault(false)) return
    man = INDEFINITE_MAN
    top = INDEFINITE_TOP
  } else setC1(false)
  write64(ea, man)
  write16(ea + 8, top)
  pop()
}

/** Unpacks ST0 as the result to be rounded to a smaller format. */
function topAsResult(): void {
  beginX87()
  loadA(0)
  if (!nanResultA()) setResult(aClass == DENORMAL ? NORMAL : aClass, aSign, aExp, aMan, 0)
}

/**
 * Exceptions of a store; overflow and underflow, unmasked, leave memory alone and say nothing of precision. True when
 * it is to be written.
 */
function storeAllowed(): bool {
  const forbidden = (flags & ~fcw() & (IE | OE | UE)) != 0
  setC1(roundedUp && !forbidden)
  post(forbidden ? flags & ~PE : flags)
  return !forbidden
}

function storeSingle(ea: u64, popAfter: bool): void {
  if (!probeWrite(ea, 4)) return
  if (isEmpty(0)) {
    if (!stackFault(false)) return
    write32(ea, 0xffc00000)
  } else {
    topAsResult()
    const bits = packF32()
    if (!storeAllowed()) return
    write32(ea, bits)
  }
  if (popAfter) pop()
}

function storeDouble(ea: u64, popAfter: bool): void {
  if (!probeWrite(ea, 8)) return
  if (isEmpty(0)) {
    if (!stackFault(false)) return
    write64(ea, 0xfff8000000000000)
  } else {
    topAsResult()
    const bits = packF64()
    if (!storeAllowed()) return
    write64(ea, bits)
  }
  if (popAfter) pop()
}

function storeInteger(ea: u64, bits: u32, truncate: bool, popAfter: bool): void {
  if (!probeWrite(ea, bits >> 3)) return
  let value: i64
  if (isEmpty(0)) {
    if (!stackFault(false)) return
    value = <i64>-1 << (bits - 1)
  } else {
    value = integerOfTop(bits, truncate)
    setC1(integerRoundedUp())
    if (post(flags)) return
  }
  if (bits == 16) write16(ea, <u32>value & 0xffff)
  else if (bits == 32) write32(ea, <u32>value)
  else write64(ea, value)
  if (popAfter) pop()
}

/** 18 packed decimal digits and a sign. */
function fbld(ea: u64): void {
  const low = read64(ea)
  const high = read16(ea + 8)
  if (faulted() || !canPush()) return
  let value: u64 = 0
  for (let i = 1; i >= 0; i--) value = value * 10 + ((high >> (<u32>i * 4)) & 15)
  for (let i = 15; i >= 0; i--) value = value * 10 + ((low >> (<u64>i * 4)) & 15)
  unpackAInt(value)
  setC1(false)
  const sign = high & 0x8000
  if (value == 0) return push(0, sign)
  push(aMan, sign | (aExp + 16383))
}

function fbstp(ea: u64): void {
  if (!probeWrite(ea, 10)) return
  let low: u64 = INDEFINITE_MAN,
    high: u32 = 0xffff
  if (isEmpty(0)) {
    if (!stackFault(false)) return
  } else {
    const value = integerOfTop(64, false)
    const sign: u32 = stTop(0) & 0x8000
    let magnitude: u64 = value < 0 ? 0 - <u64>value : <u64>value
    if (magnitude >= 1000000000000000000) {
      beginX87()
      raiseFlags(IE)
      setC1(false)
      if (post(IE)) return
    } else {
      setC1(integerRoundedUp())
      if (post(flags)) return
      low = 0
      for (let i: u64 = 0; i < 64; i += 4) {
        low |= (magnitude % 10) << i
        magnitude /= 10
      }
      high = sign | <u32>(magnitude % 10) | (<u32>(magnitude / 10) << 4)
    }
  }
  write64(ea, low)
  write16(ea + 8, high)
  pop()
}

// ---- register operands

function registerForm(group: u32, modrm: u32): void {
  const reg = (modrm >> 3) & 7
  const i = modrm & 7
  if (group == 3 && reg == 4) return controlRegister(i)
  if (group == 7 && modrm == 0xe0) {
    if (!fpuTrapX87()) setGpr(0, (gpr(0) & ~0xffff) | statusWord())
    return
  }
  if (!isDefined(group, reg, i)) return raiseUd()
  if (waits()) return
  switch (group) {
    case 0:
      if (reg == 2 || reg == 3) compareStack(i, false, reg - 2)
      else arithStack(reg, i, 0, false)
      break
    case 1:
      if (reg >= 4) one(modrm)
      else if (reg == 0) fldSt(i)
      else if (reg == 1) fxch(i)
      else if (reg == 3) fstpNoException(i)
      break
    case 2:
      if (reg == 5) compareStack(1, true, 2)
      else fcmov(reg, false, i)
      break
    case 3:
      if (reg < 4) fcmov(reg, true, i)
      else compareFlags(i, reg == 5, false)
      break
    case 4:
      if (reg == 2 || reg == 3) compareStack(i, false, reg - 2)
      else arithStack(reg, i, i, false)
      break
    case 5:
      if (reg == 0) {
        setC1(false)
        setEmpty(i)
      } else if (reg == 1) fxch(i)
      else if (reg == 2 || reg == 3) fstSt(i, reg == 3)
      else compareStack(i, true, reg - 4)
      break
    case 6:
      if (reg == 2) compareStack(i, false, 1)
      else if (reg == 3) compareStack(1, false, 2)
      else arithStack(reg, i, i, true)
      break
    default:
      if (reg == 0) {
        setC1(false)
        setEmpty(i)
        pop()
      } else if (reg == 1) fxch(i)
      else if (reg < 4) fstSt(i, true)
      else compareFlags(i, reg == 5, true)
  }
}

function isDefined(group: u32, reg: u32, i: u32): bool {
  if (group == 1) {
    if (reg == 2) return i == 0
    if (reg == 4) return i < 2 || i == 4 || i == 5
    return !(reg == 5 && i == 7)
  }
  if (group == 2) return reg < 4 || (reg == 5 && i == 1)
  if (group == 3) return reg != 7
  if (group == 5) return reg < 6
  if (group == 6) return reg != 3 || i == 1
  if (group == 7) return reg != 4 && reg != 7
  return true
}

/** DB E0-E7: instructions that do not wait; the 8087's and 287's are no operations. */
function controlRegister(i: u32): void {
  if (i > 4) return raiseUd()
  if (fpuTrapX87()) return
  if (i == 2) store<u16>(cpu, fsw() & 0x7f00, S_FSW)
  else if (i == 3) fninit()
}

function fldSt(i: u32): void {
  let man = stMan(i),
    top = stTop(i)
  if (!isEmpty(i) && !canPush()) return
  if (isEmpty(i)) {
    if (!stackFault(false)) return
    man = INDEFINITE_MAN
    top = INDEFINITE_TOP
  } else setC1(false)
  push(man, top)
}

function fstSt(i: u32, popAfter: bool): void {
  if (isEmpty(0)) {
    if (underflowInto(i) && popAfter) pop()
    return
  }
  setC1(false)
  setSt(i, stMan(0), stTop(0))
  if (popAfter) pop()
}

/** D9 D8+i: like FSTP, but an empty ST0 is only popped. */
function fstpNoException(i: u32): void {
  setC1(false)
  if (!isEmpty(0)) setSt(i, stMan(0), stTop(0))
  pop()
}

/** CF, ZF, CF or ZF, PF: as the lazy flags have them (state.ts). */
function conditionHolds(reg: u32): bool {
  const kind = load<u32>(cpu, S_FLAG_KIND)
  const a = load<u64>(cpu, S_FLAG_A),
    b = load<u64>(cpu, S_FLAG_B),
    result = load<u64>(cpu, S_FLAG_RES)
  const literal = kind == FLAG_LITERAL
  const carry: bool =
    literal || kind == FLAG_SHIFT ? (a & 1) != 0
    : kind == FLAG_ADD ? result < a
    : kind == FLAG_ADC ? result <= a
    : kind == FLAG_SUB ? a < b
    : kind == FLAG_SBB ? a <= b
    : kind == FLAG_INC1 || kind == FLAG_DEC1
  const zero: bool = literal ? (a & 0x40) != 0 : result == 0
  if (reg == 3) return literal ? (a & 4) != 0 : (popcnt(<u32>result & 0xff) & 1) == 0
  return (reg != 1 && carry) || (reg != 0 && zero)
}

/** FCMOVcc: below, equal, below or equal, unordered; `negate` for the N forms. */
function fcmov(reg: u32, negate: bool, i: u32): void {
  if (isEmpty(0) || isEmpty(i)) {
    underflowInto(0)
    return
  }
  if (conditionHolds(reg) != negate) setSt(0, stMan(i), stTop(i))
}

function signOperation(top: u32): void {
  if (isEmpty(0)) {
    underflowInto(0)
    return
  }
  setC1(false)
  setSt(0, stMan(0), top)
}

/** FLD of a constant, rounded as the control word says: `man` is rounded to nearest, `error` says which way that went. */
function constant(man: u64, exponent: u32, error: i32): void {
  if (!canPush()) return
  setC1(false)
  const rc = (fcw() >> 10) & 3
  // error > 0: the nearest is above the true value, so rounding down or chopping takes the one before; < 0: below it.
  if (error > 0 && (rc == 1 || rc == 3)) man--
  else if (error < 0 && rc == 2) man++
  push(man, exponent)
}

/** D9 E0 to FF. */
function one(modrm: u32): void {
  switch (modrm & 31) {
    case 0: // FCHS
      return signOperation(stTop(0) ^ 0x8000)
    case 1: // FABS
      return signOperation(stTop(0) & 0x7fff)
    case 4:
      return ftst()
    case 5:
      return fxam()
    case 8: // 1
      return constant(0x8000000000000000, 0x3fff, 0)
    case 9: // log2(10)
      return constant(0xd49a784bcd1b8afe, 0x4000, -1)
    case 10: // log2(e)
      return constant(0xb8aa3b295c17f0bc, 0x3fff, 1)
    case 11: // pi
      return constant(0xc90fdaa22168c235, 0x4000, 1)
    case 12: // log10(2)
      return constant(0x9a209a84fbcff799, 0x3ffd, 1)
    case 13: // ln(2)
      return constant(0xb17217f7d1cf79ac, 0x3ffe, 1)
    case 14: // 0
      if (!canPush()) return
      setC1(false)
      return push(0, 0)
    case 16:
      return f2xm1()
    case 17:
      return fyl2x()
    case 18:
      return fptan()
    case 19:
      return fpatan()
    case 20:
      return fxtract()
    case 21:
      return fprem(true)
    case 22:
      setC1(false)
      return moveTop(-1)
    case 23:
      setC1(false)
      return moveTop(1)
    case 24:
      return fprem(false)
    case 25:
      return fyl2xp1()
    case 26:
      return fsqrt()
    case 27:
      return fsincos()
    case 28:
      return frndint()
    case 29:
      return fscale()
    case 30:
      return fsin()
    case 31:
      return fcos()
  }
}
