/** Arithmetic flags out of their lazy form (state.ts gives the formulas), and conditions. */
import { cpu } from './cpu'
import {
  FLAG_ADC,
  FLAG_ADD,
  FLAG_DEC0,
  FLAG_DEC1,
  FLAG_INC0,
  FLAG_INC1,
  FLAG_LITERAL,
  FLAG_LOGIC,
  FLAG_SBB,
  FLAG_SHIFT,
  FLAG_SUB,
  S_FLAG_A,
  S_FLAG_B,
  S_FLAG_KIND,
  S_FLAG_RES,
  S_RFLAGS,
} from './state'

export const CF: u32 = 1
export const PF: u32 = 4
export const AF: u32 = 0x10
export const ZF: u32 = 0x40
export const SF: u32 = 0x80
export const TF: u32 = 0x100
export const IF: u32 = 0x200
export const DF: u32 = 0x400
export const OF: u32 = 0x800
export const IOPL_MASK: u32 = 0x3000
export const NT: u32 = 0x4000
export const RF: u32 = 0x1_0000
export const VM: u32 = 0x2_0000
export const AC: u32 = 0x4_0000
export const VIF: u32 = 0x8_0000
export const VIP: u32 = 0x10_0000
export const ID: u32 = 0x20_0000
export const ARITHMETIC: u32 = 0x8d5

export function carry(): bool {
  const c = cpu
  const a = load<u64>(c, S_FLAG_A)
  switch (load<u32>(c, S_FLAG_KIND)) {
    case FLAG_LITERAL:
      return (a & 1) != 0
    case FLAG_LOGIC:
      return false
    case FLAG_ADD:
      return load<u64>(c, S_FLAG_RES) < a
    case FLAG_ADC:
      return load<u64>(c, S_FLAG_RES) <= a
    case FLAG_SUB:
      return a < load<u64>(c, S_FLAG_B)
    case FLAG_SBB:
      return a <= load<u64>(c, S_FLAG_B)
    case FLAG_INC0:
      return false
    case FLAG_INC1:
      return true
    case FLAG_DEC0:
      return false
    case FLAG_DEC1:
      return true
    default:
      return (a & 1) != 0
  }
}

export function overflow(): bool {
  const c = cpu
  const a = load<i64>(c, S_FLAG_A)
  switch (load<u32>(c, S_FLAG_KIND)) {
    case FLAG_LITERAL:
      return (a & OF) != 0
    case FLAG_LOGIC:
      return false
    case FLAG_ADD:
    case FLAG_ADC:
    case FLAG_INC0:
    case FLAG_INC1: {
      const result = load<i64>(c, S_FLAG_RES)
      return ((a ^ result) & (load<i64>(c, S_FLAG_B) ^ result)) < 0
    }
    case FLAG_SUB:
    case FLAG_SBB:
    case FLAG_DEC0:
    case FLAG_DEC1:
      return ((a ^ load<i64>(c, S_FLAG_B)) & (a ^ load<i64>(c, S_FLAG_RES))) < 0
    default:
      return (a & OF) != 0
  }
}

@inline
export function zero(c: usize): bool {
  if (load<u32>(c, S_FLAG_KIND) == FLAG_LITERAL) return (load<u64>(c, S_FLAG_A) & ZF) != 0
  return load<i64>(c, S_FLAG_RES) == 0
}

@inline
export function sign(c: usize): bool {
  if (load<u32>(c, S_FLAG_KIND) == FLAG_LITERAL) return (load<u64>(c, S_FLAG_A) & SF) != 0
  return load<i64>(c, S_FLAG_RES) < 0
}

export function parity(): bool {
  const c = cpu
  if (load<u32>(c, S_FLAG_KIND) == FLAG_LITERAL) return (load<u64>(c, S_FLAG_A) & PF) != 0
  return (popcnt<u32>(load<u8>(c, S_FLAG_RES)) & 1) == 0
}

export function adjust(): bool {
  const c = cpu
  const kind = load<u32>(c, S_FLAG_KIND)
  const a = load<u64>(c, S_FLAG_A)
  if (kind == FLAG_LITERAL || kind == FLAG_SHIFT) return (a & AF) != 0
  if (kind == FLAG_LOGIC) return false
  return ((a ^ load<u64>(c, S_FLAG_B) ^ load<u64>(c, S_FLAG_RES)) & 0x10) != 0
}

/** The six flags as RFLAGS bits. */
export function arithmeticFlags(): u32 {
  const c = cpu
  if (load<u32>(c, S_FLAG_KIND) == FLAG_LITERAL) return load<u32>(c, S_FLAG_A) & ARITHMETIC
  return (
    (carry() ? CF : 0) |
    (parity() ? PF : 0) |
    (adjust() ? AF : 0) |
    (zero(c) ? ZF : 0) |
    (sign(c) ? SF : 0) |
    (overflow() ? OF : 0)
  )
}

