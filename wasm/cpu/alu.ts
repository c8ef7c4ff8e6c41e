/** Arithmetic with flags, generic over the operand's signed type. */
import { setFlags, setLogicFlags } from './cpu'
import { carry, CF, OF, setCarryOverflow, setShiftFlags } from './flags'
import { ALU_ADC, ALU_ADD, ALU_AND, ALU_OR, ALU_SBB, ALU_XOR } from './ops'
import {
  FLAG_ADC,
  FLAG_ADD,
  FLAG_DEC0,
  FLAG_DEC1,
  FLAG_INC0,
  FLAG_INC1,
  FLAG_SBB,
  FLAG_SUB,
} from './state'

/**
 * Stores a register: 32-bit results clear the upper half. The mask is no idle thing: the optimiser turns a signed 32-bit load that is
 * zero-extended to 64 bits into one that sign-extends.
 */
@inline
export function putReg<T>(at: usize, value: T): void {
  if (sizeof<T>() == 4) store<u64>(at, <u64>value & 0xffff_ffff)
  else store<T>(at, value)
}

/** a op b with flags; `alu` is a constant where this is used in line. ALU_SUB and ALU_CMP, ALU_AND and ALU_TEST are the same here. */
@inline
export function alu2<T>(c: usize, alu: u32, a: T, b: T): T {
  if (alu == ALU_ADD) {
    const r = <T>(a + b)
    setFlags(c, FLAG_ADD, <i64>r, <i64>a, <i64>b)
    return r
  }
  if (alu == ALU_OR) {
    const r = <T>(a | b)
    setLogicFlags(c, <i64>r)
    return r
  }
  if (alu == ALU_XOR) {
    const r = <T>(a ^ b)
    setLogicFlags(c, <i64>r)
    return r
  }
  if (alu == ALU_ADC) {
    if (carry()) {
      const r = <T>(a + b + 1)
      setFlags(c, FLAG_ADC, <i64>r, <i64>a, <i64>b)
      return r
    }
    const r = <T>(a + b)
    setFlags(c, FLAG_ADD, <i64>r, <i64>a, <i64>b)
    return r
  }
  if (alu == ALU_SBB) {
    if (carry()) {
      const r = <T>(a - b - 1)
      setFlags(c, FLAG_SBB, <i64>r, <i64>a, <i64>b)
      return r
    }
    const r = <T>(a - b)
    setFlags(c, FLAG_SUB, <i64>r, <i64>a, <i64>b)
    return r
  }
  if (alu == ALU_AND || alu == 8) {
    // In 64 bits: AssemblyScript takes `a & b` of small integers for in range, which it is not when only one of them is negative.
    const r = <i64>a & <i64>b
    setLogicFlags(c, r)
    return <T>r
  }
  const r = <T>(a - b)
  setFlags(c, FLAG_SUB, <i64>r, <i64>a, <i64>b)
  return r
}

@inline
export function inc<T>(c: usize, a: T): T {
  const kind = carry() ? FLAG_INC1 : FLAG_INC0
  const r = <T>(a + 1)
  setFlags(c, kind, <i64>r, <i64>a, 1)
  return r
}

@inline
export function dec<T>(c: usize, a: T): T {
  const kind = carry() ? FLAG_DEC1 : FLAG_DEC0
  const r = <T>(a - 1)
  setFlags(c, kind, <i64>r, <i64>a, 1)
  return r
}

@inline
export function neg<T>(c: usize, a: T): T {
  const r = <T>(0 - a)
  setFlags(c, FLAG_SUB, <i64>r, 0, <i64>a)
  return r
}

/** Shifts and rotates by a non-zero `count`, already masked to 5 or 6 bits. `kind` as in OP_AUX of H_SHIFT_RI. */
export function shift<T>(c: usize, kind: u32, value: T, count: u32): T {
  const bits: u32 = sizeof<T>() * 8
  // The operand zero-extended, so that every case works on 64 bits.
  const mask: u64 = bits == 64 ? <u64>-1 : (<u64>1 << bits) - 1
  const x = <u64>value & mask
  const top = bits - 1
  switch (kind) {
    case 0: {
      // ROL
      const n = count & (bits - 1)
      const r = n ? ((x << n) | (x >> (bits - n))) & mask : x
      const out = (r & 1) != 0
      setCarryOverflow(c, out, (((r >> top) & 1) != 0) != out)
      return <T>r
    }
    case 1: {
      // ROR
      const n = count & (bits - 1)
      const r = n ? ((x >> n) | (x << (bits - n))) & mask : x
      const out = ((r >> top) & 1) != 0
      setCarryOverflow(c, out, (((r >> (top - 1)) & 1) != 0) != out)
      return <T>r
    }
    case 2: {
      // RCL: through carry, modulo size + 1
      const n = bits < 32 ? count % (bits + 1) : count
      let r = x
      let carryBit: u64 = carry() ? 1 : 0
      for (let i: u32 = 0; i < n; i++) {
        const next = (r >> top) & 1
        r = ((r << 1) | carryBit) & mask
        carryBit = next
      }
      setCarryOverflow(c, carryBit != 0, ((r >> top) & 1) != carryBit)
      return <T>r
    }
    case 3: {
      // RCR
      const n = bits < 32 ? count % (bits + 1) : count
      let r = x
      let carryBit: u64 = carry() ? 1 : 0
      for (let i: u32 = 0; i < n; i++) {
        const next = r & 1
        r = (r >> 1) | (carryBit << top)
        carryBit = next
      }
      setCarryOverflow(c, carryBit != 0, ((r >> top) & 1) != ((r >> (top - 1)) & 1))
      return <T>r
    }
    case 5: {
      // SHR
      const out = count <= bits ? (x >> (count - 1)) & 1 : 0
      const r = count < bits ? x >> count : 0
      const over = count == 1 ? ((x >> top) & 1) != 0 : ((r >> top) ^ ((r >> (top - 1)) & 1)) & 1
      setShiftFlags(c, <i64>(<T>r), (out ? CF : 0) | (over ? OF : 0))
      return <T>r
    }
    case 7: {
      // SAR
      const s = <i64>value
      const n = min<u32>(count, 63)
      const out = (s >> (<i64>n - 1)) & 1
      const r = s >> n
      setShiftFlags(c, <i64>(<T>r), out ? CF : 0)
      return <T>r
    }
    default: {
      // SHL
      const out = count <= bits ? (x >> (bits - count)) & 1 : 0
      const r = count < bits ? (x << count) & mask : 0
      setShiftFlags(c, <i64>(<T>r), (out ? CF : 0) | (((r >> top) & 1) != out ? OF : 0))
      return <T>r
    }
  }
}
