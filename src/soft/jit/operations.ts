/** Instructions that end no block, one method a family. What is not here is executed by the interpreter's own handler. */
import * as O from '../../../wasm/cpu/ops.ts'
import * as S from '../../../wasm/cpu/state.ts'
import {
  F_MUL_HIGH,
  F_OP,
  L_BIT,
  L_FLAG_A,
  L_FLAG_B,
  L_FLAG_RES,
  L_LEFT,
  L_POINTER,
  L_TEMP,
  L_VALUE,
} from './context.ts'
import {
  FlagContext,
  K_ADD,
  K_ADD_CARRY,
  K_DEC,
  K_INC,
  K_LOGIC,
  K_SHIFT,
  K_SUB,
  K_SUB_CARRY,
  K_UNKNOWN,
} from './flags.ts'
import { I64, MEM, OP } from './wasm-emitter.ts'

/** jitOp's answers from here on are paused string instructions (wasm/cpu/jit.ts). */
const PAUSED = 16

export class OperationContext extends FlagContext {
  /** Translates `this.op`, which is not the end of its block. */
  translate(): void {
    const { handler } = this.op
    if (handler >= O.H_ALU && handler < O.H_ALU_END) {
      const which = (handler - O.H_ALU) >> 2
      this.#arithmetic(Math.floor(which / 5), which % 5, handler & 3)
      return
    }
    if (handler >= O.H_MOV && handler < O.H_LEA) {
      this.#move((handler - O.H_MOV) >> 2, handler & 3)
      return
    }
    if (handler > O.H_LEA && handler < O.H_LEA + 4) {
      this.pushOffset()
      if (this.op.ea !== O.EA_FLAT64) this.mask(2)
      this.popSized(this.op.dst, handler - O.H_LEA)
      return
    }
    if (handler >= O.H_INC_R && handler < O.H_INC_R + 16) {
      this.#unary((handler - O.H_INC_R) >> 2, (handler - O.H_INC_R) & 3)
      return
    }
    if (handler >= O.H_SHL32 && handler <= O.H_ROR64) {
      this.#shift((handler - O.H_SHL32) >> 1, (handler - O.H_SHL32) & 1 ? 3 : 2)
      return
    }
    if (!this.#other(handler)) this.#interpret()
  }

  /** The immediate as `size` has it, sign-extended. */
  #pushImmediate(size: number): void {
    const { immLow, immHigh } = this.op
    if (size === 3) this.c.i64Halves(immLow, immHigh)
    else this.c.i64(size === 2 ? immLow : size === 1 ? (immLow << 16) >> 16 : (immLow << 24) >> 24)
  }

