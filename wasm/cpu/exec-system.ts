/** Privileged, far and serialising instructions. S_RIP is already the next instruction's; a fault puts it back. */
import { noteDeliverable, readCr8, writeCr8 } from './apic'
import { cpu } from './cpu'
import { effectiveSlow, sum } from './ea'
import { getAt, putAt, readSized } from './exec-integer'
import { readSelector } from './exec-misc'
import { drop, peek } from './exec-stack'
import { farReturn, farTransfer, syscall, sysenter, sysexit, sysret } from './far'
import { raise, raiseGp, raiseUd, VECTOR_DB } from './fault'
import { IF, IOPL_MASK, overflow, VM } from './flags'
import { deliverInterrupt, popFlags, returnFromInterrupt } from './interrupts'
import { read16, read32, read64 } from './memory'
import { isLongMode, isProtected, isVirtual8086, segmentAt, updateMode } from './mode'
import { readMsr, writeMsr } from './msr'
import * as O from './ops'
import { portAllowed, readPort, writePort } from './ports'
import { loadLdt, loadSegment, loadTask } from './segmentation'
import {
  ATTN_HALT,
  ATTN_INTERRUPT,
  CS,
  GS,
  MODE_64,
  MODE_SIZE_MASK,
  S_ATTENTION,
  S_CPL,
  S_CR0,
  S_CR2,
  S_CR3,
  S_CR4,
  S_DR0,
  S_DR6,
  S_DR7,
  S_EFER,
  S_FAULT,
  S_GDT_BASE,
  S_GDT_LIMIT,
  S_IDT_BASE,
  S_IDT_LIMIT,
  S_KERNEL_GS_BASE,
  S_MODE,
  S_MP_STATE,
  S_RAX,
  S_RCX,
  S_RDX,
  S_RFLAGS,
  S_SHADOW,
  S_TSC_AUX,
  S_XCR0,
  SEG_ATTR,
  SEG_BASE,
  SS,
} from './state'
import { readTsc } from './time'
import { flushTlbAll, flushTlbLocal, flushTlbPage } from './tlb'

function address(op: usize, bytes: u32): u64 {
  return load<u8>(op, O.OP_EA) == 0 ? sum(cpu, op) : effectiveSlow(op, bytes)
}

@inline
function in64(): bool {
  return (load<u32>(cpu, S_MODE) & MODE_SIZE_MASK) == MODE_64
}

/** False (and #GP raised) unless at privilege level 0. */
function privileged(): bool {
  if (load<u32>(cpu, S_CPL) == 0) return true
  raiseGp()
  return false
}

/** CLI and STI: IOPL decides. */
function mayChangeIf(): bool {
  const flags = load<u32>(cpu, S_RFLAGS)
  if (!isProtected() || load<u32>(cpu, S_CPL) <= (flags & IOPL_MASK) >> 12) return true
  raiseGp()
  return false
}

function setEdxEax(value: u64): void {
  store<u64>(cpu, value & 0xffff_ffff, S_RAX)
  store<u64>(cpu, value >> 32, S_RDX)
}
function edxEax(): u64 {
  return (<u64>load<u32>(cpu, S_RDX) << 32) | load<u32>(cpu, S_RAX)
}

