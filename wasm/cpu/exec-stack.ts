/** The stack outside the 64-bit fast paths, and near branches of 16/32-bit code. */
import { cpu } from './cpu'
import { effective, effectiveSlow, segmented } from './ea'
import { getAt, putAt, readSized } from './exec-integer'
import { NOT_CANONICAL, raiseError, raiseGp, VECTOR_GP, VECTOR_SS } from './fault'
import { getRflags, IOPL_MASK, RF, VM, zero } from './flags'
import { write16, write32, write64, write8 } from './memory'
import * as O from './ops'
import {
  CS,
  FAULT_EXCEPTION,
  MODE_64,
  MODE_SIZE_MASK,
  MODE_STACK32,
  S_BLOCK_RIP,
  S_FAULT,
  S_FAULT_HAS_ERROR,
  S_FAULT_VECTOR,
  S_MODE,
  S_RBP,
  S_RCX,
  S_RFLAGS,
  S_RIP,
  S_RSP,
  S_SEG,
  SEG_LIMIT,
  SEG_SELECTOR,
  SEG_STRIDE,
  SS,
} from './state'

/** 3, 2 or 1: log2 of the stack pointer's size. */
export function stackSize(): u32 {
  const mode = load<u32>(cpu, S_MODE)
  return (mode & MODE_SIZE_MASK) == MODE_64 ? 3 : mode & MODE_STACK32 ? 2 : 1
}

export function stackPointer(): u64 {
  const sp = load<u64>(cpu, S_RSP)
  const size = stackSize()
  return size == 3 ? sp : size == 2 ? sp & 0xffff_ffff : sp & 0xffff
}

export function setStackPointer(value: u64): void {
  const size = stackSize()
  if (size == 3) store<u64>(cpu, value, S_RSP)
  else if (size == 2) store<u64>(cpu, value & 0xffff_ffff, S_RSP)
  else store<u16>(cpu, <u16>value, S_RSP)
}

/** Linear address of stack offset `offset`. */
export function stackAddress(offset: u64, bytes: u32): u64 {
  const size = stackSize()
  if (size == 3) return offset
  return segmented(SS, size == 2 ? <u32>offset : <u32>offset & 0xffff, bytes, false)
}

export function writeSized(address: u64, size: u32, value: u64): void {
  if (size == 3) write64(address, value)
  else if (size == 2) write32(address, <u32>value)
  else if (size == 1) write16(address, <u32>value)
  else write8(address, <u32>value)
}

/** Pushes; the stack pointer moves only when the store did not fault. */
export function push(value: u64, size: u32): void {
  const bytes: u32 = 1 << size
  const sp = stackPointer() - bytes
  writeSized(stackAddress(sp, bytes), size, value)
  if (load<u32>(cpu, S_FAULT)) blameStackAlone()
  else setStackPointer(sp)
}

/** The value at the top of the stack plus `depth` bytes, zero-extended; nothing moves. */
export function peek(depth: u64, size: u32): u64 {
  const value = readSized(stackAddress(stackPointer() + depth, 1 << size), size)
  if (load<u32>(cpu, S_FAULT)) blameStackAlone()
  return size == 3 ? <u64>value : size == 2 ? <u64>(<u32>value) : <u64>(<u16>value)
}

export function drop(bytes: u64): void {
  setStackPointer(stackPointer() + bytes)
}

