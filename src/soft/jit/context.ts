/**
 * What every translated instruction uses: registers in locals, effective addresses, the software TLB in line, and ways out.
 *
 * A region is translated twice: the first pass finds out which registers it touches, the second emits the code that is kept.
 */
import * as O from '../../../wasm/cpu/ops.ts'
import * as S from '../../../wasm/cpu/state.ts'
import { Code, type FunctionType, I32, I64, type ImportedFunction, type Label, MEM, OP } from './wasm-emitter.ts'

/** (RIP of the block that is entered, budget, number of the entry) -> budget */
export const REGION_TYPE: FunctionType = { params: [I64, I32, I32], results: [I32] }

/** What compiled code calls in the CPU module; the position is the function index. */
export const IMPORTS: readonly ImportedFunction[] = [
  { name: 'readSlow', type: { params: [I64, I32], results: [I64] } },
  { name: 'jitWrite', type: { params: [I64, I64, I32], results: [I32] } },
  { name: 'beginRmwSlow', type: { params: [I64, I32], results: [I32] } },
  { name: 'jitWriteBack', type: { params: [], results: [I32] } },
  { name: 'jitCarry', type: { params: [], results: [I32] } },
  { name: 'jitCondition', type: { params: [I32], results: [I32] } },
  { name: 'jitRotateFlags', type: { params: [I32], results: [] } },
  { name: 'jitOp', type: { params: [I32, I32], results: [I32] } },
  { name: 'jitEnd', type: { params: [I32, I32], results: [I32] } },
  { name: 'mulHighSigned', type: { params: [I64, I64], results: [I64] } },
]
export const F_READ = 0
export const F_WRITE = 1
export const F_BEGIN_RMW = 2
export const F_WRITE_BACK = 3
export const F_CARRY = 4
export const F_CONDITION = 5
export const F_ROTATE_FLAGS = 6
export const F_OP = 7
export const F_END = 8
export const F_MUL_HIGH = 9

// Locals: parameters, then i32s, then i64s.
export const L_RIP = 0
export const L_LEFT = 1
export const L_ENTRY = 2
/** Where a way out continues: offset in the page, and instructions to give back << 13. */
export const L_WHERE = 3
export const L_TLB = 4
export const L_SLOT = 5
export const L_POINTER = 6
export const L_FLAG_KIND = 7
export const L_BIT = 8
/** Linear address of the page the region is in. */
export const L_PAGE = 9
export const L_ADDRESS = 10
export const L_VALUE = 11
export const L_TEMP = 12
export const L_FLAG_RES = 13
export const L_FLAG_A = 14
export const L_FLAG_B = 15
export const L_GPR = 16
export const LOCALS: readonly number[] = [I32, I32, I32, I32, I32, I32, ...Array.from({ length: 7 + 16 }, () => I64)]

const TLB_INDEX_MASK = 2047 << 5
const TLB_READ = 0
const TLB_WRITE = 8
const TLB_ADDEND = 24

/** A predecoded instruction, read once. */
export interface Operation {
  readonly address: number
  readonly handler: number
  readonly length: number
  readonly flags: number
  readonly dst: number
  readonly src: number
  readonly base: number
  readonly index: number
  readonly scale: number
  readonly segment: number
  readonly ea: number
  readonly size: number
  readonly aux: number
  readonly aux2: number
  readonly offset: number
  readonly immLow: number
  readonly immHigh: number
  readonly dispLow: number
  readonly dispHigh: number
}

export function readOperation(view: DataView, address: number): Operation {
  const u8 = (at: number): number => view.getUint8(address + at)
  return {
    address,
    handler: view.getUint16(address + O.OP_HANDLER, true),
    length: u8(O.OP_LENGTH),
    flags: u8(O.OP_FLAGS),
    dst: u8(O.OP_DST),
    src: u8(O.OP_SRC),
    base: u8(O.OP_BASE),
    index: u8(O.OP_INDEX),
    scale: u8(O.OP_SCALE),
    segment: u8(O.OP_SEG),
    ea: u8(O.OP_EA),
    size: u8(O.OP_SIZE),
    aux: u8(O.OP_AUX),
    aux2: u8(O.OP_AUX2),
    offset: view.getUint16(address + O.OP_OFFSET, true),
    immLow: view.getInt32(address + O.OP_IMM, true),
    immHigh: view.getInt32(address + O.OP_IMM + 4, true),
    dispLow: view.getInt32(address + O.OP_DISP, true),
    dispHigh: view.getInt32(address + O.OP_DISP + 4, true),
  }
}