export function systemOperation(op: usize): void {
  const c = cpu
  const size = <u32>load<u8>(op, O.OP_SIZE)
  switch (<u32>load<u8>(op, O.OP_AUX)) {
    case O.SYS_HLT:
      if (!privileged()) return
      store<u32>(c, 1, S_MP_STATE)
      store<u32>(c, 0, S_SHADOW)
      atomic.or<u32>(c + S_ATTENTION, ATTN_HALT)
      return
    case O.SYS_CLI:
      if (mayChangeIf()) store<u32>(c, load<u32>(c, S_RFLAGS) & ~IF, S_RFLAGS)
      return
    case O.SYS_STI:
      if (!mayChangeIf() || load<u32>(c, S_RFLAGS) & IF) return
      store<u32>(c, load<u32>(c, S_RFLAGS) | IF, S_RFLAGS)
      // The instruction after STI runs before any interrupt is taken, one that comes before it included. When none comes, the shadow is left to lie:
      // it holds the next one off for an instruction.
      store<u32>(c, 1, S_SHADOW)
      noteDeliverable()
      return
    case O.SYS_IN: {
      const port = <u32>load<u8>(op, O.OP_AUX2) ? load<u32>(op, O.OP_IMM) : <u32>load<u16>(c, S_RDX)
      if (!portAllowed(port, 1 << size)) return
      putAt(c + S_RAX, size, <u64>readPort(port, 1 << size))
      return
    }
    case O.SYS_OUT: {
      const port = <u32>load<u8>(op, O.OP_AUX2) ? load<u32>(op, O.OP_IMM) : <u32>load<u16>(c, S_RDX)
      if (portAllowed(port, 1 << size)) writePort(port, 1 << size, <u32>getAt(c + S_RAX, size))
      return
    }
    case O.SYS_INT:
      softwareInterrupt(load<u32>(op, O.OP_IMM), load<u8>(op, O.OP_AUX2))
      return
    case O.SYS_IRET:
      returnFromInterrupt(size)
      return
    case O.SYS_CALL_FAR:
    case O.SYS_JMP_FAR: {
      const pointer = load<u64>(op, O.OP_IMM)
      farTransfer(<u32>(pointer >> 32), pointer & 0xffff_ffff, size, load<u8>(op, O.OP_AUX) == O.SYS_CALL_FAR)
      return
    }
    case O.SYS_CALL_FAR_M:
    case O.SYS_JMP_FAR_M: {
      const at = address(op, (1 << size) + 2)
      const offset = <u64>readSized(at, size)
      const selector = read16(at + (1 << size))
      if (!load<u32>(c, S_FAULT)) farTransfer(selector, offset, size, load<u8>(op, O.OP_AUX) == O.SYS_CALL_FAR_M)
      return
    }
    case O.SYS_RET_FAR:
      farReturn(size, load<u64>(op, O.OP_IMM))
      return
    case O.SYS_SYSCALL:
      syscall()
      return
    case O.SYS_SYSRET:
      sysret((load<u8>(op, O.OP_FLAGS) & O.OPF_REX_W) != 0)
      return
    case O.SYS_SYSENTER:
      sysenter()
      return
    case O.SYS_SYSEXIT:
      sysexit((load<u8>(op, O.OP_FLAGS) & O.OPF_REX_W) != 0)
      return
    case O.SYS_LLDT:
    case O.SYS_LTR: {
      if (!isProtected() || isVirtual8086()) {
        raiseUd()
        return
      }
      if (!privileged()) return
      const selector = readSelector(op)
      if (load<u32>(c, S_FAULT)) return
      if (load<u8>(op, O.OP_AUX) == O.SYS_LLDT) loadLdt(selector)
      else loadTask(selector)
      return
    }
    case O.SYS_LGDT:
    case O.SYS_LIDT:
      loadTable(op, load<u8>(op, O.OP_AUX) == O.SYS_LGDT)
      return
    case O.SYS_LMSW: {
      if (!privileged()) return
      const value = <u64>readSelector(op)
      if (load<u32>(c, S_FAULT)) return
      const cr0 = load<u64>(c, S_CR0)
      // PE can be set, not cleared.
      writeCr0((cr0 & ~<u64>14) | (value & 15) | (cr0 & 1))
      return
    }
    case O.SYS_INVLPG:
      if (privileged()) flushTlbPage(address(op, 1))
      return
    case O.SYS_INVPCID:
      // Not advertised.
      raiseUd()
      return
    case O.SYS_SWAPGS: {
      if (!privileged()) return
      const gs = segmentAt(GS)
      const base = load<u64>(gs, SEG_BASE)
      store<u64>(gs, load<u64>(c, S_KERNEL_GS_BASE), SEG_BASE)
      store<u64>(c, base, S_KERNEL_GS_BASE)
      return
    }
    case O.SYS_XSETBV:
      if (!(load<u64>(c, S_CR4) & (1 << 18))) {
        raiseUd()
        return
      }
      if (!privileged()) return
      if (load<u32>(c, S_RCX) != 0 || edxEax() & ~<u64>3 || !(edxEax() & 1)) raiseGp()
      else store<u64>(c, edxEax(), S_XCR0)
      return
    case O.SYS_CLTS:
      if (!privileged()) return
      store<u64>(c, load<u64>(c, S_CR0) & ~<u64>8, S_CR0)
      updateMode()
      return
    case O.SYS_WBINVD:
      privileged()
      return
    case O.SYS_MOV_FROM_CR:
    case O.SYS_MOV_TO_CR:
      moveControl(op)
      return
    case O.SYS_MOV_FROM_DR:
    case O.SYS_MOV_TO_DR:
      moveDebug(op)
      return
    case O.SYS_WRMSR:
      if (privileged()) writeMsr(load<u32>(c, S_RCX), edxEax())
      return
    case O.SYS_RDMSR: {
      if (!privileged()) return
      const value = readMsr(load<u32>(c, S_RCX))
      if (!load<u32>(c, S_FAULT)) setEdxEax(value)
      return
    }
    case O.SYS_MOV_TO_SEG: {
      const selector = readSelector(op)
      if (load<u32>(c, S_FAULT)) return
      const segment = <u32>load<u8>(op, O.OP_AUX2)
      loadSegment(segment, selector)
      if (segment == SS) shadow()
      return
    }
    case O.SYS_POP_SEG: {
      const selector = <u32>peek(0, size)
      if (load<u32>(c, S_FAULT)) return
      const segment = <u32>load<u8>(op, O.OP_AUX2)
      // The stack pointer's size is the one before SS changes.
      const before = load<u64>(c, 0x20)
      drop(1 << size)
      loadSegment(segment, selector)
      if (load<u32>(c, S_FAULT)) store<u64>(c, before, 0x20)
      else if (segment == SS) shadow()
      return
    }
    case O.SYS_LOAD_FAR: {
      const at = address(op, (1 << size) + 2)
      const offset = readSized(at, size)
      const selector = read16(at + (1 << size))
      if (load<u32>(c, S_FAULT)) return
      loadSegment(load<u8>(op, O.OP_AUX2), selector)
      if (!load<u32>(c, S_FAULT)) putAt(c + <usize>load<u8>(op, O.OP_DST), size, <u64>offset)
      return
    }
    case O.SYS_POPF: {
      if (load<u32>(c, S_RFLAGS) & VM && (load<u32>(c, S_RFLAGS) & IOPL_MASK) != IOPL_MASK) {
        raiseGp()
        return
      }
      const value = <u32>peek(0, size)
      if (load<u32>(c, S_FAULT)) return
      drop(1 << size)
      popFlags(value, size)
      return
    }
    case O.SYS_RDTSC:
    case O.SYS_RDTSCP:
      if (load<u64>(c, S_CR4) & 4 && load<u32>(c, S_CPL) != 0) {
        raiseGp()
        return
      }
      setEdxEax(readTsc())
      if (load<u8>(op, O.OP_AUX) == O.SYS_RDTSCP) store<u64>(c, load<u64>(c, S_TSC_AUX) & 0xffff_ffff, S_RCX)
      return
    default:
      // MONITOR and MWAIT are not advertised.
      raiseUd()
  }
}

