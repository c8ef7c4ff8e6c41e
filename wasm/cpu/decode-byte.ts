/** One-byte opcodes (Intel SDM vol. 2 appendix A), after their prefixes. */
import {
  accumulatorImmediate,
  aluImmediate,
  aluModrm,
  branch,
  branchSize,
  conditional,
  exchange,
  farImmediate,
  group3,
  group5,
  incDec,
  loadFar,
  misc,
  moveLoad,
  moveStore,
  not64,
  pop,
  port,
  push,
  pushImmediate,
  relative,
  segmentPop,
  segmentPush,
  shiftGroup,
  stack,
  stringOp,
  system,
} from './decode-forms'
import {
  absoluteOperand,
  addrSize,
  default64,
  endBlock,
  fetch16,
  fetch64,
  fetch8,
  immediate,
  is64,
  isMemory,
  modByte,
  modrm,
  opSize,
  reg,
  rep,
  rex,
  rm,
  setAux,
  setDst,
  setHandler,
  setImm,
  setSegmentKind,
  setSize,
  setSrc,
  undefined_,
} from './decode-modrm'
import * as O from './ops'
import { CS, DS, ES, GS, S_RAX, SS } from './state'

export function decodeByte(op: usize, opcode: u32): void {
  if (opcode < 0x40) {
    const alu = opcode >> 3
    switch (opcode & 7) {
      case 0:
        aluModrm(op, alu, 0, false)
        return
      case 1:
        aluModrm(op, alu, opSize, false)
        return
      case 2:
        aluModrm(op, alu, 0, true)
        return
      case 3:
        aluModrm(op, alu, opSize, true)
        return
      case 4:
        accumulatorImmediate(op, alu, 0)
        return
      case 5:
        accumulatorImmediate(op, alu, opSize)
        return
      case 6:
        segmentPush(op, alu) // ES CS SS DS: 06 0E 16 1E; the others are prefixes
        return
      default:
        if (opcode >= 0x27) not64(op, O.MISC_DAA + ((opcode - 0x27) >> 3))
        else if (alu == CS) undefined_(op)
        else segmentPop(op, alu)
        return
    }
  }
  switch (opcode >> 3) {
    case 0x40 >> 3: // INC, in 16/32-bit code
    case 0x48 >> 3:
      setSize(op, opSize)
      setDst(op, opcode & 7, opSize)
      setHandler(op, (opcode < 0x48 ? O.H_INC_R : O.H_DEC_R) + opSize)
      return
    case 0x50 >> 3:
      push(op, (opcode & 7) | ((rex & 1) << 3))
      return
    case 0x58 >> 3:
      pop(op, (opcode & 7) | ((rex & 1) << 3))
      return
    case 0x70 >> 3:
    case 0x78 >> 3:
      conditional(op, opcode & 15, 0)
      return
    case 0x90 >> 3: {
      const number = (opcode & 7) | ((rex & 1) << 3)
      if (number == 0) {
        setAux(op, O.H_NOP, rep == 0xf3 ? 1 : 0)
        return
      }
      setSize(op, opSize)
      store<u8>(op, S_RAX, O.OP_DST)
      setSrc(op, number, opSize)
      setHandler(op, O.H_XCHG_RR)
      return
    }
    case 0xb0 >> 3:
      setSize(op, 0)
      setDst(op, (opcode & 7) | ((rex & 1) << 3), 0)
      setImm(op, <i64>(<i8>fetch8()))
      setHandler(op, O.H_MOV + O.FORM_RI * 4)
      return
    case 0xb8 >> 3:
      setSize(op, opSize)
      setDst(op, (opcode & 7) | ((rex & 1) << 3), opSize)
      setImm(op, opSize == 3 ? <i64>fetch64() : immediate(opSize))
      setHandler(op, O.H_MOV + O.FORM_RI * 4 + opSize)
      return
    case 0xd8 >> 3:
      modrm(op)
      setAux(op, O.H_X87, opcode & 7)
      setSize(op, opSize)
      setImm(op, ((opcode & 7) << 8) | modByte)
      store<u8>(op, <u8>(reg & 7), O.OP_DST)
      store<u8>(op, <u8>(rm & 7), O.OP_SRC)
      return
  }
  decodeRest(op, opcode)
}

