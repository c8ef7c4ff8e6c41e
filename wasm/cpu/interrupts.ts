/** Delivery of exceptions and interrupts through the IDT (SDM vol. 3 chapter 6), and IRET. */
import { noteDeliverable } from './apic'
import { cpu } from './cpu'
import { drop, peek, push, setStackPointer } from './exec-stack'
import {
  raiseError,
  raiseGp,
  VECTOR_DB,
  VECTOR_DE,
  VECTOR_DF,
  VECTOR_GP,
  VECTOR_NP,
  VECTOR_PF,
  VECTOR_SS,
  VECTOR_TS,
} from './fault'
import { getRflags, IF, IOPL_MASK, NT, putRflags, RF, TF, VM, AC, ID, ARITHMETIC, DF } from './flags'
import { read16, read32, read64, write64 } from './memory'
import { enterSystem, isLongMode, isProtected, isVirtual8086, leaveSystem, segmentAt, updateMode } from './mode'
import {
  ATTR_DB,
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
} from './segmentation'
import {
  CS,
  EXIT_SHUTDOWN,
  S_COUNT_EXCEPTIONS,
  S_CPL,
  S_CR2,
  S_DR6,
  S_EXIT,
  S_FAULT,
  S_FAULT_ADDRESS,
  S_FAULT_ERROR,
  S_FAULT_HAS_ERROR,
  S_FAULT_VECTOR,
  S_IDT_BASE,
  S_IDT_LIMIT,
  S_NMI_MASKED,
  S_RFLAGS,
  S_RIP,
  S_RSP,
  S_TF_ARMED,
  SEG_BASE,
  SEG_LIMIT,
  SEG_SELECTOR,
  SS,
  TR,
} from './state'

/** What is being delivered, for error codes' EXT bit. */
let external: u32 = 0

/** Delivers the fault in S_FAULT_*; false when that ended in a triple fault (S_EXIT is set). */
export function deliverFault(): bool {
  const c = cpu
  store<u64>(c, load<u64>(c, S_COUNT_EXCEPTIONS) + 1, S_COUNT_EXCEPTIONS)
  store<u32>(c, 0, S_TF_ARMED)
  let vector = load<u32>(c, S_FAULT_VECTOR)
  let error = load<u32>(c, S_FAULT_ERROR)
  let hasError = load<u32>(c, S_FAULT_HAS_ERROR) != 0
  for (;;) {
    store<u32>(c, 0, S_FAULT)
    if (vector == VECTOR_PF) store<u64>(c, load<u64>(c, S_FAULT_ADDRESS), S_CR2)
    if (vector == VECTOR_DB) store<u64>(c, load<u64>(c, S_DR6) | 0xffff_0ff0, S_DR6)
    // Faults push RF so that an instruction breakpoint does not hit again.
    external = 1
    if (deliver(vector, hasError, error, false, vector != VECTOR_DB)) return true
    // Delivering faulted in its turn.
    const second = load<u32>(c, S_FAULT_VECTOR)
    if (vector == VECTOR_DF) {
      store<u32>(c, 0, S_FAULT)
      store<u32>(c, EXIT_SHUTDOWN, S_EXIT)
      return false
    }
    if (contributory(vector) ? contributory(second) : vector == VECTOR_PF && (contributory(second) || second == VECTOR_PF)) {
      vector = VECTOR_DF
      error = 0
      hasError = true
    } else {
      vector = second
      error = load<u32>(c, S_FAULT_ERROR)
      hasError = load<u32>(c, S_FAULT_HAS_ERROR) != 0
    }
  }
  return false
}

function contributory(vector: u32): bool {
  return vector == VECTOR_DE || (vector >= VECTOR_TS && vector <= VECTOR_GP)
}

/** External interrupts, NMI and INT n: true when the handler is entered; else a fault is set. */
export function deliverInterrupt(vector: u32, software: bool): bool {
  external = software ? 0 : 1
  return deliver(vector, false, 0, software, false)
}

/** Enters the handler. On failure nothing but the fault is set. */
function deliver(vector: u32, hasError: bool, error: u32, software: bool, setRf: bool): bool {
  if (!isProtected()) return deliverReal(vector)
  if (isLongMode()) return deliverLong(vector, hasError, error, software, setRf)
  return deliverProtected(vector, hasError, error, software, setRf)
}

