/**
 * Flags at translation time. The last flag-setting operation is in locals, just as state.ts has it in memory; where its kind is known while
 * translating, conditions become comparisons of its operands. What is never looked at is removed by the engine's own optimiser.
 */
import * as S from '../../../wasm/cpu/state.ts'
import {
  F_CARRY,
  F_CONDITION,
  F_ROTATE_FLAGS,
  KIND_LOCAL,
  KIND_STATE,
  L_BIT,
  L_FLAG_A,
  L_FLAG_B,
  L_FLAG_KIND,
  L_FLAG_RES,
  L_TEMP,
} from './context.ts'
import { MemoryContext } from './memory.ts'
import { OP } from './wasm-emitter.ts'

/** What is known of the kind of the last flag-setting operation: nothing, one kind, or two that differ in a bit of L_FLAG_KIND. */
/** Unknown flags are in the state as a whole. */
export const K_UNKNOWN = 0
export const K_LOGIC = 1
export const K_ADD = 2
export const K_SUB = 3
/** ADD or ADC, SUB or SBB: bit 0 of the kind is the carry that went in. */
export const K_ADD_CARRY = 4
export const K_SUB_CARRY = 5
/** INC or DEC: bit 0 of the kind is the carry that was kept. */
export const K_INC = 6
export const K_DEC = 7
export const K_SHIFT = 8

const SUB_COMPARE: readonly number[] = [
  -1,
  -1,
  OP.i64_lt_u,
  OP.i64_ge_u,
  -1,
  -1,
  OP.i64_le_u,
  OP.i64_gt_u,
  -1,
  -1,
  -1,
  -1,
  OP.i64_lt_s,
  OP.i64_ge_s,
  OP.i64_le_s,
  OP.i64_gt_s,
]

export class FlagContext extends MemoryContext {
  /** The kind of the flags is a constant. */
  setKind(kind: number, known: number): void {
    this.kind = kind
    this.kindDirty = true
    this.known = known
    if (known === K_LOGIC || known === K_SHIFT) this.dropFlagOperands(known === K_LOGIC)
  }

  /** L_FLAG_KIND = `kind` + L_BIT. */
  setKindPlusBit(kind: number, known: number): void {
    this.c.i32(kind)
    this.c.get(L_BIT)
    this.c.op(OP.i32_add)
    this.c.set(L_FLAG_KIND)
    this.kind = KIND_LOCAL
    this.kindDirty = true
    this.known = known
  }