function decodeRest(op: usize, opcode: u32): void {
  switch (opcode) {
    case 0x60:
    case 0x61:
      if (is64) undefined_(op)
      else stack(op, opcode == 0x60 ? O.STACK_PUSHA : O.STACK_POPA)
      return
    case 0x62:
      if (is64) {
        undefined_(op)
        return
      }
      modrm(op)
      if (!isMemory()) undefined_(op)
      else {
        setDst(op, reg, opSize)
        misc(op, O.MISC_BOUND)
      }
      return
    case 0x63:
      modrm(op)
      if (is64) {
        setSize(op, opSize)
        setDst(op, reg, opSize)
        if (!isMemory()) setSrc(op, rm, 2)
        if (opSize == 3) setHandler(op, isMemory() ? O.H_MOVSX_M32 : O.H_MOVSX_R32)
        else setHandler(op, O.H_MOV + (isMemory() ? O.FORM_RM : O.FORM_RR) * 4 + opSize)
      } else {
        setDst(op, reg, 1)
        setSrc(op, rm, 1)
        misc(op, O.MISC_ARPL)
      }
      return
    case 0x68:
      pushImmediate(op, opSize)
      return
    case 0x69:
    case 0x6b:
      modrm(op)
      setSize(op, opSize)
      setDst(op, reg, opSize)
      if (!isMemory()) setSrc(op, rm, opSize)
      setImm(op, immediate(opcode == 0x69 ? opSize : 0))
      setAux(op, isMemory() ? O.H_IMUL_M : O.H_IMUL_R, 1)
      return
    case 0x6a:
      pushImmediate(op, 0)
      return
    case 0x6c:
    case 0x6d:
    case 0x6e:
    case 0x6f:
      stringOp(op, opcode < 0x6e ? O.STR_INS : O.STR_OUTS, opcode & 1 ? min<u32>(opSize, 2) : 0)
      return
    case 0x80:
    case 0x82:
      if (opcode == 0x82 && is64) {
        undefined_(op)
        return
      }
      modrm(op)
      aluImmediate(op, reg & 7, 0, immediate(0))
      return
    case 0x81:
      modrm(op)
      aluImmediate(op, reg & 7, opSize, immediate(opSize))
      return
    case 0x83:
      modrm(op)
      aluImmediate(op, reg & 7, opSize, immediate(0))
      return
    case 0x84:
      aluModrm(op, O.ALU_TEST, 0, false)
      return
    case 0x85:
      aluModrm(op, O.ALU_TEST, opSize, false)
      return
    case 0x86:
      exchange(op, 0)
      return
    case 0x87:
      exchange(op, opSize)
      return
    case 0x88:
      moveStore(op, 0)
      return
    case 0x89:
      moveStore(op, opSize)
      return
    case 0x8a:
      moveLoad(op, 0)
      return
    case 0x8b:
      moveLoad(op, opSize)
      return
    case 0x8c:
      modrm(op)
      if ((reg & 7) > <u32>GS) undefined_(op)
      else {
        if (!isMemory()) setSrc(op, rm, opSize)
        misc(op, O.MISC_MOV_FROM_SEG)
        store<u8>(op, <u8>(reg & 7), O.OP_AUX2)
      }
      return
    case 0x8d:
      modrm(op)
      if (!isMemory()) undefined_(op)
      else {
        setSize(op, opSize)
        setDst(op, reg, opSize)
        setHandler(op, O.H_LEA + opSize)
        // No segment takes part: keep only the width of the address.
        store<u8>(op, addrSize == 8 ? O.EA_FLAT64 : addrSize == 4 ? O.EA_FLAT32 : O.EA_SEG16, O.OP_EA)
      }
      return
    case 0x8e:
      modrm(op)
      if ((reg & 7) > <u32>GS || (reg & 7) == CS) undefined_(op)
      else {
        if (!isMemory()) setSrc(op, rm, 1)
        system(op, O.SYS_MOV_TO_SEG)
        store<u8>(op, <u8>(reg & 7), O.OP_AUX2)
      }
      return
    case 0x8f:
      modrm(op)
      default64()
      if ((reg & 7) != 0) undefined_(op)
      else if (isMemory()) stack(op, O.STACK_POP_M)
      else pop(op, rm)
      return
    case 0x98:
      setHandler(op, O.H_CBW)
      setSize(op, opSize)
      return
    case 0x99:
      setHandler(op, O.H_CWD)
      setSize(op, opSize)
      return
    case 0x9a:
      farImmediate(op, O.SYS_CALL_FAR)
      return
    case 0x9b:
      setAux(op, O.H_X87, 8) // FWAIT: OP_AUX = 8
      setImm(op, 0x800)
      return
    case 0x9c:
      default64()
      stack(op, O.STACK_PUSHF)
      return
    case 0x9d:
      default64()
      system(op, O.SYS_POPF)
      return
    case 0x9e:
      setAux(op, O.H_FLAGOP, O.FLAGOP_SAHF)
      return
    case 0x9f:
      setAux(op, O.H_FLAGOP, O.FLAGOP_LAHF)
      return
    case 0xa0:
    case 0xa1:
    case 0xa2:
    case 0xa3: {
      const size = opcode & 1 ? opSize : 0
      absoluteOperand(op)
      setSize(op, size)
      store<u8>(op, S_RAX, O.OP_DST)
      store<u8>(op, S_RAX, O.OP_SRC)
      setHandler(op, O.H_MOV + (opcode < 0xa2 ? O.FORM_RM : O.FORM_MR) * 4 + size)
      return
    }
    case 0xa4:
    case 0xa5:
      stringOp(op, O.STR_MOVS, opcode & 1 ? opSize : 0)
      return
    case 0xa6:
    case 0xa7:
      stringOp(op, O.STR_CMPS, opcode & 1 ? opSize : 0)
      return
    case 0xa8:
      accumulatorImmediate(op, O.ALU_TEST, 0)
      return
    case 0xa9:
      accumulatorImmediate(op, O.ALU_TEST, opSize)
      return
    case 0xaa:
    case 0xab:
      stringOp(op, O.STR_STOS, opcode & 1 ? opSize : 0)
      return
    case 0xac:
    case 0xad:
      stringOp(op, O.STR_LODS, opcode & 1 ? opSize : 0)
      return
    case 0xae:
    case 0xaf:
      stringOp(op, O.STR_SCAS, opcode & 1 ? opSize : 0)
      return
    case 0xc0:
      shiftGroup(op, 0, 0)
      return
    case 0xc1:
      shiftGroup(op, opSize, 0)
      return
    case 0xc2:
    case 0xc3:
      branchSize()
      setImm(op, opcode == 0xc2 ? fetch16() : 0)
      setSize(op, opSize)
      if (opSize == 3) {
        setHandler(op, opcode == 0xc2 ? O.H_RETI64 : O.H_RET64)
        endBlock()
      } else branch(op, O.BR_RET)
      return
    case 0xc4:
    case 0xc5:
      if (is64) undefined_(op)
      else loadFar(op, opcode == 0xc4 ? ES : DS)
      return
    case 0xc6:
    case 0xc7: {
      const size = opcode & 1 ? opSize : 0
      modrm(op)
      if ((reg & 7) != 0) {
        undefined_(op)
        return
      }
      setSize(op, size)
      setImm(op, immediate(size))
      if (!isMemory()) setDst(op, rm, size)
      setHandler(op, O.H_MOV + (isMemory() ? O.FORM_MI : O.FORM_RI) * 4 + size)
      return
    }
    case 0xc8: {
      default64()
      const bytes = fetch16()
      setImm(op, bytes | ((fetch8() & 31) << 16))
      stack(op, O.STACK_ENTER)
      return
    }
    case 0xc9:
      default64()
      if (opSize == 3) setHandler(op, O.H_LEAVE64)
      else stack(op, O.STACK_LEAVE)
      return
    case 0xca:
    case 0xcb:
      setImm(op, opcode == 0xca ? fetch16() : 0)
      system(op, O.SYS_RET_FAR)
      return
    case 0xcc:
      setImm(op, 3)
      system(op, O.SYS_INT)
      store<u8>(op, 1, O.OP_AUX2)
      return
    case 0xcd:
      setImm(op, fetch8())
      system(op, O.SYS_INT)
      return
    case 0xce:
      if (is64) {
        undefined_(op)
        return
      }
      setImm(op, 4)
      system(op, O.SYS_INT)
      store<u8>(op, 2, O.OP_AUX2)
      return
    case 0xcf:
      system(op, O.SYS_IRET)
      return
    case 0xd0:
      shiftGroup(op, 0, 1)
      return
    case 0xd1:
      shiftGroup(op, opSize, 1)
      return
    case 0xd2:
      shiftGroup(op, 0, 2)
      return
    case 0xd3:
      shiftGroup(op, opSize, 2)
      return
    case 0xd4:
    case 0xd5:
      setImm(op, fetch8())
      not64(op, opcode == 0xd4 ? O.MISC_AAM : O.MISC_AAD)
      return
    case 0xd6:
      if (is64) undefined_(op)
      else setAux(op, O.H_FLAGOP, O.FLAGOP_SALC)
      return
    case 0xd7:
      misc(op, O.MISC_XLAT)
      setSegmentKind(op, DS)
      return
    case 0xe0:
    case 0xe1:
    case 0xe2:
    case 0xe3:
      branchSize()
      relative(op, 0)
      branch(op, O.BR_LOOPNE + (opcode & 3))
      return
    case 0xe4:
    case 0xe5:
      port(op, O.SYS_IN, opcode & 1 ? min<u32>(opSize, 2) : 0, true)
      return
    case 0xe6:
    case 0xe7:
      port(op, O.SYS_OUT, opcode & 1 ? min<u32>(opSize, 2) : 0, true)
      return
    case 0xe8:
      branchSize()
      relative(op, min<u32>(opSize, 2))
      setSize(op, opSize)
      if (opSize == 3) {
        setHandler(op, O.H_CALL64)
        endBlock()
      } else branch(op, O.BR_CALL)
      return
    case 0xe9:
    case 0xeb:
      branchSize()
      relative(op, opcode == 0xe9 ? min<u32>(opSize, 2) : 0)
      setSize(op, opSize)
      setHandler(op, O.H_JMP)
      endBlock()
      return
    case 0xea:
      farImmediate(op, O.SYS_JMP_FAR)
      return
    case 0xec:
    case 0xed:
      port(op, O.SYS_IN, opcode & 1 ? min<u32>(opSize, 2) : 0, false)
      return
    case 0xee:
    case 0xef:
      port(op, O.SYS_OUT, opcode & 1 ? min<u32>(opSize, 2) : 0, false)
      return
    case 0xf1:
      setImm(op, 1)
      system(op, O.SYS_INT)
      store<u8>(op, 3, O.OP_AUX2)
      return
    case 0xf4:
      system(op, O.SYS_HLT)
      return
    case 0xf5:
      setAux(op, O.H_FLAGOP, O.FLAGOP_CMC)
      return
    case 0xf6:
      group3(op, 0)
      return
    case 0xf7:
      group3(op, opSize)
      return
    case 0xf8:
      setAux(op, O.H_FLAGOP, O.FLAGOP_CLC)
      return
    case 0xf9:
      setAux(op, O.H_FLAGOP, O.FLAGOP_STC)
      return
    case 0xfa:
      system(op, O.SYS_CLI)
      return
    case 0xfb:
      system(op, O.SYS_STI)
      return
    case 0xfc:
      setAux(op, O.H_FLAGOP, O.FLAGOP_CLD)
      return
    case 0xfd:
      setAux(op, O.H_FLAGOP, O.FLAGOP_STD)
      return
    case 0xfe:
      modrm(op)
      if ((reg & 7) > 1) undefined_(op)
      else incDec(op, 0, reg & 7)
      return
    case 0xff:
      group5(op)
      return
    default:
      undefined_(op)
  }
}
