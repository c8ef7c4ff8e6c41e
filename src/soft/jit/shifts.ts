/** Instructions that move bits about: shifts, rotates, single bits, byte swaps. */
import * as S from '../../../wasm/cpu/state.ts'
import { L_ADDRESS, L_FLAG_A, L_FLAG_RES, L_TEMP, L_VALUE } from './context.ts'
import { K_SHIFT } from './flags.ts'
import { VectorContext } from './vectors.ts'
import { MEM, OP } from './wasm-emitter.ts'

export class ShiftContext extends VectorContext {
  /** SHL SHR SAR of a 32-bit or 64-bit register by CL; a count of 0 leaves the flags alone, so they go through the state. */
  shiftByCl(): void {
    const { c, op } = this
    const { size, aux } = op
    const left = aux !== 5 && aux !== 7
    const top = (8 << size) - 1
    this.flush()
    this.forgetFlags()
    this.pushRegister(S.S_RCX)
    c.i64(top)
    c.op(OP.i64_and)
    c.set(L_VALUE)
    if (aux === 7) this.pushSigned(op.dst, size)
    else this.pushUnsigned(op.dst, size)
    c.tee(L_TEMP)
    c.get(L_VALUE)
    c.op(left ? OP.i64_shl : aux === 5 ? OP.i64_shr_u : OP.i64_shr_s)
    c.set(L_ADDRESS)
    c.get(L_VALUE)
    c.i64(0)
    c.op(OP.i64_ne)
    c.if()
    c.i32(0)
    c.get(L_ADDRESS)
    this.extend(size)
    c.tee(L_ADDRESS)
    c.memory(MEM.i64_store, this.base + S.S_FLAG_RES)
    c.i32(0)
    c.i32(S.FLAG_SHIFT)
    c.memory(MEM.i32_store, this.base + S.S_FLAG_KIND)
    // CF is the bit that went out last; OF is told by the sign, for SHR only after one step.
    c.get(L_TEMP)
    if (left) c.i64(top + 1)
    c.get(L_VALUE)
    if (!left) c.i64(1)
    c.op(OP.i64_sub)
    c.op(OP.i64_shr_u)
    c.i64(1)
    c.op(OP.i64_and)
    if (aux !== 7) {
      c.set(L_TEMP)
      c.i32(0)
      c.get(L_TEMP)
      if (left) {
        c.get(L_TEMP)
        c.get(L_ADDRESS)
        c.i64(63)
        c.op(OP.i64_shr_u)
        c.op(OP.i64_xor)
      } else {
        this.pushUnsigned(op.dst, size)
        c.i64(top)
        c.op(OP.i64_shr_u)
        c.get(L_VALUE)
        c.i64(1)
        c.op(OP.i64_eq)
        c.op(OP.i64_extend_i32_u)
        c.op(OP.i64_and)
      }
      c.i64(11)
      c.op(OP.i64_shl)
      c.op(OP.i64_or)
    } else {
      c.set(L_TEMP)
      c.i32(0)
      c.get(L_TEMP)
    }
    c.memory(MEM.i64_store, this.base + S.S_FLAG_A)
    c.end()
    c.get(L_ADDRESS)
    this.popSized(op.dst, size)
  }

  /** SHL SHR SAR ROL ROR of a 32-bit or 64-bit register by a constant that is not 0. */
  shift(kind: number, size: number): void {
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
    if (this.flagsDead) {
      this.popSized(op.dst, size)
      return
    }
    this.extend(size)
    this.setFlag(L_FLAG_RES)
    // The bit that went out last.
    c.get(L_TEMP)
    c.i64(kind === 0 ? bits - n : n - 1)
    c.op(OP.i64_shr_u)
    c.i64(1)
    c.op(OP.i64_and)
    if (kind === 0) {
      c.tee(L_VALUE)
      c.get(L_VALUE)
      this.pushFlag(L_FLAG_RES)
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
    this.setFlag(L_FLAG_A)
    this.setKind(S.FLAG_SHIFT, K_SHIFT)
    this.pushFlag(L_FLAG_RES)
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
    if (this.flagsDead) return
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

  swapBytes(): void {
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
  bit(): void {
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
}
