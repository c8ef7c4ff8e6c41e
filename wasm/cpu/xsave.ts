/** FXSAVE, XSAVE and their restores: legacy area and XSAVE header (SDM vol. 1 chapter 13). Components: x87 and SSE. */
import { cpu } from './cpu'
import { fpuTrapSse, raise, raiseGp, raiseMisaligned, raiseUd, VECTOR_NM } from './fault'
import { probeRead, probeWrite, read128, read16, read32, read64, read8, write128, write16, write32, write64, write8 } from './memory'
import {
  FPR_EXPONENT,
  FPR_STRIDE,
  MODE_64,
  MODE_SIZE_MASK,
  S_CR0,
  S_CR4,
  S_FAULT,
  S_FCW,
  S_FDP,
  S_FIP,
  S_FOP,
  S_FPR,
  S_FSW,
  S_FTAG,
  S_FTOP,
  S_MODE,
  S_MXCSR,
  S_RAX,
  S_XCR0,
  S_XMM,
  XMM_STRIDE,
} from './state'

import { updateSummary } from './x87-state'

const MXCSR_MASK: u32 = 0xffff

function xmmCount(): u32 {
  return (load<u32>(cpu, S_MODE) & MODE_SIZE_MASK) == MODE_64 ? 16 : 8
}

function saveX87(at: u64, wide: bool): void {
  const c = cpu
  write16(at, load<u16>(c, S_FCW))
  write16(at + 2, (<u32>load<u16>(c, S_FSW) & ~0x3800) | (load<u32>(c, S_FTOP) << 11))
  write8(at + 4, load<u8>(c, S_FTAG))
  write8(at + 5, 0)
  write16(at + 6, load<u16>(c, S_FOP))
  if (wide) {
    write64(at + 8, load<u64>(c, S_FIP))
    write64(at + 16, load<u64>(c, S_FDP))
  } else {
    write64(at + 8, load<u64>(c, S_FIP) & 0xffff_ffff)
    write64(at + 16, load<u64>(c, S_FDP) & 0xffff_ffff)
  }
  const top = load<u32>(c, S_FTOP)
  for (let i: u32 = 0; i < 8; i++) {
    const register = c + S_FPR + ((top + i) & 7) * FPR_STRIDE
    write64(at + 32 + i * 16, load<u64>(register))
    write64(at + 40 + i * 16, <u64>load<u16>(register, FPR_EXPONENT))
  }
}

function restoreX87(at: u64): void {
  const c = cpu
  store<u16>(c, <u16>((read16(at) & 0x1f3f) | 0x40), S_FCW)
  const status = read16(at + 2)
  store<u16>(c, <u16>(status & ~0x3800), S_FSW)
  updateSummary()
  const top = (status >> 11) & 7
  store<u32>(c, top, S_FTOP)
  store<u32>(c, read8(at + 4), S_FTAG)
  store<u16>(c, <u16>(read16(at + 6) & 0x7ff), S_FOP)
  store<u64>(c, read64(at + 8), S_FIP)
  store<u64>(c, read64(at + 16), S_FDP)
  for (let i: u32 = 0; i < 8; i++) {
    const register = c + S_FPR + ((top + i) & 7) * FPR_STRIDE
    store<u64>(register, read64(at + 32 + i * 16))
    store<u16>(register, <u16>read16(at + 40 + i * 16), FPR_EXPONENT)
  }
}

export function initX87(): void {
  const c = cpu
  store<u16>(c, 0x37f, S_FCW)
  store<u16>(c, 0, S_FSW)
  store<u32>(c, 0, S_FTOP)
  store<u32>(c, 0, S_FTAG)
  store<u16>(c, 0, S_FOP)
  store<u64>(c, 0, S_FIP)
  store<u64>(c, 0, S_FDP)
  memory.fill(c + S_FPR, 0, 8 * FPR_STRIDE)
}

function saveXmm(at: u64): void {
  const count = xmmCount()
  for (let i: u32 = 0; i < count; i++) write128(at + 160 + i * 16, v128.load(cpu + S_XMM + i * XMM_STRIDE))
}

