/** Far jumps, calls and returns, SYSCALL and SYSENTER. Call gates and task switches are not offered: #GP. */
import { cpu } from './cpu'
import { drop, peek, push, setStackPointer } from './exec-stack'
import { raiseError, raiseGp, raiseUd, VECTOR_GP, VECTOR_NP, VECTOR_SS } from './fault'
import { getRflags, IF, putRflags, RF, TF, VM } from './flags'
import { interruptsChanged } from './interrupts'
import { isLongMode, isProtected, isVirtual8086, segmentAt, updateMode } from './mode'
import {
  ATTR_L,
  ATTR_PRESENT,
  descriptorAttributes,
  descriptorDpl,
  dropInnerSegments,
  fetchDescriptor,
  installCode,
  installRealCode,
  installSegment,
  markDescriptor,
  putNullSegment,
  putSegment,
} from './segmentation'
import {
  CS,
  MODE_64,
  MODE_SIZE_MASK,
  S_CPL,
  S_CSTAR,
  S_EFER,
  S_FAULT,
  S_LSTAR,
  S_MODE,
  S_R11,
  S_RCX,
  S_RDX,
  S_RFLAGS,
  S_RIP,
  S_RSP,
  S_SFMASK,
  S_STAR,
  S_TF_ARMED,
  S_SYSENTER_CS,
  S_SYSENTER_EIP,
  S_SYSENTER_ESP,
  SEG_SELECTOR,
  SS,
} from './state'
import { bumpEpoch } from './tlb'

function canonical(address: u64): bool {
  return <u64>((<i64>(address << 16)) >> 16) == address
}

function in64(): bool {
  return (load<u32>(cpu, S_MODE) & MODE_SIZE_MASK) == MODE_64
}

/** JMP and CALL to selector:offset. S_RIP is the return address. */
export function farTransfer(selector: u32, offset: u64, size: u32, call: bool): void {
  const c = cpu
  selector &= 0xffff
  const oldCs = load<u32>(segmentAt(CS), SEG_SELECTOR)
  const next = load<u64>(c, S_RIP)
  if (!isProtected() || isVirtual8086()) {
    if (call) {
      const sp = load<u64>(c, S_RSP)
      push(oldCs, size)
      push(next, size)
      if (load<u32>(c, S_FAULT)) {
        store<u64>(c, sp, S_RSP)
        return
      }
    }
    installRealCode(selector)
    store<u64>(c, size == 1 ? offset & 0xffff : offset & 0xffff_ffff, S_RIP)
    return
  }
  if ((selector & 0xfffc) == 0) {
    raiseGp()
    return
  }
  if (!fetchDescriptor(selector, VECTOR_GP)) return
  const attributes = descriptorAttributes()
  const dpl = descriptorDpl()
  const cpl = load<u32>(c, S_CPL)
  const conforming = (attributes & 4) != 0
  if ((attributes & 0x18) != 0x18 || (conforming ? dpl > cpl : dpl != cpl || (selector & 3) > cpl)) {
    raiseError(VECTOR_GP, selector & 0xfffc)
    return
  }
  if (!(attributes & ATTR_PRESENT)) {
    raiseError(VECTOR_NP, selector & 0xfffc)
    return
  }
  let target = size == 1 ? offset & 0xffff : size == 2 ? offset & 0xffff_ffff : offset
  if (isLongMode() && attributes & ATTR_L ? !canonical(target) : false) {
    raiseGp()
    return
  }
  if (call) {
    const sp = load<u64>(c, S_RSP)
    push(oldCs, size)
    push(next, size)
    if (load<u32>(c, S_FAULT)) {
      store<u64>(c, sp, S_RSP)
      return
    }
    if (!fetchDescriptor(selector, VECTOR_GP)) return
  }
  installCode(selector, cpl)
  store<u64>(c, target, S_RIP)
}

export function farReturn(size: u32, release: u64): void {
  const c = cpu
  const width: u64 = 1 << size
  const ip = peek(0, size)
  const cs = <u32>peek(width, size) & 0xffff
  if (load<u32>(c, S_FAULT)) return
  if (!isProtected() || isVirtual8086()) {
    drop(2 * width + release)
    installRealCode(cs)
    store<u64>(c, ip, S_RIP)
    return
  }
  const cpl = load<u32>(c, S_CPL)
  const rpl = cs & 3
  if ((cs & 0xfffc) == 0) {
    raiseGp()
    return
  }
  if (!fetchDescriptor(cs, VECTOR_GP)) return
  const attributes = descriptorAttributes()
  const dpl = descriptorDpl()
  if ((attributes & 0x18) != 0x18 || rpl < cpl || (attributes & 4 ? dpl > rpl : dpl != rpl)) {
    raiseError(VECTOR_GP, cs & 0xfffc)
    return
  }
  if (!(attributes & ATTR_PRESENT)) {
    raiseError(VECTOR_NP, cs & 0xfffc)
    return
  }
  if (isLongMode() && attributes & ATTR_L ? !canonical(ip) : false) {
    raiseGp()
    return
  }
  if (rpl == cpl) {
    drop(2 * width + release)
    installCode(cs, rpl)
    store<u64>(c, ip, S_RIP)
    return
  }
  const sp = peek(2 * width + release, size)
  const ss = <u32>peek(3 * width + release, size) & 0xffff
  if (load<u32>(c, S_FAULT)) return
  if ((ss & 0xfffc) == 0) {
    if (!(isLongMode() && attributes & ATTR_L) || rpl == 3) {
      raiseGp()
      return
    }
    putNullSegment(SS, ss)
  } else {
    if (!fetchDescriptor(ss, VECTOR_GP)) return
    if ((ss & 3) != rpl || descriptorDpl() != rpl || (descriptorAttributes() & 0x1a) != 0x12) {
      raiseError(VECTOR_GP, ss & 0xfffc)
      return
    }
    if (!(descriptorAttributes() & ATTR_PRESENT)) {
      raiseError(VECTOR_SS, ss & 0xfffc)
      return
    }
    markDescriptor(1)
    installSegment(SS, ss)
  }
  if (!fetchDescriptor(cs, VECTOR_GP)) return
  installCode(cs, rpl)
  setStackPointer(sp + release)
  dropInnerSegments()
  store<u64>(c, ip, S_RIP)
}