  /** Pushes bit 0 of the kind: the carry that went in, or was kept. */
  #pushKindBit(): void {
    const { c } = this
    if (this.kind >= 0) {
      c.i32(this.kind & 1)
      return
    }
    if (this.kind === KIND_STATE) {
      this.loadState32(S.S_FLAG_KIND)
      c.tee(L_FLAG_KIND)
      this.kind = KIND_LOCAL
    } else c.get(L_FLAG_KIND)
    c.i32(1)
    c.op(OP.i32_and)
  }

  #compare(left: number, right: number, opcode: number): void {
    this.pushFlag(left)
    this.pushFlag(right)
    this.c.op(opcode)
  }

  /** `plain`(left, right), or equality when bit 0 of the kind is set. */
  #compareWithCarry(left: number, right: number): void {
    const { c } = this
    this.#compare(left, right, OP.i64_lt_u)
    this.#pushKindBit()
    this.#compare(left, right, OP.i64_eq)
    c.op(OP.i32_and)
    c.op(OP.i32_or)
  }

  /** Pushes CF as 0 or 1. */
  pushCarry(): void {
    const { c } = this
    switch (this.known) {
      case K_LOGIC:
        c.i32(0)
        return
      case K_ADD:
        this.#compare(L_FLAG_RES, L_FLAG_A, OP.i64_lt_u)
        return
      case K_SUB:
        this.#compare(L_FLAG_A, L_FLAG_B, OP.i64_lt_u)
        return
      case K_ADD_CARRY:
        this.#compareWithCarry(L_FLAG_RES, L_FLAG_A)
        return
      case K_SUB_CARRY:
        this.#compareWithCarry(L_FLAG_A, L_FLAG_B)
        return
      case K_INC:
      case K_DEC:
        this.#pushKindBit()
        return
      case K_SHIFT:
        this.pushFlag(L_FLAG_A)
        c.op(OP.i32_wrap)
        c.i32(1)
        c.op(OP.i32_and)
        return
      default:
        c.call(F_CARRY)
    }
  }

  pushOverflow(): void {
    const { c } = this
    const pair = (a: number, b: number, x: number, y: number): void => {
      this.#compare(a, b, OP.i64_xor)
      this.#compare(x, y, OP.i64_xor)
      c.op(OP.i64_and)
      c.i64(0)
      c.op(OP.i64_lt_s)
    }
    switch (this.known) {
      case K_LOGIC:
        c.i32(0)
        return
      case K_ADD:
      case K_ADD_CARRY:
      case K_INC:
        pair(L_FLAG_A, L_FLAG_RES, L_FLAG_B, L_FLAG_RES)
        return
      case K_SUB:
      case K_SUB_CARRY:
      case K_DEC:
        pair(L_FLAG_A, L_FLAG_B, L_FLAG_A, L_FLAG_RES)
        return
      default:
        this.pushFlag(L_FLAG_A)
        c.op(OP.i32_wrap)
        c.i32(11)
        c.op(OP.i32_shr_u)
        c.i32(1)
        c.op(OP.i32_and)
    }
  }

  #pushZero(): void {
    this.pushFlag(L_FLAG_RES)
    this.c.op(OP.i64_eqz)
  }

  #pushSign(): void {
    this.pushFlag(L_FLAG_RES)
    this.c.i64(0)
    this.c.op(OP.i64_lt_s)
  }

  /** Pushes condition `code` of Jcc, SETcc, CMOVcc as 0 or 1. */
  pushCondition(code: number): void {
    const { c } = this
    if (this.known === K_UNKNOWN) {
      c.i32(code)
      c.call(F_CONDITION)
      return
    }
    const direct = this.known === K_SUB ? SUB_COMPARE[code]! : -1
    if (direct >= 0) {
      this.#compare(L_FLAG_A, L_FLAG_B, direct)
      return
    }
    const logic = this.known === K_LOGIC
    switch (code >> 1) {
      case 0:
        this.pushOverflow()
        break
      case 1:
        this.pushCarry()
        break
      case 2:
        this.#pushZero()
        break
      case 3:
        this.#pushZero()
        if (logic) break
        this.pushCarry()
        c.op(OP.i32_or)
        break
      case 4:
        this.#pushSign()
        break
      case 5:
        this.pushFlag(L_FLAG_RES)
        c.i64(0xff)
        c.op(OP.i64_and)
        c.op(OP.i64_popcnt)
        c.i64(1)
        c.op(OP.i64_and)
        c.op(OP.i64_eqz)
        break
      default:
        this.#pushSign()
        if (!logic) {
          this.pushOverflow()
          c.op(OP.i32_xor)
        }
        if (code >> 1 === 7) {
          this.#pushZero()
          c.op(OP.i32_or)
        }
    }
    if (code & 1) c.op(OP.i32_eqz)
  }

  /** Flags of a rotate: pops an i32 with CF in bit 0 and OF in bit 11; the others stay what they are. */
  popRotateFlags(): void {
    const { c } = this
    if (this.known === K_UNKNOWN) {
      c.call(F_ROTATE_FLAGS)
      return
    }
    c.op(OP.i64_extend_i32_u)
    c.set(L_TEMP)
    // AF is kept: bit 4 of a literal, or of a ^ b ^ result.
    if (this.known === K_LOGIC) c.i64(0)
    else {
      this.pushFlag(L_FLAG_A)
      if (this.known !== K_SHIFT) {
        this.pushFlag(L_FLAG_B)
        c.op(OP.i64_xor)
        this.pushFlag(L_FLAG_RES)
        c.op(OP.i64_xor)
      }
      c.i64(0x10)
      c.op(OP.i64_and)
    }
    c.get(L_TEMP)
    c.op(OP.i64_or)
    this.setFlag(L_FLAG_A)
    this.setKind(S.FLAG_SHIFT, K_SHIFT)
  }
}