export function stackOperation(op: usize): void {
  const c = cpu
  const size = <u32>load<u8>(op, O.OP_SIZE)
  const bytes: u64 = 1 << size
  switch (<u32>load<u8>(op, O.OP_AUX)) {
    case O.STACK_PUSH_R:
      push(<u64>getAt(c + <usize>load<u8>(op, O.OP_SRC), size), size)
      return
    case O.STACK_PUSH_I:
      push(load<u64>(op, O.OP_IMM), size)
      return
    case O.STACK_PUSH_M: {
      const value = readSized(effective(c, op), size)
      if (!load<u32>(c, S_FAULT)) push(<u64>value, size)
      return
    }
    case O.STACK_POP_R: {
      const value = peek(0, size)
      if (load<u32>(c, S_FAULT)) return
      drop(bytes)
      putAt(c + <usize>load<u8>(op, O.OP_DST), size, value)
      return
    }
    case O.STACK_POP_M: {
      const value = peek(0, size)
      if (load<u32>(c, S_FAULT)) return
      // An address based on RSP uses its value after the pop.
      const before = load<u64>(c, S_RSP)
      drop(bytes)
      writeSized(effective(c, op), size, value)
      if (load<u32>(c, S_FAULT)) store<u64>(c, before, S_RSP)
      return
    }
    case O.STACK_PUSHF: {
      if (load<u32>(c, S_RFLAGS) & VM && (load<u32>(c, S_RFLAGS) & IOPL_MASK) != IOPL_MASK) {
        raiseGp()
        return
      }
      push(<u64>(getRflags() & ~(RF | VM)), size)
      return
    }
    case O.STACK_PUSH_SEG:
      push(load<u32>(c + <u32>load<u8>(op, O.OP_AUX2) * SEG_STRIDE, S_SEG + SEG_SELECTOR), size)
      return
    case O.STACK_PUSHA: {
      const sp = load<u64>(c, S_RSP)
      for (let i: u32 = 0; i < 8; i++) {
        push(i == 4 ? sp : load<u64>(c + (i << 3)), size)
        if (load<u32>(c, S_FAULT)) {
          store<u64>(c, sp, S_RSP)
          return
        }
      }
      return
    }
    case O.STACK_POPA: {
      for (let i: u32 = 0; i < 8; i++) {
        peek(<u64>i * bytes, size)
        if (load<u32>(c, S_FAULT)) return
      }
      for (let i: u32 = 0; i < 8; i++) if (i != 3) putAt(c + ((7 - i) << 3), size, peek(<u64>i * bytes, size))
      drop(bytes * 8)
      return
    }
    case O.STACK_ENTER:
      enter(op, size)
      return
    default: {
      // LEAVE
      const sp = load<u64>(c, S_RSP)
      setStackPointer(load<u64>(c, S_RBP))
      const value = peek(0, size)
      if (load<u32>(c, S_FAULT)) {
        store<u64>(c, sp, S_RSP)
        return
      }
      drop(bytes)
      putAt(c + S_RBP, size, value)
    }
  }
}

function enter(op: usize, size: u32): void {
  const c = cpu
  const imm = load<u32>(op, O.OP_IMM)
  const level = imm >> 16
  const savedSp = load<u64>(c, S_RSP)
  const savedBp = load<u64>(c, S_RBP)
  push(<u64>getAt(c + S_RBP, size), size)
  const frame = load<u64>(c, S_RSP)
  if (level > 0) {
    let bp = savedBp
    for (let i: u32 = 1; i < level; i++) {
      bp -= 1 << size
      const masked = stackSize() == 3 ? bp : stackSize() == 2 ? bp & 0xffff_ffff : bp & 0xffff
      push(<u64>readSized(stackAddress(masked, 1 << size), size), size)
    }
    push(frame, size)
  }
  if (!load<u32>(c, S_FAULT)) {
    setStackPointer(stackPointer() - <u64>(imm & 0xffff))
    putAt(c + S_RBP, size, frame)
  } else {
    store<u64>(c, savedSp, S_RSP)
    store<u64>(c, savedBp, S_RBP)
  }
}

// ---- near branches ----------------------------------------------------------------------------------------------------
function wrap(value: u64, size: u32): u64 {
  return size == 3 ? value : size == 2 ? value & 0xffff_ffff : value & 0xffff
}

/** Sets the next RIP, in S_RIP, unless it is outside CS. */
function go(target: u64): bool {
  if ((load<u32>(cpu, S_MODE) & MODE_SIZE_MASK) == MODE_64) {
    if (<u64>((<i64>(target << 16)) >> 16) != target) {
      raiseGp()
      return false
    }
  } else if (<u32>target > load<u32>(cpu + CS * SEG_STRIDE, S_SEG + SEG_LIMIT)) {
    raiseError(VECTOR_GP, 0)
    return false
  }
  store<u64>(cpu, target, S_RIP)
  return true
}

/** Decrements or reads the counter in its address size. */
function counter(op: usize): u64 {
  const flags = <u32>load<u8>(op, O.OP_FLAGS)
  const value = load<u64>(cpu, S_RCX)
  return flags & O.OPF_A16 ? value & 0xffff : flags & O.OPF_A32 ? value & 0xffff_ffff : value
}

