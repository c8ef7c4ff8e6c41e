/** Model-specific registers. Unknown ones are #GP, which kernels probe for. */
import { apicReadMsr, apicWriteMsr, setApicBase, setTscDeadline, tscDeadline } from './apic'
import { cpu } from './cpu'
import { raiseGp } from './fault'
import { segmentAt, updateMode } from './mode'
import {
  FS,
  GS,
  S_APIC_BASE,
  S_CR0,
  S_CSTAR,
  S_EFER,
  S_KERNEL_GS_BASE,
  S_LSTAR,
  S_MISC_ENABLE,
  S_MTRR_DEF,
  S_MTRR_FIX,
  S_MTRR_VAR,
  S_PAT,
  S_SFMASK,
  S_SPEC_CTRL,
  S_STAR,
  S_SYSENTER_CS,
  S_SYSENTER_EIP,
  S_SYSENTER_ESP,
  S_TSC_ADJUST,
  S_TSC_AUX,
  S_TSC_OFFSET,
  SEG_BASE,
} from './state'
import { readTsc } from './time'
import { flushTlbAll } from './tlb'

/**
 * ARCH_CAPABILITIES: not susceptible to Meltdown, MDS, TAA, SSB, L1TF, MMIO stale data, GDS, RFDS, BHI, ITS, and with enhanced IBRS.
 * There is no speculation here, and a kernel that believes it runs without page-table isolation and retpolines.
 */
const ARCH_CAPABILITIES: u64 = 0x4000_0000_0d10_e17b

function canonical(address: u64): bool {
  return <u64>((<i64>(address << 16)) >> 16) == address
}

/** State offset of registers that are just stored, or 0. */
function plain(msr: u32): usize {
  switch (msr) {
    case 0xc000_0081:
      return S_STAR
    case 0xc000_0084:
      return S_SFMASK
    case 0xc000_0103:
      return S_TSC_AUX
    case 0x174:
      return S_SYSENTER_CS
    case 0x277:
      return S_PAT
    case 0x1a0:
      return S_MISC_ENABLE
    case 0x2ff:
      return S_MTRR_DEF
    case 0x48:
      return S_SPEC_CTRL
    case 0x250:
      return S_MTRR_FIX
    case 0x258:
      return S_MTRR_FIX + 8
    case 0x259:
      return S_MTRR_FIX + 16
  }
  if (msr >= 0x268 && msr <= 0x26f) return S_MTRR_FIX + 24 + ((msr - 0x268) << 3)
  if (msr >= 0x200 && msr <= 0x20f) return S_MTRR_VAR + ((msr - 0x200) << 3)
  return 0
}

/** Registers that hold a linear address. */
function address(msr: u32): usize {
  switch (msr) {
    case 0xc000_0082:
      return S_LSTAR
    case 0xc000_0083:
      return S_CSTAR
    case 0xc000_0102:
      return S_KERNEL_GS_BASE
    case 0x175:
      return S_SYSENTER_ESP
    case 0x176:
      return S_SYSENTER_EIP
    default:
      return 0
  }
}

export function readMsr(msr: u32): u64 {
  const c = cpu
  let at = plain(msr)
  if (!at) at = address(msr)
  if (at) return load<u64>(c + at)
  if (msr >= 0x800 && msr <= 0x8ff) return apicReadMsr(msr)
  switch (msr) {
    case 0x10:
      return readTsc()
    case 0x1b:
      return load<u64>(c, S_APIC_BASE)
    case 0x3b:
      return load<u64>(c, S_TSC_ADJUST)
    case 0x6e0:
      return tscDeadline()
    case 0xc000_0080:
      return load<u64>(c, S_EFER)
    case 0xc000_0100:
      return load<u64>(segmentAt(FS), SEG_BASE)
    case 0xc000_0101:
      return load<u64>(segmentAt(GS), SEG_BASE)
    case 0x10a:
      return ARCH_CAPABILITIES
    case 0x8b:
      return <u64>0xb4 << 32 // microcode revision
    case 0xfe:
      return 0x508 // MTRR capabilities: 8 variable, fixed, write-combining
    case 0x3a:
      return 1 // feature control, locked
    case 0x17:
    case 0x1d9:
    case 0x49:
    case 0x10b:
    case 0x79:
    case 0x140:
    case 0xce:
    case 0x34:
    case 0x33:
    case 0x606:
      return 0
    default:
      raiseGp()
      return 0
  }
}

export function writeMsr(msr: u32, value: u64): void {
  const c = cpu
  let at = plain(msr)
  if (at) {
    store<u64>(c + at, value)
    return
  }
  at = address(msr)
  if (at) {
    if (!canonical(value)) raiseGp()
    else store<u64>(c + at, value)
    return
  }
  if (msr >= 0x800 && msr <= 0x8ff) {
    apicWriteMsr(msr, value)
    return
  }
  switch (msr) {
    case 0x10: {
      const before = load<i64>(c, S_TSC_OFFSET)
      store<i64>(c, before + <i64>(value - readTsc()), S_TSC_OFFSET)
      store<i64>(c, load<i64>(c, S_TSC_ADJUST) + load<i64>(c, S_TSC_OFFSET) - before, S_TSC_ADJUST)
      setTscDeadline(tscDeadline())
      return
    }
    case 0x3b:
      store<i64>(c, load<i64>(c, S_TSC_OFFSET) + <i64>value - load<i64>(c, S_TSC_ADJUST), S_TSC_OFFSET)
      store<u64>(c, value, S_TSC_ADJUST)
      setTscDeadline(tscDeadline())
      return
    case 0x1b:
      setApicBase(value)
      return
    case 0x6e0:
      setTscDeadline(value)
      return
    case 0xc000_0080:
      writeEfer(value)
      return
    case 0xc000_0100:
    case 0xc000_0101:
      if (!canonical(value)) raiseGp()
      else store<u64>(segmentAt(msr == 0xc000_0100 ? FS : GS), value, SEG_BASE)
      return
    case 0x8b:
    case 0x79:
    case 0x1d9:
    case 0x49:
    case 0x10b:
    case 0x17:
    case 0x140:
      return
    default:
      raiseGp()
  }
}

const EFER_WRITABLE: u64 = 0xd01 // SCE LME NXE (LMA follows)

function writeEfer(value: u64): void {
  const c = cpu
  const before = load<u64>(c, S_EFER)
  if (value & ~(EFER_WRITABLE | 0x400)) {
    raiseGp()
    return
  }
  if ((before ^ value) & 0x100 && load<u64>(c, S_CR0) & 0x8000_0000) {
    raiseGp()
    return
  }
  store<u64>(c, (value & ~<u64>0x400) | (before & 0x400), S_EFER)
  flushTlbAll()
  updateMode()
}