const EXTEND = [OP.i64_extend8_s, OP.i64_extend16_s, OP.i64_extend32_s] as const
const LOAD_S = [MEM.i64_load8_s, MEM.i64_load16_s, MEM.i64_load32_s, MEM.i64_load] as const
const LOAD_U = [MEM.i64_load8_u, MEM.i64_load16_u, MEM.i64_load32_u, MEM.i64_load] as const
const STORE = [MEM.i64_store8, MEM.i64_store16, MEM.i64_store32, MEM.i64_store] as const

export class Context {
  readonly c = new Code()
  readonly base: number
  /** A bit a register: read from the state at entry, written back at exits. */
  used = 0
  written = 0
  flagsWritten = false
  /** Of the block being translated: its offset in the page, its instructions, and those before the current one. */
  blockOffset = 0
  blockCount = 0
  done = 0
  op!: Operation
  exitLabel: Label = 0
  faultLabel: Label = 0

  /** `base` is the address of the vCPU's state. */
  constructor(base: number) {
    this.base = base
  }

  // ---- the state ----
  loadState32(offset: number): void {
    this.c.i32(0)
    this.c.memory(MEM.i32_load, this.base + offset)
  }

  loadState64(offset: number): void {
    this.c.i32(0)
    this.c.memory(MEM.i64_load, this.base + offset)
  }

  /** Stores a local, a 64-bit one unless told otherwise. */
  storeState(offset: number, local: number, opcode: number = MEM.i64_store): void {
    this.c.i32(0)
    this.c.get(local)
    this.c.memory(opcode, this.base + offset)
  }

  // ---- registers, by their byte offset in the state ----
  /** Pushes a whole register. */
  pushRegister(register: number): void {
    const number = register >> 3
    this.used |= 1 << number
    this.c.get(L_GPR + number)
  }

  popRegister(register: number): void {
    const number = register >> 3
    this.used |= 1 << number
    this.written |= 1 << number
    this.c.set(L_GPR + number)
  }

  extend(size: number): void {
    if (size < 3) this.c.op(EXTEND[size]!)
  }

  /** Pushes a register's low part (or AH..BH), sign-extended from its size. */
  pushSigned(register: number, size: number): void {
    this.pushRegister(register)
    if (size === 0 && register & 1) {
      this.c.i64(8)
      this.c.op(OP.i64_shr_u)
    }
    this.extend(size)
  }

  /** The same zero-extended. */
  pushUnsigned(register: number, size: number): void {
    this.pushRegister(register)
    if (size === 0 && register & 1) {
      this.c.i64(8)
      this.c.op(OP.i64_shr_u)
    }
    this.mask(size)
  }

  /** Zero-extends the value on the stack from `size`. */
  mask(size: number): void {
    if (size === 3) return
    if (size === 2) this.c.i64Halves(-1, 0)
    else this.c.i64(size === 1 ? 0xffff : 0xff)
    this.c.op(OP.i64_and)
  }

  /** Pops a value into a register at `size`: 32 bits clear the upper half, 8 and 16 keep the rest. */
  popSized(register: number, size: number): void {
    const { c } = this
    if (size >= 2) {
      this.mask(size)
      this.popRegister(register)
      return
    }
    this.mask(size)
    const high = size === 0 && register & 1
    if (high) {
      c.i64(8)
      c.op(OP.i64_shl)
    }
    this.pushRegister(register)
    c.i64(high ? ~0xff00 : size === 1 ? ~0xffff : ~0xff)
    c.op(OP.i64_and)
    c.op(OP.i64_or)
    this.popRegister(register)
  }