export function nearBranch(op: usize): void {
  const c = cpu
  const size = <u32>load<u8>(op, O.OP_SIZE)
  const base = load<u64>(c, S_BLOCK_RIP)
  const next = wrap(base + <u64>load<u16>(op, O.OP_OFFSET) + <u64>load<u8>(op, O.OP_LENGTH), size)
  const target = wrap(base + load<u64>(op, O.OP_IMM), size)
  const kind = <u32>load<u8>(op, O.OP_AUX)
  switch (kind) {
    case O.BR_CALL:
      push(next, size)
      if (!load<u32>(c, S_FAULT)) go(target)
      return
    case O.BR_RET: {
      const address = peek(0, size)
      if (load<u32>(c, S_FAULT) || !go(wrap(address, size))) return
      drop(<u64>(1 << size) + load<u64>(op, O.OP_IMM))
      return
    }
    case O.BR_JMP_RM:
    case O.BR_CALL_RM: {
      const value =
        load<u8>(op, O.OP_EA) == O.EA_REGISTER
          ? getAt(c + <usize>load<u8>(op, O.OP_SRC), size)
          : readSized(effectiveSlow(op, 1 << size), size)
      if (load<u32>(c, S_FAULT)) return
      if (kind == O.BR_CALL_RM) push(next, size)
      if (!load<u32>(c, S_FAULT)) go(wrap(<u64>value, size))
      return
    }
    case O.BR_JCXZ:
      go(counter(op) == 0 ? target : next)
      return
    default: {
      const flags = <u32>load<u8>(op, O.OP_FLAGS)
      const rcx = load<u64>(c, S_RCX)
      if (flags & O.OPF_A16) store<u16>(c, <u16>(rcx - 1), S_RCX)
      else if (flags & O.OPF_A32) store<u64>(c, (rcx - 1) & 0xffff_ffff, S_RCX)
      else store<u64>(c, rcx - 1, S_RCX)
      let taken = counter(op) != 0
      if (kind == O.BR_LOOPE) taken = taken && zero(c)
      else if (kind == O.BR_LOOPNE) taken = taken && !zero(c)
      if (!go(taken ? target : next)) store<u64>(c, rcx, S_RCX)
    }
  }
}

function operandIsCanonical(op: usize): bool {
  const first = effective(cpu, op)
  const last = first + 7
  return <u64>((<i64>(first << 16)) >> 16) == first && <u64>((<i64>(last << 16)) >> 16) == last
}

/** Takes the mark of an address that is not canonical off the fault; false when it does not have it. */
function takeNotCanonical(c: usize): bool {
  if (load<u32>(c, S_FAULT_HAS_ERROR) != NOT_CANONICAL) return false
  store<u32>(c, 1, S_FAULT_HAS_ERROR)
  return load<u32>(c, S_FAULT) == FAULT_EXCEPTION && load<u32>(c, S_FAULT_VECTOR) == VECTOR_GP
}

/** The same as blameStack, for an access that was to the stack whatever the operand of the instruction is. */
function blameStackAlone(): void {
  if (takeNotCanonical(cpu)) store<u32>(cpu, VECTOR_SS, S_FAULT_VECTOR)
}

/** A #GP for an address that is not canonical becomes #SS when the access was to the stack segment (SDM vol. 3, 6.15). */
export function blameStack(op: usize): void {
  const c = cpu
  if (!takeNotCanonical(c)) return
  const handler: i32 = load<u16>(op, O.OP_HANDLER)
  const implicit =
    (handler >= O.H_PUSH64 && handler <= O.H_PUSHI64) ||
    (handler >= O.H_CALL64 && handler <= O.H_RETI64) ||
    handler == O.H_CALLR64 ||
    handler == O.H_LEAVE64 ||
    // The operand is read first: when that could be done, it was the push.
    (handler == O.H_CALLM64 && operandIsCanonical(op))
  const explicit = load<u8>(op, O.OP_EA) != O.EA_REGISTER && load<u8>(op, O.OP_SEG) == SS && handler != O.H_STRING
  if (implicit || explicit) store<u32>(c, VECTOR_SS, S_FAULT_VECTOR)
}