function deliverReal(vector: u32): bool {
  const c = cpu
  if (vector * 4 + 3 > load<u32>(c, S_IDT_LIMIT)) {
    raiseError(VECTOR_GP, 0)
    return false
  }
  const entry = read32(load<u64>(c, S_IDT_BASE) + vector * 4)
  const sp = load<u64>(c, S_RSP)
  push(<u64>(getRflags() & 0xffff), 1)
  push(load<u32>(segmentAt(CS), SEG_SELECTOR), 1)
  push(load<u64>(c, S_RIP), 1)
  if (load<u32>(c, S_FAULT)) {
    store<u64>(c, sp, S_RSP)
    return false
  }
  store<u32>(c, load<u32>(c, S_RFLAGS) & ~(IF | TF | AC), S_RFLAGS)
  installRealCode(entry >> 16)
  store<u64>(c, <u64>(entry & 0xffff), S_RIP)
  return true
}

function deliverLong(vector: u32, hasError: bool, error: u32, software: bool, setRf: bool): bool {
  const c = cpu
  const gateError = (vector << 3) | 2 | external
  if (vector * 16 + 15 > load<u32>(c, S_IDT_LIMIT)) {
    raiseError(VECTOR_GP, gateError)
    return false
  }
  const cpl = load<u32>(c, S_CPL)
  const before = enterSystem()
  const at = load<u64>(c, S_IDT_BASE) + vector * 16
  const low = read64(at)
  const high = read64(at + 8)
  leaveSystem(before)
  if (load<u32>(c, S_FAULT)) return false
  const type = <u32>(low >> 40) & 0x1f
  if ((type != 0xe && type != 0xf) || (software && (<u32>(low >> 45) & 3) < cpl)) {
    raiseError(VECTOR_GP, gateError)
    return false
  }
  if (!(<u32>(low >> 40) & ATTR_PRESENT)) {
    raiseError(VECTOR_NP, gateError)
    return false
  }
  const selector = <u32>(low >> 16) & 0xffff
  const target = (low & 0xffff) | ((low >> 32) & 0xffff_0000) | (high << 32)
  if ((selector & 0xfffc) == 0) {
    raiseError(VECTOR_GP, external)
    return false
  }
  if (!fetchDescriptor(selector, VECTOR_GP)) return false
  const attributes = descriptorAttributes()
  const dpl = descriptorDpl()
  if ((attributes & 0x18) != 0x18 || dpl > cpl || !(attributes & ATTR_L) || attributes & ATTR_DB) {
    raiseError(VECTOR_GP, (selector & 0xfffc) | external)
    return false
  }
  if (!(attributes & ATTR_PRESENT)) {
    raiseError(VECTOR_NP, (selector & 0xfffc) | external)
    return false
  }
  const newCpl = attributes & 4 ? cpl : dpl
  const ist = <u32>(low >> 32) & 7
  let sp = load<u64>(c, S_RSP)
  if (ist || newCpl < cpl) {
    const offset: u32 = ist ? 36 + (ist - 1) * 8 : 4 + newCpl * 8
    if (offset + 7 > load<u32>(segmentAt(TR), SEG_LIMIT)) {
      raiseError(VECTOR_TS, (load<u32>(segmentAt(TR), SEG_SELECTOR) & 0xfffc) | external)
      return false
    }
    const outer = enterSystem()
    sp = read64(load<u64>(segmentAt(TR), SEG_BASE) + offset)
    leaveSystem(outer)
    if (load<u32>(c, S_FAULT)) return false
    if (<u64>((<i64>(sp << 16)) >> 16) != sp) {
      raiseError(VECTOR_SS, external)
      return false
    }
  }
  sp &= ~<u64>15
  let flags = getRflags()
  if (setRf) flags |= RF
  // The handler's stack is written with its privilege.
  const user = newCpl == 3 ? before : enterSystem()
  write64(sp - 8, load<u32>(segmentAt(SS), SEG_SELECTOR))
  write64(sp - 16, load<u64>(c, S_RSP))
  write64(sp - 24, <u64>flags)
  write64(sp - 32, load<u32>(segmentAt(CS), SEG_SELECTOR))
  write64(sp - 40, load<u64>(c, S_RIP))
  sp -= 40
  if (hasError) {
    sp -= 8
    write64(sp, <u64>error)
  }
  leaveSystem(user)
  if (load<u32>(c, S_FAULT)) return false
  // From here on nothing can fail but the accessed bit's store, which a kernel's GDT does not refuse.
  if (newCpl != cpl) putNullSegment(SS, newCpl)
  store<u64>(c, sp, S_RSP)
  let rest = load<u32>(c, S_RFLAGS) & ~(TF | NT | RF | VM)
  if (type == 0xe) rest &= ~IF
  store<u32>(c, rest, S_RFLAGS)
  installCode(selector, newCpl)
  store<u64>(c, target, S_RIP)
  return true
}