/** Interrupts are held off for one instruction. */
function shadow(): void {
  store<u32>(cpu, 1, S_SHADOW)
  atomic.or<u32>(cpu + S_ATTENTION, ATTN_INTERRUPT)
}

/** INT n, INT3, INTO, INT1. The return address is the next instruction, which S_RIP is. */
function softwareInterrupt(vector: u32, kind: u32): void {
  if (kind == 2 && !overflow()) return
  if (kind == 3) {
    // INT1 is a #DB trap: the gate's privilege is not checked.
    deliverInterrupt(VECTOR_DB, false)
    return
  }
  deliverInterrupt(vector, true)
}

function loadTable(op: usize, global: bool): void {
  const c = cpu
  if (!privileged()) return
  const wide = in64()
  const at = address(op, wide ? 10 : 6)
  const limit = read16(at)
  let base: u64 = wide ? read64(at + 2) : read32(at + 2)
  if (load<u32>(c, S_FAULT)) return
  if (wide && <u64>((<i64>(base << 16)) >> 16) != base) {
    raiseGp()
    return
  }
  if (!wide && load<u8>(op, O.OP_SIZE) == 1) base &= 0xff_ffff
  store<u64>(c + (global ? S_GDT_BASE : S_IDT_BASE), base)
  store<u32>(c + (global ? S_GDT_LIMIT : S_IDT_LIMIT), limit)
}

const CR0_KNOWN: u64 = 0xe005_003f
const CR4_KNOWN: u64 =
  (1 << 0) | (1 << 1) | (1 << 2) | (1 << 3) | (1 << 4) | (1 << 5) | (1 << 7) | (1 << 8) | (1 << 9) | (1 << 10) | (1 << 16) | (1 << 18) | (1 << 20)

