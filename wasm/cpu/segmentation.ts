/** Descriptors and segment registers (SDM vol. 3 chapters 3 and 5). */
import { cpu } from './cpu'
import { raiseError, raiseGp, VECTOR_GP, VECTOR_NP, VECTOR_SS } from './fault'
import { read32, read64, read8, write8 } from './memory'
import { enterSystem, isLongMode, isProtected, isVirtual8086, leaveSystem, segmentAt, updateMode } from './mode'
import {
  CS,
  FS,
  LDTR,
  MODE_64,
  MODE_SIZE_MASK,
  S_CPL,
  S_FAULT,
  S_GDT_BASE,
  S_GDT_LIMIT,
  S_MODE,
  SEG_ATTR,
  SEG_BASE,
  SEG_LIMIT,
  SEG_NULL,
  SEG_SELECTOR,
  SS,
  TR,
} from './state'
import { bumpEpoch } from './tlb'

/** The descriptor that `fetchDescriptor` read, taken apart. */
export let descriptor: u64 = 0
export let descriptorAddress: u64 = 0

export const ATTR_PRESENT: u32 = 0x80
export const ATTR_S: u32 = 0x10
export const ATTR_L: u32 = 0x2000
export const ATTR_DB: u32 = 0x4000

export function descriptorAttributes(): u32 {
  return <u32>(descriptor >> 40) & 0xf0ff
}
export function descriptorBase(): u64 {
  return ((descriptor >> 16) & 0xff_ffff) | ((descriptor >> 56) << 24)
}
export function descriptorLimit(): u32 {
  const limit = <u32>(descriptor & 0xffff) | (<u32>(descriptor >> 32) & 0xf_0000)
  return descriptor & (1 << 55) ? (limit << 12) | 0xfff : limit
}
@inline
export function descriptorDpl(): u32 {
  return (<u32>(descriptor >> 45)) & 3
}

/** Reads a descriptor; false with `vector`(selector) raised when it is outside its table or faults. */
export function fetchDescriptor(selector: u32, vector: u32): bool {
  const c = cpu
  let base: u64
  let limit: u32
  if (selector & 4) {
    const ldt = segmentAt(LDTR)
    if (load<u32>(ldt, SEG_NULL)) {
      raiseError(vector, selector & 0xfffc)
      return false
    }
    base = load<u64>(ldt, SEG_BASE)
    limit = load<u32>(ldt, SEG_LIMIT)
  } else {
    base = load<u64>(c, S_GDT_BASE)
    limit = load<u32>(c, S_GDT_LIMIT)
  }
  const offset = selector & 0xfff8
  if (offset + 7 > limit) {
    raiseError(vector, selector & 0xfffc)
    return false
  }
  const before = enterSystem()
  descriptorAddress = base + offset
  descriptor = read64(descriptorAddress)
  leaveSystem(before)
  return !load<u32>(c, S_FAULT)
}

/** Upper half of a 16-byte system descriptor's base; false when outside the table. */
export function fetchUpperBase(selector: u32): u64 {
  if ((selector & 0xfff8) + 15 > load<u32>(cpu, S_GDT_LIMIT)) {
    raiseError(VECTOR_GP, selector & 0xfffc)
    return 0
  }
  const before = enterSystem()
  const upper = read32(descriptorAddress + 8)
  leaveSystem(before)
  return <u64>upper << 32
}

/** Sets the accessed bit (or the busy bit of a TSS: `bit` 2) in memory if it is clear. */
export function markDescriptor(bit: u32): void {
  if (<u32>(descriptor >> 40) & bit) return
  const before = enterSystem()
  write8(descriptorAddress + 5, read8(descriptorAddress + 5) | bit)
  leaveSystem(before)
  descriptor |= <u64>bit << 40
}

/** Fills a segment register from `descriptor`. */
export function installSegment(segment: u32, selector: u32): void {
  const at = segmentAt(segment)
  store<u64>(at, descriptorBase(), SEG_BASE)
  store<u32>(at, descriptorLimit(), SEG_LIMIT)
  store<u32>(at, descriptorAttributes(), SEG_ATTR)
  store<u32>(at, selector & 0xffff, SEG_SELECTOR)
  store<u32>(at, 0, SEG_NULL)
}

export function putSegment(segment: u32, selector: u32, base: u64, limit: u32, attributes: u32): void {
  const at = segmentAt(segment)
  store<u64>(at, base, SEG_BASE)
  store<u32>(at, limit, SEG_LIMIT)
  store<u32>(at, attributes, SEG_ATTR)
  store<u32>(at, selector, SEG_SELECTOR)
  store<u32>(at, 0, SEG_NULL)
}

export function putNullSegment(segment: u32, selector: u32): void {
  const at = segmentAt(segment)
  // FS and GS keep no base either; MSRs set it afterwards.
  store<u64>(at, 0, SEG_BASE)
  store<u32>(at, 0, SEG_LIMIT)
  store<u32>(at, segment == SS ? 0x4093 | ((selector & 3) << 5) : 0, SEG_ATTR)
  store<u32>(at, selector & 0xffff, SEG_SELECTOR)
  store<u32>(at, 1, SEG_NULL)
}

