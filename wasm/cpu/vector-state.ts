/** Operands of vector instructions: XMM and MMX registers, aligned and unaligned memory. */
import { cpu } from './cpu'
import { faulted, raise, raiseGp, VECTOR_MF, fpuTrapMmx } from './fault'
import { read128, read32, read64 } from './memory'
import { EA_REGISTER, OP_DST, OP_EA, OP_SRC } from './ops'
import { FPR_EXPONENT, S_FPR, S_FSW, S_FTAG, S_FTOP, S_XMM, XMM_STRIDE } from './state'

@inline
export function xmm(n: u32): v128 {
  return v128.load(cpu + n * XMM_STRIDE, S_XMM)
}

@inline
export function setXmm(n: u32, value: v128): void {
  v128.store(cpu + n * XMM_STRIDE, value, S_XMM)
}

@inline
export function xmm64(n: u32): u64 {
  return load<u64>(cpu + n * XMM_STRIDE, S_XMM)
}

@inline
export function setXmm64(n: u32, value: u64): void {
  store<u64>(cpu + n * XMM_STRIDE, value, S_XMM)
}

@inline
export function setXmm32(n: u32, value: u32): void {
  store<u32>(cpu + n * XMM_STRIDE, value, S_XMM)
}

/** Low 64 bits of a vector, the rest zero. */
@inline
export function low64(value: u64): v128 {
  return i64x2.replace_lane(i64x2.splat(0), 0, value)
}

@inline
export function isRegister(op: usize): bool {
  return load<u8>(op, OP_EA) == EA_REGISTER
}

@inline
export function dst(op: usize): u32 {
  return load<u8>(op, OP_DST)
}

@inline
export function src(op: usize): u32 {
  return load<u8>(op, OP_SRC)
}

/** The source of 16 bytes: a register, or memory that must be aligned. */
export function source(op: usize, ea: u64): v128 {
  if (isRegister(op)) return xmm(src(op))
  if (ea & 15) {
    raiseGp()
    return i64x2.splat(0)
  }
  return read128(ea)
}

export function sourceUnaligned(op: usize, ea: u64): v128 {
  return isRegister(op) ? xmm(src(op)) : read128(ea)
}

export function source64(op: usize, ea: u64): u64 {
  return isRegister(op) ? xmm64(src(op)) : read64(ea)
}

export function source32(op: usize, ea: u64): u32 {
  return isRegister(op) ? <u32>xmm64(src(op)) : read32(ea)
}

// ---- MMX

/** #UD, #NM, then #MF. True when an MMX instruction must not run. */
export function mmxTrap(): bool {
  if (fpuTrapMmx()) return true
  if (!(load<u16>(cpu, S_FSW) & 0x80)) return false
  raise(VECTOR_MF)
  return true
}

/** What every MMX instruction but EMMS does to the x87: TOP = 0, every register in use. */
@inline
export function enterMmx(): void {
  store<u32>(cpu, 0, S_FTOP)
  store<u32>(cpu, 0xff, S_FTAG)
}

@inline
export function mm(n: u32): u64 {
  return load<u64>(cpu + ((n & 7) << 4), S_FPR)
}

@inline
export function setMm(n: u32, value: u64): void {
  const at = cpu + ((n & 7) << 4)
  store<u64>(at, value, S_FPR)
  store<u16>(at, 0xffff, S_FPR + FPR_EXPONENT)
}

export function sourceMm(op: usize, ea: u64): u64 {
  return isRegister(op) ? mm(src(op)) : read64(ea)
}

/** Writes the destination register unless the operand faulted. */
@inline
export function commit(op: usize, value: v128): void {
  if (!faulted()) setXmm(dst(op), value)
}