  pushImmediate(): void {
    this.c.i64Halves(this.op.immLow, this.op.immHigh)
  }

  /** Pushes L_PAGE + `distance`, a linear address in or near this page. */
  pushPlace(distance: number): void {
    this.c.get(L_PAGE)
    if (distance !== 0) {
      this.c.i64Halves(distance | 0, Math.floor(distance / 0x1_0000_0000))
      this.c.op(OP.i64_add)
    }
  }

  /** The distance of a direct branch's target from its block's start. */
  distance(): number {
    return this.op.immHigh * 0x1_0000_0000 + (this.op.immLow >>> 0)
  }

  // ---- effective addresses ----
  /** Pushes base + (index << scale) + disp. */
  pushOffset(): void {
    const { c, op } = this
    let pushed = false
    const add = (): void => {
      if (pushed) c.op(OP.i64_add)
      pushed = true
    }
    if (op.base === S.S_BLOCK_RIP) {
      this.pushPlace(this.blockOffset)
      add()
    } else if (op.base !== S.S_ZERO) {
      this.pushRegister(op.base)
      add()
    }
    if (op.index !== S.S_ZERO) {
      this.pushRegister(op.index)
      if (op.scale) {
        c.i64(op.scale)
        c.op(OP.i64_shl)
      }
      add()
    }
    if (!pushed || op.dispLow !== 0 || op.dispHigh !== 0) {
      c.i64Halves(op.dispLow, op.dispHigh)
      add()
    }
  }

  /** Pushes the linear address of the operand. Only kinds that 64-bit code has. */
  pushAddress(): void {
    const { op } = this
    this.pushOffset()
    if (op.ea === O.EA_TRUNC32) this.mask(2)
    if (op.ea === O.EA_SEG64 || (op.ea === O.EA_TRUNC32 && op.segment >= S.FS)) {
      this.loadState64(S.S_SEG + op.segment * S.SEG_STRIDE + S.SEG_BASE)
      this.c.op(OP.i64_add)
    }
  }

