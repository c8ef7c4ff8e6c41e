/**
 * Vector instructions that need no floating-point environment: moves, logic, compares, integer arithmetic, unpacking. XMM registers stay in the
 * state. What is not here, or would fault (an unaligned operand, #NM), is left to the interpreter.
 */
import * as O from '../../../wasm/cpu/ops.ts'
import * as S from '../../../wasm/cpu/state.ts'
import { L_POINTER, L_VALUE } from './context.ts'
import { FlagContext } from './flags.ts'
import { MEM, OP, SIMD } from './wasm-emitter.ts'

const { PREFIX_NONE, PREFIX_66, PREFIX_F3, PREFIX_F2 } = O

/** 66 0F xx: DST = DST op SRC, both of 16 bytes, by WebAssembly's operation. */
const BINARY: ReadonlyMap<number, number> = new Map([
  [0x64, SIMD.i8x16_gt_s],
  [0x65, SIMD.i16x8_gt_s],
  [0x66, SIMD.i32x4_gt_s],
  [0x74, SIMD.i8x16_eq],
  [0x75, SIMD.i16x8_eq],
  [0x76, SIMD.i32x4_eq],
  [0xd4, SIMD.i64x2_add],
  [0xd5, SIMD.i16x8_mul],
  [0xda, SIMD.i8x16_min_u],
  [0xdb, SIMD.and],
  [0xde, SIMD.i8x16_max_u],
  [0xea, SIMD.i16x8_min_s],
  [0xeb, SIMD.or],
  [0xee, SIMD.i16x8_max_s],
  [0xef, SIMD.xor],
  [0xf8, SIMD.i8x16_sub],
  [0xf9, SIMD.i16x8_sub],
  [0xfa, SIMD.i32x4_sub],
  [0xfb, SIMD.i64x2_sub],
  [0xfc, SIMD.i8x16_add],
  [0xfd, SIMD.i16x8_add],
  [0xfe, SIMD.i32x4_add],
])

/** Lanes of `width` bytes of both operands in turn, from byte `from` on. */
function interleaved(width: number, from: number): number[] {
  return Array.from({ length: 16 }, (_, at) => {
    const lane = Math.floor(at / width)
    return from + (lane >> 1) * width + (at % width) + (lane & 1 ? 16 : 0)
  })
}

/** 66 0F 60 to 62, 68 to 6A, 6C, 6D: PUNPCK. */
const UNPACK: ReadonlyMap<number, readonly number[]> = new Map([
  [0x60, interleaved(1, 0)],
  [0x61, interleaved(2, 0)],
  [0x62, interleaved(4, 0)],
  [0x68, interleaved(1, 8)],
  [0x69, interleaved(2, 8)],
  [0x6a, interleaved(4, 8)],
  [0x6c, interleaved(8, 0)],
  [0x6d, interleaved(8, 8)],
])