function restoreXmm(at: u64): void {
  const count = xmmCount()
  for (let i: u32 = 0; i < count; i++) v128.store(cpu + S_XMM + i * XMM_STRIDE, read128(at + 160 + i * 16))
}

function trapped(): bool {
  const cr0 = load<u64>(cpu, S_CR0)
  if (cr0 & 12) {
    raise(VECTOR_NM)
    return true
  }
  return false
}

export function fxsave(at: u64, wide: bool): void {
  if (trapped()) return
  if (at & 15) {
    raiseMisaligned(at, 512)
    return
  }
  if (!probeWrite(at, 512)) return
  saveX87(at, wide)
  write32(at + 24, load<u32>(cpu, S_MXCSR))
  write32(at + 28, MXCSR_MASK)
  saveXmm(at)
}

export function fxrstor(at: u64): void {
  if (trapped()) return
  if (at & 15) {
    raiseMisaligned(at, 512)
    return
  }
  if (!probeRead(at, 512)) return
  const mxcsr = read32(at + 24)
  if (mxcsr & ~MXCSR_MASK) {
    raiseGp()
    return
  }
  restoreX87(at)
  store<u32>(cpu, mxcsr, S_MXCSR)
  restoreXmm(at)
}

export function loadMxcsr(at: u64): void {
  if (fpuTrapSse()) return
  const value = read32(at)
  if (load<u32>(cpu, S_FAULT)) return
  if (value & ~MXCSR_MASK) raiseGp()
  else store<u32>(cpu, value, S_MXCSR)
}

export function storeMxcsr(at: u64): void {
  if (fpuTrapSse()) return
  write32(at, load<u32>(cpu, S_MXCSR))
}

function xsaveTrapped(at: u64): bool {
  if (!(load<u64>(cpu, S_CR4) & (1 << 18))) {
    raiseUd()
    return true
  }
  if (load<u64>(cpu, S_CR0) & 8) {
    raise(VECTOR_NM)
    return true
  }
  if (at & 63) {
    raiseMisaligned(at, 576)
    return true
  }
  return false
}

/** Components asked for in EDX:EAX that are enabled. */
function requested(): u32 {
  return load<u32>(cpu, S_RAX) & load<u32>(cpu, S_XCR0)
}

/** XSAVE (and XSAVEOPT, which may always save). XSAVEC differs in the header's second word. */
export function xsave(at: u64, wide: bool, compact: bool): void {
  if (xsaveTrapped(at)) return
  const components = requested()
  if (!probeWrite(at, 576)) return
  if (components & 1) saveX87(at, wide)
  if (components & 2) saveXmm(at)
  if (components & 2 || compact) {
    write32(at + 24, load<u32>(cpu, S_MXCSR))
    write32(at + 28, MXCSR_MASK)
  }
  const before = compact ? 0 : read64(at + 512)
  write64(at + 512, (before & ~<u64>load<u32>(cpu, S_RAX)) | components)
  if (compact) write64(at + 520, (<u64>1 << 63) | components)
}

export function xrstor(at: u64): void {
  if (xsaveTrapped(at)) return
  if (!probeRead(at, 576)) return
  const components = requested()
  const present = read64(at + 512)
  const layout = read64(at + 520)
  const compact = (layout & (<u64>1 << 63)) != 0
  if (present & ~<u64>load<u32>(cpu, S_XCR0) || (!compact && (layout != 0 || read64(at + 528) != 0))) {
    raiseGp()
    return
  }
  if (components & 2) {
    const mxcsr = read32(at + 24)
    if (mxcsr & ~MXCSR_MASK) {
      raiseGp()
      return
    }
    store<u32>(cpu, mxcsr, S_MXCSR)
    if (present & 2) restoreXmm(at)
    else memory.fill(cpu + S_XMM, 0, xmmCount() * XMM_STRIDE)
  }
  if (components & 1) {
    if (present & 1) restoreX87(at)
    else initX87()
  }
}