  // ---- memory ----
  /** With the address in L_ADDRESS: L_SLOT = its TLB entry, and pushes whether that serves `size` bytes there. */
  #pushHit(tag: number, size: number): void {
    const { c } = this
    c.get(L_ADDRESS)
    c.i64(7)
    c.op(OP.i64_shr_u)
    c.op(OP.i32_wrap)
    c.i32(TLB_INDEX_MASK)
    c.op(OP.i32_and)
    c.get(L_TLB)
    c.op(OP.i32_add)
    c.tee(L_SLOT)
    c.memory(MEM.i64_load, tag)
    c.get(L_ADDRESS)
    if (size > 0) {
      c.i64((1 << size) - 1)
      c.op(OP.i64_add)
    }
    c.i64(-4096)
    c.op(OP.i64_and)
    c.op(OP.i64_eq)
  }

  #pushHost(): void {
    const { c } = this
    c.get(L_SLOT)
    c.memory(MEM.i32_load, TLB_ADDEND)
    c.get(L_ADDRESS)
    c.op(OP.i32_wrap)
    c.op(OP.i32_add)
  }

  /** Replaces the address on the stack by what is there, extended to 64 bits. */
  read(size: number, signed: boolean): void {
    const { c } = this
    c.set(L_ADDRESS)
    this.#pushHit(TLB_READ, size)
    c.if(I64)
    this.#pushHost()
    c.memory((signed ? LOAD_S : LOAD_U)[size]!, 0)
    c.else()
    c.get(L_ADDRESS)
    c.i32(size)
    c.call(F_READ)
    if (signed) this.extend(size)
    this.setWhere(false)
    this.loadState32(S.S_FAULT)
    c.brIf(this.faultLabel)
    c.end()
  }

  /**
   * Pops a value, then an address, and stores. `commit` finishes the instruction on the rare way out after a store to code;
   * it returns true when it has branched away itself.
   */
  write(size: number, commit?: () => boolean): void {
    const { c } = this
    c.set(L_VALUE)
    c.set(L_ADDRESS)
    this.#pushHit(TLB_WRITE, size)
    c.if()
    this.#pushHost()
    c.get(L_VALUE)
    c.memory(STORE[size]!, 0)
    c.else()
    c.get(L_ADDRESS)
    c.get(L_VALUE)
    c.i32(size)
    c.call(F_WRITE)
    this.afterSlow(commit)
    c.end()
  }

  /** Pops a status (jit.ts in wasm/cpu): goes on, out with a fault, or out after this instruction. */
  afterSlow(commit?: () => boolean): void {
    const { c } = this
    c.tee(L_BIT)
    c.if()
    this.setWhere(false)
    c.get(L_BIT)
    c.i32(1)
    c.op(OP.i32_eq)
    c.brIf(this.faultLabel)
    if (!commit?.()) {
      this.setWhere(true)
      c.br(this.faultLabel)
    }
    c.end()
  }

  /** Pops an address: L_POINTER = where to change the operand in place (endChange afterwards). */
  beginChange(size: number): void {
    const { c } = this
    c.set(L_ADDRESS)
    this.#pushHit(TLB_WRITE, size)
    c.if(I32)
    this.#pushHost()
    c.else()
    c.get(L_ADDRESS)
    c.i32(1 << size)
    c.call(F_BEGIN_RMW)
    c.tee(L_POINTER)
    this.setWhere(false)
    c.get(L_POINTER)
    c.op(OP.i32_eqz)
    c.brIf(this.faultLabel)
    c.end()
    c.set(L_POINTER)
  }

  pushOld(size: number): void {
    this.c.get(L_POINTER)
    this.c.memory(LOAD_S[size]!, 0)
  }

  /** Stores local `value` through L_POINTER and writes a bounced operand back. The instruction must be complete otherwise. */
  endChange(size: number, value: number): void {
    const { c } = this
    c.get(L_POINTER)
    c.get(value)
    c.memory(STORE[size]!, 0)
    c.get(L_POINTER)
    c.i32(this.base + S.S_BOUNCE)
    c.op(OP.i32_eq)
    c.if()
    c.call(F_WRITE_BACK)
    this.afterSlow()
    c.end()
  }

  // ---- ways out ----
  /** L_WHERE = this instruction (for a fault, which also names the record), or the one after it. */
  setWhere(afterThis: boolean): void {
    const { c, op } = this
    const offset = this.blockOffset + op.offset + (afterThis ? op.length : 0)
    const giveBack = this.blockCount - this.done - (afterThis ? 1 : 0)
    c.i32(offset | (giveBack << 13))
    c.set(L_WHERE)
    if (afterThis) return
    c.i32(0)
    c.i32(op.address)
    c.memory(MEM.i32_store, this.base + S.S_FAULT_OP)
  }

  /** Leaves the region; the RIP to go on at is in L_RIP. */
  leave(): void {
    this.c.br(this.exitLabel)
  }

  spillRegisters(): void {
    for (let number = 0; number < 16; number++)
      if (this.written & (1 << number)) this.storeState(S.S_GPR + number * 8, L_GPR + number)
  }

  fillRegisters(): void {
    for (let number = 0; number < 16; number++) {
      if (!(this.used & (1 << number))) continue
      this.loadState64(S.S_GPR + number * 8)
      this.c.set(L_GPR + number)
    }
  }

  spillFlags(): void {
    this.storeState(S.S_FLAG_KIND, L_FLAG_KIND, MEM.i32_store)
    this.storeState(S.S_FLAG_RES, L_FLAG_RES)
    this.storeState(S.S_FLAG_A, L_FLAG_A)
    this.storeState(S.S_FLAG_B, L_FLAG_B)
  }

  fillFlags(): void {
    const { c } = this
    this.loadState32(S.S_FLAG_KIND)
    c.set(L_FLAG_KIND)
    this.loadState64(S.S_FLAG_RES)
    c.set(L_FLAG_RES)
    this.loadState64(S.S_FLAG_A)
    c.set(L_FLAG_A)
    this.loadState64(S.S_FLAG_B)
    c.set(L_FLAG_B)
  }
}