/** MOV, POP or Lxx to ES, SS, DS, FS, GS. Nothing changes when it faults. */
export function loadSegment(segment: u32, selector: u32): void {
  const c = cpu
  selector &= 0xffff
  if (!isProtected() || isVirtual8086()) {
    const at = segmentAt(segment)
    store<u64>(at, <u64>selector << 4, SEG_BASE)
    store<u32>(at, selector, SEG_SELECTOR)
    store<u32>(at, 0, SEG_NULL)
    if (isVirtual8086()) {
      store<u32>(at, 0xffff, SEG_LIMIT)
      store<u32>(at, 0xf3, SEG_ATTR)
    }
    updateMode()
    return
  }
  const cpl = load<u32>(c, S_CPL)
  const rpl = selector & 3
  if ((selector & 0xfffc) == 0) {
    if (segment == SS && ((load<u32>(c, S_MODE) & MODE_SIZE_MASK) != MODE_64 || cpl == 3 || rpl != cpl)) {
      raiseGp()
      return
    }
    putNullSegment(segment, selector)
    updateMode()
    return
  }
  if (!fetchDescriptor(selector, VECTOR_GP)) return
  const attributes = descriptorAttributes()
  const dpl = descriptorDpl()
  if (segment == SS) {
    if (rpl != cpl || dpl != cpl || (attributes & 0x1a) != 0x12) {
      raiseError(VECTOR_GP, selector & 0xfffc)
      return
    }
    if (!(attributes & ATTR_PRESENT)) {
      raiseError(VECTOR_SS, selector & 0xfffc)
      return
    }
  } else {
    const code = (attributes & 8) != 0
    // Data or readable code; privilege matters unless it is conforming code.
    let ok = (attributes & ATTR_S) != 0 && (!code || (attributes & 2) != 0)
    if (!(code && attributes & 4)) ok = ok && rpl <= dpl && cpl <= dpl
    if (!ok) {
      raiseError(VECTOR_GP, selector & 0xfffc)
      return
    }
    if (!(attributes & ATTR_PRESENT)) {
      raiseError(VECTOR_NP, selector & 0xfffc)
      return
    }
  }
  markDescriptor(1)
  if (load<u32>(c, S_FAULT)) return
  installSegment(segment, selector)
  updateMode()
}

/** Sets CS from `descriptor` and the privilege level with it. */
export function installCode(selector: u32, cpl: u32): void {
  markDescriptor(1)
  const base = load<u64>(segmentAt(CS), SEG_BASE)
  installSegment(CS, (selector & 0xfffc) | cpl)
  if (load<u64>(segmentAt(CS), SEG_BASE) != base) bumpEpoch()
  store<u32>(cpu, cpl, S_CPL)
  updateMode()
}

/** Real mode and virtual 8086: CS base follows the selector. */
export function installRealCode(selector: u32): void {
  const at = segmentAt(CS)
  store<u64>(at, <u64>(selector & 0xffff) << 4, SEG_BASE)
  store<u32>(at, selector & 0xffff, SEG_SELECTOR)
  bumpEpoch()
  updateMode()
}

/** After a return to an outer ring: data segments that it may not use become null. */
export function dropInnerSegments(): void {
  const cpl = load<u32>(cpu, S_CPL)
  for (let segment: u32 = 0; segment <= 5; segment++) {
    if (segment == CS || segment == SS) continue
    const at = segmentAt(segment)
    const attributes = load<u32>(at, SEG_ATTR)
    if (load<u32>(at, SEG_NULL)) continue
    const conforming = (attributes & 0x1c) == 0x1c
    if (!conforming && ((attributes >> 5) & 3) < cpl) {
      const base = load<u64>(at, SEG_BASE)
      putNullSegment(segment, 0)
      if (segment >= <u32>FS) store<u64>(at, base, SEG_BASE)
    }
  }
}

export function loadLdt(selector: u32): void {
  selector &= 0xffff
  if ((selector & 0xfffc) == 0) {
    putNullSegment(LDTR, selector)
    return
  }
  if (selector & 4) {
    raiseError(VECTOR_GP, selector & 0xfffc)
    return
  }
  if (!fetchDescriptor(selector, VECTOR_GP)) return
  if ((descriptorAttributes() & 0x1f) != 2) {
    raiseError(VECTOR_GP, selector & 0xfffc)
    return
  }
  if (!(descriptorAttributes() & ATTR_PRESENT)) {
    raiseError(VECTOR_NP, selector & 0xfffc)
    return
  }
  const upper = isLongMode() ? fetchUpperBase(selector) : 0
  if (load<u32>(cpu, S_FAULT)) return
  installSegment(LDTR, selector)
  store<u64>(segmentAt(LDTR), descriptorBase() | upper, SEG_BASE)
}

export function loadTask(selector: u32): void {
  selector &= 0xffff
  if ((selector & 0xfffc) == 0 || selector & 4) {
    raiseError(VECTOR_GP, selector & 0xfffc)
    return
  }
  if (!fetchDescriptor(selector, VECTOR_GP)) return
  const type = descriptorAttributes() & 0x1f
  if (type != 9 && !(type == 1 && !isLongMode())) {
    raiseError(VECTOR_GP, selector & 0xfffc)
    return
  }
  if (!(descriptorAttributes() & ATTR_PRESENT)) {
    raiseError(VECTOR_NP, selector & 0xfffc)
    return
  }
  const upper = isLongMode() ? fetchUpperBase(selector) : 0
  if (load<u32>(cpu, S_FAULT)) return
  markDescriptor(2)
  if (load<u32>(cpu, S_FAULT)) return
  installSegment(TR, selector)
  store<u64>(segmentAt(TR), descriptorBase() | upper, SEG_BASE)
}