/** CS and SS of the fast system calls: flat, with no descriptor looked at. */
function flatCode(selector: u32, cpl: u32, long: bool): void {
  const base = load<u64>(segmentAt(CS))
  putSegment(CS, selector, 0, 0xffff_ffff, (long ? 0xa09b : 0xc09b) | (cpl << 5))
  if (base != 0) bumpEpoch()
}

function flatStack(selector: u32, cpl: u32): void {
  putSegment(SS, selector, 0, 0xffff_ffff, 0xc093 | (cpl << 5))
}

export function syscall(): void {
  const c = cpu
  if (!(load<u64>(c, S_EFER) & 1) || !isLongMode()) {
    raiseUd()
    return
  }
  const star = load<u64>(c, S_STAR)
  const selector = <u32>(star >> 32) & 0xfffc
  store<u64>(c, load<u64>(c, S_RIP), S_RCX)
  store<u64>(c, <u64>(getRflags() & ~RF), S_R11)
  store<u64>(c, in64() ? load<u64>(c, S_LSTAR) : load<u64>(c, S_CSTAR), S_RIP)
  putRflags(getRflags() & ~load<u32>(c, S_SFMASK) & ~RF)
  // With TF masked there is no trap after this instruction, and none is owed when TF comes back.
  if (!(load<u32>(c, S_RFLAGS) & TF)) store<u32>(c, 0, S_TF_ARMED)
  flatCode(selector, 0, true)
  flatStack(selector + 8, 0)
  store<u32>(c, 0, S_CPL)
  updateMode()
}

export function sysret(wide: bool): void {
  const c = cpu
  if (!(load<u64>(c, S_EFER) & 1) || !isLongMode()) {
    raiseUd()
    return
  }
  if (load<u32>(c, S_CPL) != 0 || (wide && !canonical(load<u64>(c, S_RCX)))) {
    raiseGp()
    return
  }
  const before = load<u32>(c, S_RFLAGS)
  const selector = <u32>(load<u64>(c, S_STAR) >> 48) & 0xffff
  putRflags((load<u32>(c, S_R11) & 0x3c_7fd7) | 2)
  if (wide) {
    flatCode((selector + 16) | 3, 3, true)
    store<u64>(c, load<u64>(c, S_RCX), S_RIP)
  } else {
    flatCode(selector | 3, 3, false)
    store<u64>(c, load<u64>(c, S_RCX) & 0xffff_ffff, S_RIP)
  }
  flatStack((selector + 8) | 3, 3)
  store<u32>(c, 3, S_CPL)
  updateMode()
  interruptsChanged(before)
}

export function sysenter(): void {
  const c = cpu
  const selector = load<u32>(c, S_SYSENTER_CS) & 0xfffc
  if (!isProtected() || selector == 0) {
    raiseGp()
    return
  }
  const long = isLongMode()
  store<u32>(c, load<u32>(c, S_RFLAGS) & ~(IF | VM), S_RFLAGS)
  flatCode(selector, 0, long)
  flatStack(selector + 8, 0)
  store<u32>(c, 0, S_CPL)
  updateMode()
  const sp = load<u64>(c, S_SYSENTER_ESP)
  const ip = load<u64>(c, S_SYSENTER_EIP)
  store<u64>(c, long ? sp : sp & 0xffff_ffff, S_RSP)
  store<u64>(c, long ? ip : ip & 0xffff_ffff, S_RIP)
}

export function sysexit(wide: bool): void {
  const c = cpu
  const selector = load<u32>(c, S_SYSENTER_CS) & 0xfffc
  if (!isProtected() || selector == 0 || load<u32>(c, S_CPL) != 0) {
    raiseGp()
    return
  }
  const rip = load<u64>(c, S_RDX)
  const rsp = load<u64>(c, S_RCX)
  if (wide && (!canonical(rip) || !canonical(rsp))) {
    raiseGp()
    return
  }
  flatCode((selector + (wide ? 32 : 16)) | 3, 3, wide)
  flatStack((selector + (wide ? 40 : 24)) | 3, 3)
  store<u32>(c, 3, S_CPL)
  updateMode()
  store<u64>(c, wide ? rsp : rsp & 0xffff_ffff, S_RSP)
  store<u64>(c, wide ? rip : rip & 0xffff_ffff, S_RIP)
}