export function writeCr0(value: u64): void {
  const c = cpu
  const before = load<u64>(c, S_CR0)
  value = (value & CR0_KNOWN) | 0x10
  const paging = (value & 0x8000_0000) != 0
  // PG without PE, NW without CD.
  if ((paging && !(value & 1)) || (value & 0x6000_0000) == 0x2000_0000) {
    raiseGp()
    return
  }
  let efer = load<u64>(c, S_EFER)
  if (paging && !(before & 0x8000_0000)) {
    if (efer & 0x100) {
      // Long mode needs PAE, and CS.L clear while it is switched on.
      if (!(load<u64>(c, S_CR4) & 0x20) || load<u32>(segmentAt(CS), SEG_ATTR) & 0x2000) {
        raiseGp()
        return
      }
      efer |= 0x400
    }
  } else if (!paging && before & 0x8000_0000) {
    if (in64()) {
      raiseGp()
      return
    }
    efer &= ~<u64>0x400
  }
  store<u64>(c, efer, S_EFER)
  store<u64>(c, value, S_CR0)
  if ((before ^ value) & 0x8001_0001) flushTlbAll()
  updateMode()
}

export function writeCr4(value: u64): void {
  const c = cpu
  const before = load<u64>(c, S_CR4)
  if (value & ~CR4_KNOWN || (isLongMode() && !(value & 0x20))) {
    raiseGp()
    return
  }
  store<u64>(c, value, S_CR4)
  if ((before ^ value) & 0x10_00b0) flushTlbAll()
  updateMode()
}

function moveControl(op: usize): void {
  const c = cpu
  if (!privileged()) return
  const number = <u32>load<u8>(op, O.OP_AUX2)
  const register = c + <usize>load<u8>(op, O.OP_SRC)
  if (load<u8>(op, O.OP_AUX) == O.SYS_MOV_FROM_CR) {
    let value: u64
    if (number == 0) value = load<u64>(c, S_CR0)
    else if (number == 2) value = load<u64>(c, S_CR2)
    else if (number == 3) value = load<u64>(c, S_CR3)
    else if (number == 4) value = load<u64>(c, S_CR4)
    else value = readCr8()
    store<u64>(register, in64() ? value : value & 0xffff_ffff)
    return
  }
  const value = in64() ? load<u64>(register) : <u64>load<u32>(register)
  if (number == 0) {
    if (value >> 32) raiseGp()
    else writeCr0(value)
  } else if (number == 2) store<u64>(c, value, S_CR2)
  else if (number == 3) {
    // Bits above the physical address are reserved; PCID is not offered.
    if (isLongMode() && value >> 40) raiseGp()
    else {
      store<u64>(c, value, S_CR3)
      flushTlbLocal()
    }
  } else if (number == 4) writeCr4(value)
  else if (value & ~<u64>15) raiseGp()
  else writeCr8(value)
}

function moveDebug(op: usize): void {
  const c = cpu
  if (!privileged()) return
  let number = load<u8>(op, O.OP_AUX2)
  const register = c + <usize>load<u8>(op, O.OP_SRC)
  if (number == 4 || number == 5) {
    if (load<u64>(c, S_CR4) & 8) {
      raiseUd()
      return
    }
    number += 2
  }
  // General detect: DR7.GD makes any access a #DB.
  if (load<u64>(c, S_DR7) & 0x2000) {
    store<u64>(c, load<u64>(c, S_DR6) | 0x2000, S_DR6)
    store<u64>(c, load<u64>(c, S_DR7) & ~<u64>0x2000, S_DR7)
    raise(VECTOR_DB)
    return
  }
  const at = number < 4 ? c + S_DR0 + (<usize>number << 3) : c + (number == 6 ? S_DR6 : S_DR7)
  if (load<u8>(op, O.OP_AUX) == O.SYS_MOV_FROM_DR) {
    store<u64>(register, load<u64>(at))
    return
  }
  let value = in64() ? load<u64>(register) : <u64>load<u32>(register)
  if (number >= 6 && value >> 32) {
    raiseGp()
    return
  }
  if (number == 6) value = (value & 0xe00f) | 0xffff_0ff0
  else if (number == 7) value = (value & 0xffff_2bff) | 0x400
  store<u64>(at, value)
  // Pages with data breakpoints leave the TLBs, others come back.
  if (number != 6) flushTlbAll()
  updateMode()
}
