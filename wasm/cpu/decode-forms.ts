/** Forms of operands and instructions that opcodes share: arithmetic, moves, shifts, stack, branches, groups. */
import {
  allowLock,
  at,
  default64,
  endBlock,
  fetch16,
  fetch32,
  fetch8,
  immediate,
  is64,
  isMemory,
  lock,
  modrm,
  opSize,
  reg,
  rm,
  setAux,
  setDst,
  setHandler,
  setImm,
  setOpSize,
  setSegmentKind,
  setSize,
  setSrc,
  start,
  undefined_,
} from './decode-modrm'
import * as O from './ops'
import { DS, FS, S_RAX } from './state'

/** Distance of the instruction from the block's start, for branch targets. */
let blockOffset: i64 = 0

export function setBlockOffset(offset: u32): void {
  blockOffset = <i64>offset
}

/** ALU with ModRM: `toReg` is the direction bit. */
export function aluModrm(op: usize, alu: u32, size: u32, toReg: bool): void {
  modrm(op)
  setSize(op, size)
  if (!isMemory()) {
    setDst(op, toReg ? reg : rm, size)
    setSrc(op, toReg ? rm : reg, size)
    setHandler(op, O.H_ALU + (alu * 5 + O.FORM_RR) * 4 + size)
  } else if (toReg) {
    setDst(op, reg, size)
    setHandler(op, O.H_ALU + (alu * 5 + O.FORM_RM) * 4 + size)
  } else {
    setSrc(op, reg, size)
    memoryAlu(op, alu, O.FORM_MR, size)
  }
}

/** An ALU operation with memory destination: LOCK gets its own handler. */
export function memoryAlu(op: usize, alu: u32, form: u32, size: u32): void {
  if (alu < <u32>O.ALU_CMP) allowLock()
  if (lock) {
    setAux(op, O.H_ALU_LOCKED, alu)
    store<u8>(op, form == O.FORM_MI ? 1 : 0, O.OP_AUX2)
  } else setHandler(op, O.H_ALU + (alu * 5 + form) * 4 + size)
}

/** rm, imm with the ModRM already read. */
export function aluImmediate(op: usize, alu: u32, size: u32, value: i64): void {
  setSize(op, size)
  setImm(op, value)
  if (isMemory()) memoryAlu(op, alu, O.FORM_MI, size)
  else {
    setDst(op, rm, size)
    setHandler(op, O.H_ALU + (alu * 5 + O.FORM_RI) * 4 + size)
  }
}

/** rm is the only operand: OP_DST in register form. */
export function shiftGroup(op: usize, size: u32, countKind: u32): void {
  modrm(op)
  setSize(op, size)
  let kind = reg & 7
  if (kind == 6) kind = 4
  store<u8>(op, <u8>kind, O.OP_AUX)
  if (!isMemory()) setDst(op, rm, size)
  if (countKind == 2) {
    setHandler(op, isMemory() ? O.H_SHIFT_MCL : O.H_SHIFT_RCL)
    return
  }
  const count = (countKind == 1 ? 1 : fetch8()) & (size == 3 ? 63 : 31)
  setImm(op, count)
  if (isMemory()) {
    setHandler(op, O.H_SHIFT_MI)
    return
  }
  if (count == 0) {
    // Changes nothing but, at 32 bits, clears the upper half.
    if (size == 2) {
      setSrc(op, rm, 2)
      setHandler(op, O.H_MOV + O.FORM_RR * 4 + 2)
    } else setHandler(op, O.H_NOP)
    return
  }
  setHandler(op, O.H_SHIFT_RI)
  if (size < 2) return
  const wide: u32 = size - 2
  if (kind == 4) setHandler(op, O.H_SHL32 + wide)
  else if (kind == 5) setHandler(op, O.H_SHR32 + wide)
  else if (kind == 7) setHandler(op, O.H_SAR32 + wide)
  else if (kind == 0) setHandler(op, O.H_ROL32 + wide)
  else if (kind == 1) setHandler(op, O.H_ROR32 + wide)
}

export function stack(op: usize, kind: u32): void {
  setAux(op, O.H_STACK, kind)
  setSize(op, opSize)
}

export function system(op: usize, kind: u32): void {
  setAux(op, O.H_SYSTEM, kind)
  setSize(op, opSize)
  endBlock()
}

export function misc(op: usize, kind: u32): void {
  setAux(op, O.H_MISC, kind)
  setSize(op, opSize)
}

/** A near branch's operand size: in 64-bit code always 64. */
export function branchSize(): void {
  if (is64) setOpSize(3)
}

/** Fetches a relative offset of `bytes` and stores the target as a distance from the block's start. */
export function relative(op: usize, size: u32): void {
  const distance = immediate(size)
  setImm(op, blockOffset + <i64>(at - start) + distance)
}

export function conditional(op: usize, condition: u32, size: u32): void {
  branchSize()
  relative(op, size)
  setSize(op, opSize)
  setAux(op, O.H_JCC + condition, condition)
  endBlock()
}

/** Branch kinds of 16/32-bit code and the counted ones. */
export function branch(op: usize, kind: u32): void {
  setAux(op, O.H_BRANCH, kind)
  setSize(op, opSize)
  endBlock()
}

export function stringOp(op: usize, kind: u32, size: u32): void {
  setAux(op, O.H_STRING, kind)
  setSize(op, size)
  setSegmentKind(op, DS)
}

export function accumulatorImmediate(op: usize, alu: u32, size: u32): void {
  store<u8>(op, S_RAX, O.OP_DST)
  setSize(op, size)
  setImm(op, immediate(size))
  setHandler(op, O.H_ALU + (alu * 5 + O.FORM_RI) * 4 + size)
}