export class VectorContext extends FlagContext {
  #place(register: number, part = 0): number {
    return this.base + S.S_XMM + register * S.XMM_STRIDE + part
  }

  #pushXmm(register: number): void {
    this.c.i32(0)
    this.c.simdMemory(SIMD.load, this.#place(register))
  }

  /** DST = what `value` pushes. The access that may miss must be in it, so that nothing is changed before. */
  #set(register: number, value: () => void): void {
    this.c.i32(0)
    value()
    this.c.simdMemory(SIMD.store, this.#place(register))
  }

  /** Pushes the place of the memory operand of 1 << `size` bytes. */
  #pushOperand(size: number, writes: boolean, aligned = false): void {
    const { c } = this
    this.placeOperand(1 << size, writes)
    if (!aligned) return
    // Places are aligned as linear addresses are.
    c.tee(L_POINTER)
    c.i32(15)
    c.op(OP.i32_and)
    c.ifHinted(false)
    this.miss()
    c.end()
    c.get(L_POINTER)
  }

  /** Pushes the 16 bytes of the source. */
  #pushSource(aligned: boolean): void {
    if (this.op.ea === O.EA_REGISTER) {
      this.#pushXmm(this.op.src)
      return
    }
    this.#pushOperand(4, false, aligned)
    this.c.simdMemory(SIMD.load, 0)
  }

  #store(aligned: boolean): void {
    if (this.op.ea === O.EA_REGISTER) {
      this.#set(this.op.src, () => this.#pushXmm(this.op.dst))
      return
    }
    this.#pushOperand(4, true, aligned)
    this.#pushXmm(this.op.dst)
    this.c.simdMemory(SIMD.store, 0)
  }

  /** Copies 4 or 8 bytes of an XMM register to memory. */
  #storePart(size: number, part: number): void {
    const { c } = this
    this.#pushOperand(size, true)
    c.i32(0)
    c.memory(MEM.i64_load, this.#place(this.op.dst, part))
    c.memory(size === 2 ? MEM.i64_store32 : MEM.i64_store, 0)
  }

  /** Copies 8 bytes of memory, or of a register's part `from`, to part `part` of DST, whose rest stays. */
  #loadPart(part: number, from: number): void {
    const { c, op } = this
    c.i32(0)
    if (op.ea === O.EA_REGISTER) {
      c.i32(0)
      c.memory(MEM.i64_load, this.#place(op.src, from))
    } else {
      this.#pushOperand(3, false)
      c.memory(MEM.i64_load, 0)
    }
    c.memory(MEM.i64_store, this.#place(op.dst, part))
  }

  /** MOVSS, MOVSD to a register. */
  #loadScalar(size: number): void {
    const { c, op } = this
    if (op.ea !== O.EA_REGISTER) {
      this.#set(op.dst, () => {
        this.#pushOperand(size, false)
        c.simdMemory(size === 2 ? SIMD.load32_zero : SIMD.load64_zero, 0)
      })
      return
    }
    c.i32(0)
    c.i32(0)
    c.memory(MEM.i64_load, this.#place(op.src))
    c.memory(size === 2 ? MEM.i64_store32 : MEM.i64_store, this.#place(op.dst))
  }

  /** MOVD, MOVQ from a general register or memory. */
  #fromGeneral(): void {
    const { c, op } = this
    const size = op.size === 3 ? 3 : 2
    if (op.ea !== O.EA_REGISTER) {
      this.#loadScalar(size)
      return
    }
    this.pushUnsigned(op.src * 8, size)
    c.set(L_VALUE)
    this.#set(op.dst, () => {
      c.i64(0)
      c.simd(SIMD.i64x2_splat)
      c.get(L_VALUE)
      c.simd(SIMD.i64x2_replace_lane)
      c.byte(0)
    })
  }

  #toGeneral(): void {
    const { c, op } = this
    const size = op.size === 3 ? 3 : 2
    if (op.ea !== O.EA_REGISTER) {
      this.#storePart(size, 0)
      return
    }
    c.i32(0)
    c.memory(size === 3 ? MEM.i64_load : MEM.i64_load32_u, this.#place(op.dst))
    this.popRegister(op.src * 8)
  }

  #shuffle(lanes: readonly number[]): void {
    this.c.simd(SIMD.shuffle)
    for (const lane of lanes) this.c.byte(lane)
  }

  #checkTrap(): void {
    if (this.fpuChecked) return
    this.loadState32(S.S_FPU_TRAP)
    this.c.ifHinted(false)
    this.miss()
    this.c.end()
    this.fpuChecked = true
  }

  /** Translates `this.op`; false when it is one for the interpreter. */
  vector(): boolean {
    const selector = this.op.immLow >>> 16
    if (selector >> 10 !== 0) return false
    const opcode = selector & 0xff
    const prefix = (selector >> 8) & 3
    const emit = this.#emitter(opcode, prefix)
    if (!emit) return false
    this.#checkTrap()
    emit()
    return true
  }

  #emitter(opcode: number, prefix: number): (() => void) | undefined {
    const { c, op } = this
    const register = op.ea === O.EA_REGISTER
    const plain = prefix === PREFIX_NONE || prefix === PREFIX_66
    if (prefix === PREFIX_66) {
      const binary = BINARY.get(opcode)
      if (binary !== undefined) return () => this.#binary(binary)
      const lanes = UNPACK.get(opcode)
      if (lanes) {
        return () =>
          this.#set(op.dst, () => {
            this.#pushXmm(op.dst)
            this.#pushSource(true)
            this.#shuffle(lanes)
          })
      }
    }
    switch (opcode) {
      case 0x10:
        if (plain) return () => this.#set(op.dst, () => this.#pushSource(false))
        return () => this.#loadScalar(prefix === PREFIX_F3 ? 2 : 3)
      case 0x11:
        if (plain) return () => this.#store(false)
        return register ? undefined : () => this.#storePart(prefix === PREFIX_F3 ? 2 : 3, 0)
      case 0x12:
        return plain && (prefix === PREFIX_NONE || !register) ? () => this.#loadPart(0, 8) : undefined
      case 0x13:
        return plain && !register ? () => this.#storePart(3, 0) : undefined
      case 0x16:
        return plain && (prefix === PREFIX_NONE || !register) ? () => this.#loadPart(8, 0) : undefined
      case 0x17:
        return plain && !register ? () => this.#storePart(3, 8) : undefined
      case 0x28:
        return plain ? () => this.#set(op.dst, () => this.#pushSource(true)) : undefined
      case 0x29:
        return plain ? () => this.#store(true) : undefined
      case 0x2b:
        return plain && !register ? () => this.#store(true) : undefined
      case 0x54:
        return plain ? () => this.#binary(SIMD.and) : undefined
      case 0x56:
        return plain ? () => this.#binary(SIMD.or) : undefined
      case 0x57:
        return plain ? () => this.#binary(SIMD.xor) : undefined
      case 0x6e:
        return prefix === PREFIX_66 ? () => this.#fromGeneral() : undefined
      case 0x6f:
        return prefix === PREFIX_66 || prefix === PREFIX_F3
          ? () => this.#set(op.dst, () => this.#pushSource(prefix === PREFIX_66))
          : undefined
      case 0x70: {
        if (prefix !== PREFIX_66) return undefined
        const order = Array.from({ length: 16 }, (_, at) => ((op.immLow >> ((at >> 2) * 2)) & 3) * 4 + (at & 3))
        return () =>
          this.#set(op.dst, () => {
            this.#pushSource(true)
            this.#pushXmm(op.dst)
            this.#shuffle(order)
          })
      }
      case 0x7e:
        if (prefix === PREFIX_66) return () => this.#toGeneral()
        if (prefix !== PREFIX_F3 || register) return undefined
        return () => this.#loadScalar(3)
      case 0x7f:
        return prefix === PREFIX_66 || prefix === PREFIX_F3 ? () => this.#store(prefix === PREFIX_66) : undefined
      case 0xd6:
        return prefix === PREFIX_66 && !register ? () => this.#storePart(3, 0) : undefined
      case 0xd7:
        if (prefix !== PREFIX_66 || !register) return undefined
        return () => {
          this.#pushXmm(op.src)
          c.simd(SIMD.i8x16_bitmask)
          c.op(OP.i64_extend_i32_u)
          this.popRegister(op.dst * 8)
        }
      case 0xe7:
        return prefix === PREFIX_66 && !register ? () => this.#store(true) : undefined
      case 0xf0:
        return prefix === PREFIX_F2 && !register ? () => this.#set(op.dst, () => this.#pushSource(false)) : undefined
      default:
        return undefined
    }
  }

  #binary(operation: number): void {
    const { op } = this
    this.#set(op.dst, () => {
      this.#pushXmm(op.dst)
      this.#pushSource(true)
      this.c.simd(operation)
    })
  }
}