export function setArithmeticFlags(flags: u32): void {
  const c = cpu
  store<u32>(c, FLAG_LITERAL, S_FLAG_KIND)
  store<u64>(c, <u64>(flags & ARITHMETIC), S_FLAG_A)
}

/** The whole RFLAGS register. */
export function getRflags(): u32 {
  return load<u32>(cpu, S_RFLAGS) | arithmeticFlags()
}

/** Stores all of RFLAGS as given; the caller has decided which bits may change. */
export function putRflags(value: u32): void {
  setArithmeticFlags(value)
  store<u32>(cpu, (value & ~ARITHMETIC & 0x3f_7fd5) | 2, S_RFLAGS)
}

/** ZF SF PF from `result`; CF, OF and AF as given (literal bits). */
@inline
export function setShiftFlags(c: usize, result: i64, bits: u32): void {
  store<u32>(c, FLAG_SHIFT, S_FLAG_KIND)
  store<i64>(c, result, S_FLAG_RES)
  store<u64>(c, <u64>bits, S_FLAG_A)
}

/** Changes CF and OF only: rotates. */
export function setCarryOverflow(c: usize, carryBit: bool, overflowBit: bool): void {
  const bits = (carryBit ? CF : 0) | (overflowBit ? OF : 0)
  if (load<u32>(c, S_FLAG_KIND) == FLAG_LITERAL) {
    store<u64>(c, (load<u64>(c, S_FLAG_A) & ~<u64>(CF | OF)) | bits, S_FLAG_A)
    return
  }
  const keep = adjust() ? AF : 0
  store<u32>(c, FLAG_SHIFT, S_FLAG_KIND)
  store<u64>(c, <u64>(bits | keep), S_FLAG_A)
}

/** Changes CF only. */
export function setCarry(value: bool): void {
  setCarryOverflow(cpu, value, overflow())
}

/** Condition `code` of Jcc, SETcc, CMOVcc. */
@inline
export function condition(c: usize, code: u32): bool {
  // CMP followed by a condition is most of what runs: answer it from the operands.
  if (load<u32>(c, S_FLAG_KIND) == FLAG_SUB) return conditionSub(c, code)
  return conditionAny(code)
}

/** The same out of line. */
export function conditionOf(code: u32): bool {
  return condition(cpu, code)
}

@inline
function conditionSub(c: usize, code: u32): bool {
  switch (code) {
    case 0:
      return ((load<i64>(c, S_FLAG_A) ^ load<i64>(c, S_FLAG_B)) & (load<i64>(c, S_FLAG_A) ^ load<i64>(c, S_FLAG_RES))) < 0
    case 1:
      return ((load<i64>(c, S_FLAG_A) ^ load<i64>(c, S_FLAG_B)) & (load<i64>(c, S_FLAG_A) ^ load<i64>(c, S_FLAG_RES))) >= 0
    case 2:
      return load<u64>(c, S_FLAG_A) < load<u64>(c, S_FLAG_B)
    case 3:
      return load<u64>(c, S_FLAG_A) >= load<u64>(c, S_FLAG_B)
    case 4:
      return load<i64>(c, S_FLAG_RES) == 0
    case 5:
      return load<i64>(c, S_FLAG_RES) != 0
    case 6:
      return load<u64>(c, S_FLAG_A) <= load<u64>(c, S_FLAG_B)
    case 7:
      return load<u64>(c, S_FLAG_A) > load<u64>(c, S_FLAG_B)
    case 8:
      return load<i64>(c, S_FLAG_RES) < 0
    case 9:
      return load<i64>(c, S_FLAG_RES) >= 0
    case 10:
      return (popcnt<u32>(load<u8>(c, S_FLAG_RES)) & 1) == 0
    case 11:
      return (popcnt<u32>(load<u8>(c, S_FLAG_RES)) & 1) != 0
    case 12:
      return load<i64>(c, S_FLAG_A) < load<i64>(c, S_FLAG_B)
    case 13:
      return load<i64>(c, S_FLAG_A) >= load<i64>(c, S_FLAG_B)
    case 14:
      return load<i64>(c, S_FLAG_A) <= load<i64>(c, S_FLAG_B)
    default:
      return load<i64>(c, S_FLAG_A) > load<i64>(c, S_FLAG_B)
  }
}

export function conditionAny(code: u32): bool {
  const c = cpu
  let value: bool
  switch (code >> 1) {
    case 0:
      value = overflow()
      break
    case 1:
      value = carry()
      break
    case 2:
      value = zero(c)
      break
    case 3:
      value = zero(c) || carry()
      break
    case 4:
      value = sign(c)
      break
    case 5:
      value = parity()
      break
    case 6:
      value = sign(c) != overflow()
      break
    default:
      value = zero(c) || sign(c) != overflow()
  }
  return value != ((code & 1) != 0)
}
