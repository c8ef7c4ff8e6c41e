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
import { K_ADD, K_ADD_CARRY, K_DEC, K_INC, K_LOGIC, K_SHIFT, K_SUB, K_SUB_CARRY, K_UNKNOWN } from './flags.ts'
import { ShiftContext } from './shifts.ts'
import { I64, MEM, OP } from './wasm-emitter.ts'

/** jitOp's answers from here on are paused string instructions (wasm/cpu/jit.ts). */
const PAUSED = 16

/** ADD OR - - AND SUB XOR. */
const PLAIN: readonly number[] = [
  OP.i64_add,
  OP.i64_or,
  OP.i64_add,
  OP.i64_sub,
  OP.i64_and,
  OP.i64_sub,
  OP.i64_xor,
] as const

export class OperationContext extends ShiftContext {
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
      this.shift((handler - O.H_SHL32) >> 1, (handler - O.H_SHL32) & 1 ? 3 : 2)
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
    if (this.flagsDead) {
      if (!compares) this.#plainArithmetic(alu, form, size)
      return
    }
    if (alu === O.ALU_XOR && form === O.FORM_RR && op.dst === op.src && size >= 2) {
      c.i64(0)
      this.teeFlag(L_FLAG_RES)
      this.popRegister(op.dst)
      this.setKind(S.FLAG_LOGIC, K_LOGIC)
      return
    }
    // The access that may fault comes first; flags and registers change after it.
    if (form === O.FORM_RM || (inMemory && compares)) {
      this.readOperand(size, true)
      c.set(L_TEMP)
    } else if (inMemory) {
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
      this.setFlag(L_FLAG_RES)
      this.setKind(S.FLAG_LOGIC, K_LOGIC)
    } else {
      const adds = alu === O.ALU_ADD || alu === O.ALU_ADC
      pushA()
      pushB()
      this.setFlag(L_FLAG_B)
      this.teeFlag(L_FLAG_A)
      this.pushFlag(L_FLAG_B)
      const operation = adds ? OP.i64_add : OP.i64_sub
      c.op(operation)
      if (carries) {
        c.get(L_BIT)
        c.op(OP.i64_extend_i32_u)
        c.op(operation)
      }
      this.extend(size)
      this.setFlag(L_FLAG_RES)
      if (carries) this.setKindPlusBit(adds ? S.FLAG_ADD : S.FLAG_SUB, adds ? K_ADD_CARRY : K_SUB_CARRY)
      else this.setKind(adds ? S.FLAG_ADD : S.FLAG_SUB, adds ? K_ADD : K_SUB)
    }
    if (compares) return
    if (inMemory) this.endChange(size, L_FLAG_RES)
    else {
      this.pushFlag(L_FLAG_RES)
      this.popSized(op.dst, size)
    }
  }

  /** Of registers, without flags. What is above the operand's size does not matter: it is cut off at the end. */
  #plainArithmetic(alu: number, form: number, size: number): void {
    const { c, op } = this
    this.pushSigned(op.dst, size === 0 ? 0 : 3)
    if (form === O.FORM_RI) this.#pushImmediate(size)
    else this.pushSigned(op.src, size === 0 ? 0 : 3)
    c.op(PLAIN[alu]!)
    this.popSized(op.dst, size)
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
        this.readOperand(size, false)
        if (size >= 2) this.popRegister(op.dst)
        else this.popSized(op.dst, size)
        return
      case O.FORM_MR:
        // Stores take the low part by themselves.
        this.writeOperand(size, () => (op.src & 1 ? this.pushUnsigned(op.src, size) : this.pushRegister(op.src)))
        return
      default:
        this.writeOperand(size, () => this.#pushImmediate(size))
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
    if (this.flagsDead) {
      if (kind === 3) c.i64(0)
      this.pushSigned(op.dst, size)
      if (kind !== 3) c.i64(1)
      c.op(kind === 0 ? OP.i64_add : OP.i64_sub)
      this.popSized(op.dst, size)
      return
    }
    if (kind === 3) {
      this.pushSigned(op.dst, size)
      this.setFlag(L_FLAG_B)
      c.i64(0)
      this.teeFlag(L_FLAG_A)
      this.pushFlag(L_FLAG_B)
      c.op(OP.i64_sub)
      this.setKind(S.FLAG_SUB, K_SUB)
    } else {
      this.pushCarry()
      c.set(L_BIT)
      this.pushSigned(op.dst, size)
      this.teeFlag(L_FLAG_A)
      c.i64(1)
      this.teeFlag(L_FLAG_B)
      c.op(kind === 0 ? OP.i64_add : OP.i64_sub)
      this.setKindPlusBit(kind === 0 ? S.FLAG_INC0 : S.FLAG_DEC0, kind === 0 ? K_INC : K_DEC)
    }
    this.extend(size)
    this.teeFlag(L_FLAG_RES)
    this.popSized(op.dst, size)
  }

  /** INC, DEC, NOT, NEG of memory. */
  #unaryMemory(): void {
    const { c, op } = this
    const { size, aux } = op
    this.beginChange(size)
    if (aux === 2) {
      this.pushOld(size)
      c.i64(-1)
      c.op(OP.i64_xor)
      c.set(L_VALUE)
      this.endChange(size, L_VALUE)
      return
    }
    if (aux === 3) {
      this.pushOld(size)
      this.setFlag(L_FLAG_B)
      c.i64(0)
      this.teeFlag(L_FLAG_A)
      this.pushFlag(L_FLAG_B)
    } else {
      this.pushCarry()
      c.set(L_BIT)
      this.pushOld(size)
      this.teeFlag(L_FLAG_A)
      c.i64(1)
      this.teeFlag(L_FLAG_B)
    }
    c.op(aux === 0 ? OP.i64_add : OP.i64_sub)
    this.extend(size)
    this.setFlag(L_FLAG_RES)
    if (aux === 3) this.setKind(S.FLAG_SUB, K_SUB)
    else this.setKindPlusBit(aux === 0 ? S.FLAG_INC0 : S.FLAG_DEC0, aux === 0 ? K_INC : K_DEC)
    this.endChange(size, L_FLAG_RES)
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
        this.readOperand(handler - O.H_MOVZX_M8, false)
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
        this.readOperand(handler - O.H_MOVSX_M8, true)
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
        this.readStack(S.S_RSP)
        c.set(L_TEMP)
        this.moveStack(8)
        c.get(L_TEMP)
        this.popRegister(op.dst)
        return true
      case O.H_LEAVE64:
        this.readStack(S.S_RBP)
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
        this.writeOperand(0, () => {
          this.pushCondition(op.aux)
          c.op(OP.i64_extend_i32_u)
        })
        return true
      case O.H_CMOV_R:
        this.pushUnsigned(op.src, op.size)
        this.pushUnsigned(op.dst, op.size)
        this.pushCondition(op.aux)
        c.op(OP.select)
        this.popSized(op.dst, op.size)
        return true
      case O.H_CMOV_M:
        this.readOperand(op.size, false)
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
        this.readOperand(op.size, true)
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
        this.swapBytes()
        return true
      case O.H_VECTOR:
        return this.vector()
      case O.H_UNARY_M:
        if (op.flags & O.OPF_LOCK) return false
        this.#unaryMemory()
        return true
      case O.H_SHIFT_RCL:
        if (op.size < 2 || op.aux < 4) return false
        this.shiftByCl()
        return true
      case O.H_BIT:
        if (op.ea !== O.EA_REGISTER || op.size < 2 || this.known === K_UNKNOWN) return false
        this.bit()
        return true
      default:
        return false
    }
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
    if (this.flagsDead) {
      this.popSized(op.dst, size)
      return
    }
    if (size === 3) {
      this.setFlag(L_FLAG_RES)
      // Operands of 32 bits cannot overflow; only others need the upper half.
      for (const local of [L_TEMP, L_VALUE]) {
        c.get(local)
        c.get(local)
        c.op(OP.i64_extend32_s)
        c.op(OP.i64_ne)
      }
      c.op(OP.i32_or)
      c.ifHinted(false, I64)
      c.get(L_TEMP)
      c.get(L_VALUE)
      c.call(F_MUL_HIGH)
      this.pushFlag(L_FLAG_RES)
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
      this.teeFlag(L_FLAG_RES)
      c.get(L_VALUE)
      c.op(OP.i64_ne)
      c.op(OP.i64_extend_i32_u)
    }
    c.i64(0x801)
    c.op(OP.i64_mul)
    this.setFlag(L_FLAG_A)
    this.setKind(S.FLAG_SHIFT, K_SHIFT)
    this.pushFlag(L_FLAG_RES)
    this.popSized(op.dst, size)
  }

  /** Calls the interpreter's handler for this record, with the registers where it expects them. */
  #interpret(): void {
    const { c, op } = this
    this.flush()
    this.storeBlockRip()
    c.i32(op.address)
    c.get(L_LEFT)
    c.call(F_OP)
    this.forget()
    c.tee(L_POINTER)
    c.ifHinted(false)
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