export function moveStore(op: usize, size: u32): void {
  modrm(op)
  setSize(op, size)
  setSrc(op, reg, size)
  if (isMemory()) setHandler(op, O.H_MOV + O.FORM_MR * 4 + size)
  else {
    setDst(op, rm, size)
    setHandler(op, O.H_MOV + O.FORM_RR * 4 + size)
  }
}

export function moveLoad(op: usize, size: u32): void {
  modrm(op)
  setSize(op, size)
  setDst(op, reg, size)
  if (isMemory()) setHandler(op, O.H_MOV + O.FORM_RM * 4 + size)
  else {
    setSrc(op, rm, size)
    setHandler(op, O.H_MOV + O.FORM_RR * 4 + size)
  }
}

export function exchange(op: usize, size: u32): void {
  modrm(op)
  setSize(op, size)
  setDst(op, reg, size)
  if (isMemory()) {
    allowLock()
    setHandler(op, O.H_XCHG_M)
  } else {
    setSrc(op, rm, size)
    setHandler(op, O.H_XCHG_RR)
  }
}

export function push(op: usize, number: u32): void {
  default64()
  setSrc(op, number, 3)
  setSize(op, opSize)
  if (opSize == 3) setHandler(op, O.H_PUSH64)
  else stack(op, O.STACK_PUSH_R)
}

export function pop(op: usize, number: u32): void {
  default64()
  setDst(op, number, 3)
  setSize(op, opSize)
  if (opSize == 3) setHandler(op, O.H_POP64)
  else stack(op, O.STACK_POP_R)
}

export function pushImmediate(op: usize, size: u32): void {
  default64()
  setImm(op, immediate(size))
  setSize(op, opSize)
  if (opSize == 3) setHandler(op, O.H_PUSHI64)
  else stack(op, O.STACK_PUSH_I)
}

export function group3(op: usize, size: u32): void {
  modrm(op)
  setSize(op, size)
  const kind = reg & 7
  if (kind < 2) {
    aluImmediate(op, O.ALU_TEST, size, immediate(size))
  } else if (kind < 4) {
    if (isMemory()) {
      allowLock()
      setAux(op, O.H_UNARY_M, kind)
    } else {
      setDst(op, rm, size)
      setHandler(op, (kind == 2 ? O.H_NOT_R : O.H_NEG_R) + size)
    }
  } else {
    setAux(op, O.H_MULDIV, kind)
    if (!isMemory()) setSrc(op, rm, size)
  }
}

export function incDec(op: usize, size: u32, kind: u32): void {
  setSize(op, size)
  if (isMemory()) {
    allowLock()
    setAux(op, O.H_UNARY_M, kind)
  } else {
    setDst(op, rm, size)
    setHandler(op, (kind == 0 ? O.H_INC_R : O.H_DEC_R) + size)
  }
}

export function group5(op: usize): void {
  modrm(op)
  const kind = reg & 7
  switch (kind) {
    case 0:
    case 1:
      incDec(op, opSize, kind)
      return
    case 2:
    case 4: {
      branchSize()
      setSize(op, opSize)
      if (!isMemory()) setSrc(op, rm, 3)
      if (opSize == 3) {
        if (kind == 2) setHandler(op, isMemory() ? O.H_CALLM64 : O.H_CALLR64)
        else setHandler(op, isMemory() ? O.H_JMPM64 : O.H_JMPR64)
        endBlock()
      } else branch(op, kind == 2 ? O.BR_CALL_RM : O.BR_JMP_RM)
      return
    }
    case 3:
    case 5:
      if (!isMemory()) undefined_(op)
      else system(op, kind == 3 ? O.SYS_CALL_FAR_M : O.SYS_JMP_FAR_M)
      return
    case 6:
      default64()
      if (isMemory()) stack(op, O.STACK_PUSH_M)
      else {
        setSrc(op, rm, 3)
        setSize(op, opSize)
        if (opSize == 3) setHandler(op, O.H_PUSH64)
        else stack(op, O.STACK_PUSH_R)
      }
      return
    default:
      undefined_(op)
  }
}

/** Far pointer in the instruction: not in 64-bit code. */
export function farImmediate(op: usize, kind: u32): void {
  if (is64) {
    undefined_(op)
    return
  }
  const offset: u64 = opSize == 1 ? fetch16() : fetch32()
  setImm(op, <i64>(offset | (<u64>fetch16() << 32)))
  system(op, kind)
}

export function not64(op: usize, kind: u32): void {
  if (is64) undefined_(op)
  else misc(op, kind)
}

export function segmentPush(op: usize, number: u32): void {
  if (is64 && number < <u32>FS) {
    undefined_(op)
    return
  }
  default64()
  stack(op, O.STACK_PUSH_SEG)
  store<u8>(op, <u8>number, O.OP_AUX2)
}

export function segmentPop(op: usize, number: u32): void {
  if (is64 && number < <u32>FS) {
    undefined_(op)
    return
  }
  default64()
  system(op, O.SYS_POP_SEG)
  store<u8>(op, <u8>number, O.OP_AUX2)
}

export function loadFar(op: usize, number: u32): void {
  modrm(op)
  if (!isMemory()) {
    undefined_(op)
    return
  }
  setDst(op, reg, opSize)
  system(op, O.SYS_LOAD_FAR)
  store<u8>(op, <u8>number, O.OP_AUX2)
}

export function port(op: usize, kind: u32, size: u32, immediatePort: bool): void {
  if (immediatePort) {
    setImm(op, fetch8())
    store<u8>(op, 1, O.OP_AUX2)
  }
  system(op, kind)
  setSize(op, size)
}