  #arithmetic(alu: number, form: number, size: number): void {
    const { c, op } = this
    const compares = alu === O.ALU_CMP || alu === O.ALU_TEST
    const inMemory = form === O.FORM_MR || form === O.FORM_MI
    if (alu === O.ALU_XOR && form === O.FORM_RR && op.dst === op.src && size >= 2) {
      c.i64(0)
      c.tee(L_FLAG_RES)
      this.popRegister(op.dst)
      this.setKind(S.FLAG_LOGIC, K_LOGIC)
      return
    }
    // The access that may fault comes first; flags and registers change after it.
    if (form === O.FORM_RM || (inMemory && compares)) {
      this.pushAddress()
      this.read(size, true)
      c.set(L_TEMP)
    } else if (inMemory) {
      this.pushAddress()
      this.beginChange(size)
    }
    const carries = alu === O.ALU_ADC || alu === O.ALU_SBB
    if (carries) {
      this.pushCarry()
      c.set(L_BIT)
    }
    const pushA = (): void => {
      if (!inMemory) this.pushSigned(op.dst, size)
      else if (compares) c.get(L_TEMP)
      else this.pushOld(size)
    }
    const pushB = (): void => {
      if (form === O.FORM_RI || form === O.FORM_MI) this.#pushImmediate(size)
      else if (form === O.FORM_RM) c.get(L_TEMP)
      else this.pushSigned(op.src, size)
    }
    if (alu === O.ALU_AND || alu === O.ALU_TEST || alu === O.ALU_OR || alu === O.ALU_XOR) {
      pushA()
      pushB()
      c.op(alu === O.ALU_OR ? OP.i64_or : alu === O.ALU_XOR ? OP.i64_xor : OP.i64_and)
      c.set(L_FLAG_RES)
      this.setKind(S.FLAG_LOGIC, K_LOGIC)
    } else {
      const adds = alu === O.ALU_ADD || alu === O.ALU_ADC
      pushA()
      pushB()
      c.set(L_FLAG_B)
      c.tee(L_FLAG_A)
      c.get(L_FLAG_B)
      const operation = adds ? OP.i64_add : OP.i64_sub
      c.op(operation)
      if (carries) {
        c.get(L_BIT)
        c.op(OP.i64_extend_i32_u)
        c.op(operation)
      }
      this.extend(size)
      c.set(L_FLAG_RES)
      if (carries) this.setKindPlusBit(adds ? S.FLAG_ADD : S.FLAG_SUB, adds ? K_ADD_CARRY : K_SUB_CARRY)
      else this.setKind(adds ? S.FLAG_ADD : S.FLAG_SUB, adds ? K_ADD : K_SUB)
    }
    if (compares) return
    if (inMemory) this.endChange(size, L_FLAG_RES)
    else {
      c.get(L_FLAG_RES)
      this.popSized(op.dst, size)
    }
  }

  #move(form: number, size: number): void {
    const { op } = this
    switch (form) {
      case O.FORM_RR:
        this.pushUnsigned(op.src, size)
        this.popSized(op.dst, size)
        return
      case O.FORM_RI:
        this.#pushImmediate(size)
        this.popSized(op.dst, size)
        return
      case O.FORM_RM:
        this.pushAddress()
        this.read(size, false)
        if (size >= 2) this.popRegister(op.dst)
        else this.popSized(op.dst, size)
        return
      case O.FORM_MR:
        this.pushAddress()
        this.pushUnsigned(op.src, size)
        this.write(size)
        return
      default:
        this.pushAddress()
        this.#pushImmediate(size)
        this.write(size)
    }
  }

  /** INC, DEC, NOT, NEG. */
  #unary(kind: number, size: number): void {
    const { c, op } = this
    if (kind === 2) {
      this.pushUnsigned(op.dst, size)
      c.i64(-1)
      c.op(OP.i64_xor)
      this.popSized(op.dst, size)
      return
    }
    if (kind === 3) {
      this.pushSigned(op.dst, size)
      c.set(L_FLAG_B)
      c.i64(0)
      c.tee(L_FLAG_A)
      c.get(L_FLAG_B)
      c.op(OP.i64_sub)
      this.setKind(S.FLAG_SUB, K_SUB)
    } else {
      this.pushCarry()
      c.set(L_BIT)
      this.pushSigned(op.dst, size)
      c.tee(L_FLAG_A)
      c.i64(1)
      c.tee(L_FLAG_B)
      c.op(kind === 0 ? OP.i64_add : OP.i64_sub)
      this.setKindPlusBit(kind === 0 ? S.FLAG_INC0 : S.FLAG_DEC0, kind === 0 ? K_INC : K_DEC)
    }
    this.extend(size)
    c.tee(L_FLAG_RES)
    this.popSized(op.dst, size)
  }

  /** SHL SHR SAR ROL ROR of a 32-bit or 64-bit register by a constant that is not 0. */
  #shift(kind: number, size: number): void {
    const { c, op } = this
    const n = op.immLow
    const bits = 8 << size
    if (kind >= 3) {
      this.#rotate(kind === 3, size, n)
      return
    }
    if (kind === 2) this.pushSigned(op.dst, size)
    else this.pushUnsigned(op.dst, size)
    c.tee(L_TEMP)
    c.i64(n)
    c.op(kind === 0 ? OP.i64_shl : kind === 1 ? OP.i64_shr_u : OP.i64_shr_s)
    this.extend(size)
    c.set(L_FLAG_RES)
    // The bit that went out last.
    c.get(L_TEMP)
    c.i64(kind === 0 ? bits - n : n - 1)
    c.op(OP.i64_shr_u)
    c.i64(1)
    c.op(OP.i64_and)
    if (kind === 0) {
      c.tee(L_VALUE)
      c.get(L_VALUE)
      c.get(L_FLAG_RES)
      c.i64(63)
      c.op(OP.i64_shr_u)
      c.op(OP.i64_xor)
      c.i64(11)
      c.op(OP.i64_shl)
      c.op(OP.i64_or)
    } else if (kind === 1 && n === 1) {
      c.get(L_TEMP)
      c.i64(bits - 1)
      c.op(OP.i64_shr_u)
      c.i64(11)
      c.op(OP.i64_shl)
      c.op(OP.i64_or)
    }
    c.set(L_FLAG_A)
    this.setKind(S.FLAG_SHIFT, K_SHIFT)
    c.get(L_FLAG_RES)
    this.popSized(op.dst, size)
  }

  #rotate(left: boolean, size: number, n: number): void {
    const { c, op } = this
    const top = (8 << size) - 1
    this.pushRegister(op.dst)
    if (size === 2) {
      c.op(OP.i32_wrap)
      c.i32(n)
      c.op(left ? OP.i32_rotl : OP.i32_rotr)
      c.op(OP.i64_extend_i32_u)
    } else {
      c.i64(n)
      c.op(left ? OP.i64_rotl : OP.i64_rotr)
    }
    c.tee(L_VALUE)
    this.popRegister(op.dst)
    const bit = (at: number): void => {
      c.get(L_VALUE)
      if (at > 0) {
        c.i64(at)
        c.op(OP.i64_shr_u)
      }
      c.op(OP.i32_wrap)
      c.i32(1)
      c.op(OP.i32_and)
    }
    bit(left ? 0 : top)
    bit(top)
    bit(left ? 0 : top - 1)
    c.op(OP.i32_xor)
    c.i32(11)
    c.op(OP.i32_shl)
    c.op(OP.i32_or)
    this.popRotateFlags()
  }

  /** True when the instruction has been translated. */
  #other(handler: number): boolean {
    const { c, op } = this
    switch (handler) {
      case O.H_NOP:
        return true
      case O.H_MOVZX_R8:
      case O.H_MOVZX_R16:
        this.pushUnsigned(op.src, handler - O.H_MOVZX_R8)
        this.popSized(op.dst, op.size)
        return true
      case O.H_MOVZX_M8:
      case O.H_MOVZX_M16:
        this.pushAddress()
        this.read(handler - O.H_MOVZX_M8, false)
        if (op.size === 1) this.popSized(op.dst, 1)
        else this.popRegister(op.dst)
        return true
      case O.H_MOVSX_R8:
      case O.H_MOVSX_R16:
      case O.H_MOVSX_R32:
        this.pushSigned(op.src, handler - O.H_MOVSX_R8)
        this.popSized(op.dst, handler === O.H_MOVSX_R32 ? 3 : op.size)
        return true
      case O.H_MOVSX_M8:
      case O.H_MOVSX_M16:
      case O.H_MOVSX_M32:
        this.pushAddress()
        this.read(handler - O.H_MOVSX_M8, true)
        this.popSized(op.dst, handler === O.H_MOVSX_M32 ? 3 : op.size)
        return true
      case O.H_PUSH64:
      case O.H_PUSHI64:
        this.pushStack(() => {
          if (handler === O.H_PUSH64) this.pushRegister(op.src)
          else this.pushImmediate()
        })
        return true
      case O.H_POP64:
        this.pushRegister(S.S_RSP)
        this.read(3, false)
        c.set(L_TEMP)
        this.moveStack(8)
        c.get(L_TEMP)
        this.popRegister(op.dst)
        return true
      case O.H_LEAVE64:
        this.pushRegister(S.S_RBP)
        this.read(3, false)
        c.set(L_TEMP)
        this.pushRegister(S.S_RBP)
        c.i64(8)
        c.op(OP.i64_add)
        this.popRegister(S.S_RSP)
        c.get(L_TEMP)
        this.popRegister(S.S_RBP)
        return true
      case O.H_SETCC_R:
        this.pushCondition(op.aux)
        c.op(OP.i64_extend_i32_u)
        this.popSized(op.dst, 0)
        return true
      case O.H_SETCC_M:
        this.pushAddress()
        this.pushCondition(op.aux)
        c.op(OP.i64_extend_i32_u)
        this.write(0)
        return true
      case O.H_CMOV_R:
        this.pushUnsigned(op.src, op.size)
        this.pushUnsigned(op.dst, op.size)
        this.pushCondition(op.aux)
        c.op(OP.select)
        this.popSized(op.dst, op.size)
        return true
      case O.H_CMOV_M:
        this.pushAddress()
        this.read(op.size, false)
        this.pushUnsigned(op.dst, op.size)
        this.pushCondition(op.aux)
        c.op(OP.select)
        this.popSized(op.dst, op.size)
        return true
      case O.H_IMUL_R:
        this.pushSigned(op.src, op.size)
        this.#multiply()
        return true
      case O.H_IMUL_M:
        this.pushAddress()
        this.read(op.size, true)
        this.#multiply()
        return true
      case O.H_CBW:
        this.pushSigned(S.S_RAX, op.size - 1)
        this.popSized(S.S_RAX, op.size)
        return true
      case O.H_CWD:
        this.pushSigned(S.S_RAX, op.size)
        c.i64(63)
        c.op(OP.i64_shr_s)
        this.popSized(S.S_RDX, op.size)
        return true
      case O.H_BSWAP:
        this.#swapBytes()
        return true
      case O.H_BIT:
        if (op.ea !== O.EA_REGISTER || op.size < 2 || this.known === K_UNKNOWN) return false
        this.#bit()
        return true
      default:
        return false
    }
  }

  /** RSP += `bytes`. */
  moveStack(bytes: number): void {
    this.pushRegister(S.S_RSP)
    this.c.i64(bytes)
    this.c.op(OP.i64_add)
    this.popRegister(S.S_RSP)
  }

  /** Pushes 8 bytes on the guest's stack. `commit` as for `write`, after RSP was moved. */
  pushStack(value: () => void, commit?: () => boolean): void {
    const { c } = this
    this.pushRegister(S.S_RSP)
    c.i64(-8)
    c.op(OP.i64_add)
    value()
    this.write(3, () => {
      this.moveStack(-8)
      return commit?.() ?? false
    })
    this.moveStack(-8)
  }

  /** IMUL of two or three operands: the source is on the stack, sign-extended. */
  #multiply(): void {
    const { c, op } = this
    const { size } = op
    c.set(L_TEMP)
    if (op.aux) this.#pushImmediate(3)
    else this.pushSigned(op.dst, size)
    c.set(L_VALUE)
    c.get(L_TEMP)
    c.get(L_VALUE)
    c.op(OP.i64_mul)
    if (size === 3) {
      c.set(L_FLAG_RES)
      // Operands of 32 bits cannot overflow; only others need the upper half.
      for (const local of [L_TEMP, L_VALUE]) {
        c.get(local)
        c.get(local)
        c.op(OP.i64_extend32_s)
        c.op(OP.i64_ne)
      }
      c.op(OP.i32_or)
      c.if(I64)
      c.get(L_TEMP)
      c.get(L_VALUE)
      c.call(F_MUL_HIGH)
      c.get(L_FLAG_RES)
      c.i64(63)
      c.op(OP.i64_shr_s)
      c.op(OP.i64_ne)
      c.op(OP.i64_extend_i32_u)
      c.else()
      c.i64(0)
      c.end()
    } else {
      c.tee(L_VALUE)
      this.extend(size)
      c.tee(L_FLAG_RES)
      c.get(L_VALUE)
      c.op(OP.i64_ne)
      c.op(OP.i64_extend_i32_u)
    }
    c.i64(0x801)
    c.op(OP.i64_mul)
    c.set(L_FLAG_A)
    this.setKind(S.FLAG_SHIFT, K_SHIFT)
    c.get(L_FLAG_RES)
    this.popSized(op.dst, size)
  }

  #swapBytes(): void {
    const { c, op } = this
    if (op.size === 1) {
      c.i64(0)
      this.popSized(op.dst, 1)
      return
    }
    const swap = (low: number, high: number, by: number): void => {
      c.get(L_TEMP)
      c.i64Halves(low, high)
      c.op(OP.i64_and)
      c.i64(by)
      c.op(OP.i64_shl)
      c.get(L_TEMP)
      c.i64(by)
      c.op(OP.i64_shr_u)
      c.i64Halves(low, high)
      c.op(OP.i64_and)
      c.op(OP.i64_or)
    }
    this.pushUnsigned(op.dst, op.size)
    c.set(L_TEMP)
    swap(0x00ff00ff, 0x00ff00ff, 8)
    c.set(L_TEMP)
    swap(0x0000ffff, 0x0000ffff, 16)
    if (op.size === 3) {
      c.i64(32)
      c.op(OP.i64_rotl)
    }
    this.popRegister(op.dst)
  }

  /** BT BTS BTR BTC of a register: CF is the bit, the other flags stay. */
  #bit(): void {
    const { c, op } = this
    const bits = 8 << op.size
    // 1 << index, and the old bit in CF.
    c.i64(1)
    if (op.aux2) c.i64(op.immLow & (bits - 1))
    else {
      this.pushRegister(op.dst)
      c.i64(bits - 1)
      c.op(OP.i64_and)
    }
    c.op(OP.i64_shl)
    c.set(L_VALUE)
    this.pushRegister(op.src)
    c.get(L_VALUE)
    c.op(OP.i64_and)
    c.i64(0)
    c.op(OP.i64_ne)
    this.pushOverflow()
    c.i32(11)
    c.op(OP.i32_shl)
    c.op(OP.i32_or)
    if (op.aux) {
      this.pushUnsigned(op.src, op.size)
      c.get(L_VALUE)
      if (op.aux === 2) {
        c.i64(-1)
        c.op(OP.i64_xor)
        c.op(OP.i64_and)
      } else c.op(op.aux === 1 ? OP.i64_or : OP.i64_xor)
      this.popSized(op.src, op.size)
    }
    this.popRotateFlags()
  }

  /** Calls the interpreter's handler for this record, with the registers where it expects them. */
  #interpret(): void {
    const { c, op } = this
    this.spillRegisters()
    if (this.flagsWritten) this.spillFlags()
    this.storeBlockRip()
    c.i32(op.address)
    c.get(L_LEFT)
    c.call(F_OP)
    c.set(L_POINTER)
    this.fillRegisters()
    this.fillFlags()
    this.known = K_UNKNOWN
    c.get(L_POINTER)
    c.if()
    this.setWhere(false)
    c.get(L_POINTER)
    c.i32(1)
    c.op(OP.i32_eq)
    c.brIf(this.faultLabel)
    if (op.handler === O.H_STRING) {
      c.get(L_POINTER)
      c.i32(PAUSED)
      c.op(OP.i32_ge_s)
      c.if()
      c.get(L_LEFT)
      c.get(L_POINTER)
      c.i32(PAUSED)
      c.op(OP.i32_sub)
      c.op(OP.i32_sub)
      c.set(L_LEFT)
      c.br(this.faultLabel)
      c.end()
    }
    this.setWhere(true)
    c.br(this.faultLabel)
    c.end()
  }

  storeBlockRip(): void {
    this.c.i32(0)
    this.pushPlace(this.blockOffset)
    this.c.memory(MEM.i64_store, this.base + S.S_BLOCK_RIP)
  }
}