function deliverProtected(vector: u32, hasError: bool, error: u32, software: bool, setRf: bool): bool {
  const c = cpu
  const gateError = (vector << 3) | 2 | external
  if (vector * 8 + 7 > load<u32>(c, S_IDT_LIMIT)) {
    raiseError(VECTOR_GP, gateError)
    return false
  }
  const cpl = load<u32>(c, S_CPL)
  const before = enterSystem()
  const gate = read64(load<u64>(c, S_IDT_BASE) + vector * 8)
  leaveSystem(before)
  if (load<u32>(c, S_FAULT)) return false
  const type = <u32>(gate >> 40) & 0x1f
  // 6, 7: 16-bit; 14, 15: 32-bit. Task gates are not offered.
  if ((type & 0x16) != 6 || (software && (<u32>(gate >> 45) & 3) < cpl)) {
    raiseError(VECTOR_GP, gateError)
    return false
  }
  if (!(<u32>(gate >> 40) & ATTR_PRESENT)) {
    raiseError(VECTOR_NP, gateError)
    return false
  }
  const size: u32 = type & 8 ? 2 : 1
  const selector = <u32>(gate >> 16) & 0xffff
  let target = (gate & 0xffff) | ((gate >> 32) & 0xffff_0000)
  if (size == 1) target &= 0xffff
  if ((selector & 0xfffc) == 0) {
    raiseError(VECTOR_GP, external)
    return false
  }
  if (!fetchDescriptor(selector, VECTOR_GP)) return false
  const attributes = descriptorAttributes()
  const dpl = descriptorDpl()
  if ((attributes & 0x18) != 0x18 || dpl > cpl) {
    raiseError(VECTOR_GP, (selector & 0xfffc) | external)
    return false
  }
  if (!(attributes & ATTR_PRESENT)) {
    raiseError(VECTOR_NP, (selector & 0xfffc) | external)
    return false
  }
  const newCpl = attributes & 4 ? cpl : dpl
  let flags = getRflags()
  if (setRf) flags |= RF
  const oldSs = load<u32>(segmentAt(SS), SEG_SELECTOR)
  const oldSp = load<u64>(c, S_RSP)
  const oldCs = load<u32>(segmentAt(CS), SEG_SELECTOR)
  const oldRip = load<u64>(c, S_RIP)
  if (newCpl < cpl) {
    const wide = (load<u32>(segmentAt(TR), SEG_LIMIT) >= 103) || (taskIs32())
    const outer = enterSystem()
    const task = load<u64>(segmentAt(TR), SEG_BASE)
    const sp = wide ? read32(task + 4 + newCpl * 8) : read16(task + 2 + newCpl * 4)
    const ss = wide ? read16(task + 8 + newCpl * 8) : read16(task + 4 + newCpl * 4)
    leaveSystem(outer)
    if (load<u32>(c, S_FAULT)) return false
    if (!fetchDescriptor(ss, VECTOR_TS)) return false
    if ((ss & 3) != newCpl || descriptorDpl() != newCpl || (descriptorAttributes() & 0x1a) != 0x12) {
      raiseError(VECTOR_TS, (ss & 0xfffc) | external)
      return false
    }
    if (!(descriptorAttributes() & ATTR_PRESENT)) {
      raiseError(VECTOR_SS, (ss & 0xfffc) | external)
      return false
    }
    markDescriptor(1)
    installSegment(SS, ss)
    store<u32>(c, newCpl, S_CPL)
    updateMode()
    setStackPointer(<u64>sp)
    push(<u64>oldSs, size)
    push(oldSp, size)
  }
  push(<u64>flags, size)
  push(<u64>oldCs, size)
  push(oldRip, size)
  if (hasError) push(<u64>error, size)
  if (load<u32>(c, S_FAULT)) {
    store<u64>(c, oldSp, S_RSP)
    if (newCpl < cpl) {
      const fault = load<u32>(c, S_FAULT)
      store<u32>(c, 0, S_FAULT)
      if (fetchDescriptor(oldSs, VECTOR_TS)) installSegment(SS, oldSs)
      store<u32>(c, fault, S_FAULT)
      store<u32>(c, cpl, S_CPL)
      updateMode()
    }
    return false
  }
  if (!fetchDescriptor(selector, VECTOR_GP)) return false
  let rest = load<u32>(c, S_RFLAGS) & ~(TF | NT | RF | VM)
  if (!(type & 1)) rest &= ~IF
  store<u32>(c, rest, S_RFLAGS)
  installCode(selector, newCpl)
  store<u64>(c, target, S_RIP)
  return true
}

function taskIs32(): bool {
  return (load<u32>(segmentAt(TR), 12) & 8) != 0
}

/** Whether interrupts may have become deliverable: look again at the next block head. */
@inline
export function interruptsChanged(before: u32): void {
  if (!(before & IF) && load<u32>(cpu, S_RFLAGS) & IF) noteDeliverable()
}

/** The RFLAGS bits that POPF and IRET may change at this privilege. */
export function popFlags(value: u32, size: u32): void {
  const c = cpu
  const before = load<u32>(c, S_RFLAGS)
  const cpl = load<u32>(c, S_CPL)
  let mask = ARITHMETIC | TF | DF | NT | AC | ID
  if (size == 1) mask &= 0xffff
  if (cpl == 0) mask |= IOPL_MASK
  if (cpl <= (before & IOPL_MASK) >> 12) mask |= IF
  putRflags((getRflags() & ~mask & ~RF) | (value & mask))
  if ((before ^ load<u32>(c, S_RFLAGS)) & TF) updateMode()
  interruptsChanged(before)
}

/** IRET with operand size `size` (1, 2, 3). S_RIP is changed on success. */
export function returnFromInterrupt(size: u32): void {
  const c = cpu
  store<u32>(c, 0, S_NMI_MASKED)
  const width: u64 = 1 << size
  if (!isProtected() || isVirtual8086()) {
    const ip = peek(0, size)
    const cs = <u32>peek(width, size)
    const flags = <u32>peek(2 * width, size)
    if (load<u32>(c, S_FAULT)) return
    drop(3 * width)
    popFlags(flags, size)
    installRealCode(cs)
    store<u64>(c, ip & 0xffff_ffff, S_RIP)
    return
  }
  const long = isLongMode()
  if (load<u32>(c, S_RFLAGS) & NT) {
    // A nested task: not offered, and #GP(0) in long mode.
    raiseGp()
    return
  }
  const ip = peek(0, size)
  const cs = <u32>peek(width, size) & 0xffff
  const flags = <u32>peek(2 * width, size)
  if (load<u32>(c, S_FAULT)) return
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
  const to64 = long && (attributes & ATTR_L) != 0
  if (to64 ? <u64>((<i64>(ip << 16)) >> 16) != ip : false) {
    raiseGp()
    return
  }
  // In 64-bit code SS:RSP are popped always.
  const from64 = long && (load<u32>(segmentAt(CS), 12) & ATTR_L) != 0
  let sp: u64 = 0
  let ss: u32 = 0
  const popStack = from64 || rpl > cpl
  if (popStack) {
    sp = peek(3 * width, size)
    ss = <u32>peek(4 * width, size) & 0xffff
    if (load<u32>(c, S_FAULT)) return
    if ((ss & 0xfffc) == 0) {
      if (!to64 || rpl == 3 || (ss & 3) != rpl) {
        raiseGp()
        return
      }
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
    }
  }
  // RFLAGS are taken with the privilege before the return.
  const before = load<u32>(c, S_RFLAGS)
  let mask = ARITHMETIC | TF | DF | NT | AC | ID | RF
  if (size == 1) mask &= 0xffff
  if (cpl == 0) mask |= IOPL_MASK
  if (cpl <= (before & IOPL_MASK) >> 12) mask |= IF
  const newFlags = (getRflags() & ~mask) | (flags & mask)
  if (popStack) {
    if ((ss & 0xfffc) == 0) putNullSegment(SS, ss)
    else installSegment(SS, ss)
  } else drop(3 * width)
  putRflags(newFlags)
  if (!fetchDescriptor(cs, VECTOR_GP)) return
  installCode(cs, rpl)
  if (popStack) setStackPointer(sp)
  if (rpl > cpl) dropInnerSegments()
  store<u64>(c, size == 1 ? ip & 0xffff : to64 ? ip : ip & 0xffff_ffff, S_RIP)
  interruptsChanged(before)
}
