/**
 * What every translated instruction uses: registers, effective addresses, the software TLB in line, and ways out.
 *
 * Registers and the lazy flags live in the vCPU's state. Within a block, and in blocks that only it leads to, they are cached in locals: a local
 * is `valid` when it has the register's value, and `dirty` when the state has not. Dirty ones are stored where blocks meet, before the interpreter is
 * called, and on the ways out; the last are off the fast path. So regions can be entered anywhere at no cost, and nothing is kept alive for exits.
 */
import * as O from '../../../wasm/cpu/ops.ts'
import * as S from '../../../wasm/cpu/state.ts'
import { freshSymbols, type Group, type Symbols } from './accesses.ts'
import { Code, type FunctionType, I32, I64, type ImportedFunction, type Label, MEM, OP } from './wasm-emitter.ts'

/** (RIP of the block that is entered, budget, number of the entry) -> budget */
export const REGION_TYPE: FunctionType = { params: [I64, I32, I32], results: [I32] }

/** What compiled code calls in the CPU module; the position is the function index. */
export const IMPORTS: readonly ImportedFunction[] = [
  { name: 'jitCarry', type: { params: [], results: [I32] } },
  { name: 'jitCondition', type: { params: [I32], results: [I32] } },
  { name: 'jitRotateFlags', type: { params: [I32], results: [] } },
  { name: 'jitOp', type: { params: [I32, I32], results: [I32] } },
  { name: 'jitEnd', type: { params: [I32, I32], results: [I32] } },
  { name: 'mulHighSigned', type: { params: [I64, I64], results: [I64] } },
  { name: 'jitCross', type: { params: [I64, I32, I32, I32], results: [] } },
]
export const F_CARRY = 0
export const F_CONDITION = 1
export const F_ROTATE_FLAGS = 2
export const F_OP = 3
export const F_END = 4
export const F_MUL_HIGH = 5
export const F_CROSS = 6

// Locals: parameters, then i32s, then i64s.
export const L_RIP = 0
export const L_LEFT = 1
export const L_ENTRY = 2
/** Where a way out continues: offset in the page, and instructions to give back << 13. After a miss: the record. Without a proof: the RAM page. */
export const L_WHERE = 3
export const L_SLOT = 4
export const L_POINTER = 5
export const L_FLAG_KIND = 6
export const L_BIT = 7
/** Linear address of the page that the running block is in. */
export const L_PAGE = 8
export const L_ADDRESS = 9
export const L_VALUE = 10
export const L_TEMP = 11
export const L_GPR = 12
export const L_FLAG_RES = 28
export const L_FLAG_A = 29
export const L_FLAG_B = 30
/** Places in the shared memory that were looked up for several accesses (memory.ts). */
export const L_GROUP = 31
export const GROUP_LOCALS = 12
export const LOCALS: readonly number[] = [
  ...Array.from({ length: 5 }, () => I32),
  ...Array.from({ length: 7 + 16 }, () => I64),
  ...Array.from({ length: GROUP_LOCALS }, () => I32),
]

/** Cached locals are numbered from L_GPR on: registers, then the result and the operands of the lazy flags. */
const CACHED = 19
const FLAG_RES_BIT = 1 << (L_FLAG_RES - L_GPR)
const FLAG_A_BIT = 1 << (L_FLAG_A - L_GPR)
const FLAG_B_BIT = 1 << (L_FLAG_B - L_GPR)
const placeOf = (index: number): number =>
  index < 16 ? S.S_GPR + index * 8 : index === 16 ? S.S_FLAG_RES : index === 17 ? S.S_FLAG_A : S.S_FLAG_B

/** What is known while translating, at one place of the code. */
export interface Knowledge {
  readonly valid: number
  readonly dirty: number
  readonly known: number
  readonly kind: number
  readonly kindDirty: boolean
  readonly symbols: Symbols
  readonly groups: readonly Group[]
}

/** The kind of the flags is in L_FLAG_KIND, or only in the state. */
export const KIND_LOCAL = -1
export const KIND_STATE = -2

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

export class Context {
  readonly c = new Code()
  readonly base: number
  /** A bit a cached local: it has the value; the state does not have it yet. */
  valid = 0
  dirty = 0
  /** What is known of the last flag-setting operation (flags.ts), and where its kind is: a constant, KIND_LOCAL or KIND_STATE. */
  known = 0
  kind = KIND_STATE
  kindDirty = false
  /** What registers hold, and groups of accesses that have been looked up (accesses.ts). */
  symbols: Symbols = freshSymbols()
  groups: readonly Group[] = []
  /** Registers are stored at once: shorter code where there are many ways out. */
  writesThrough = false
  /** CR0 and CR4 allow vector instructions: it was looked at in this block. */
  fpuChecked = false
  /** The flags of the current instruction are set again before anybody can see them. */
  flagsDead = false
  /** Of the block being translated: where it is, its offset in the page, its instructions, and those before the current one. */
  blockAddress = 0
  blockOffset = 0
  blockCount = 0
  done = 0
  op!: Operation
  exitLabel: Label = 0
  placeLabel: Label = 0
  faultLabel: Label = 0
  missLabel: Label = 0

  /** `base` is the address of the vCPU's state. */
  constructor(base: number) {
    this.base = base
  }

  // ---- what is cached ----
  remember(): Knowledge {
    const { valid, dirty, known, kind, kindDirty, symbols, groups } = this
    return { valid, dirty, known, kind, kindDirty, symbols, groups }
  }

  recall({ valid, dirty, known, kind, kindDirty, symbols, groups }: Knowledge): void {
    this.valid = valid
    this.dirty = dirty
    this.known = known
    this.kind = kind
    this.kindDirty = kindDirty
    this.symbols = symbols
    this.groups = groups
  }

  /** Emits code that is branched around: what it changes is not true afterwards. */
  aside(emit: () => void): void {
    const before = this.remember()
    emit()
    this.recall(before)
  }

  /** Stores what is dirty. */
  flush(): void {
    for (let index = 0; index < CACHED; index++)
      if (this.dirty & (1 << index)) this.storeState(placeOf(index), L_GPR + index)
    this.dirty = 0
    if (!this.kindDirty) return
    this.kindDirty = false
    if (this.kind === KIND_LOCAL) this.storeState(S.S_FLAG_KIND, L_FLAG_KIND, MEM.i32_store)
    else {
      this.c.i32(0)
      this.c.i32(this.kind)
      this.c.memory(MEM.i32_store, this.base + S.S_FLAG_KIND)
    }
  }

  /** Everything is in the state, and nothing is known of the flags. */
  forget(): void {
    this.valid = 0
    this.dirty = 0
    this.known = 0
    this.kind = KIND_STATE
    this.kindDirty = false
  }

  /** The flags are in the state, and nothing is known of them. */
  forgetFlags(): void {
    this.dropFlagOperands(true)
    this.valid &= ~FLAG_RES_BIT
    this.known = 0
    this.kind = KIND_STATE
  }

  #pushCached(index: number, offset: number): void {
    const bit = 1 << index
    if (this.valid & bit) this.c.get(L_GPR + index)
    else {
      this.loadState64(offset)
      this.c.tee(L_GPR + index)
      this.valid |= bit
    }
  }

  #changed(index: number): void {
    this.valid |= 1 << index
    this.dirty |= 1 << index
  }

  /** Pushes L_FLAG_RES, L_FLAG_A or L_FLAG_B. */
  pushFlag(local: number): void {
    this.#pushCached(local - L_GPR, placeOf(local - L_GPR))
  }

  setFlag(local: number): void {
    this.c.set(local)
    this.#changed(local - L_GPR)
  }

  teeFlag(local: number): void {
    this.c.tee(local)
    this.#changed(local - L_GPR)
  }

  /** The operands that the new kind of flags does not have need not be stored. */
  dropFlagOperands(a: boolean): void {
    const bits = FLAG_B_BIT | (a ? FLAG_A_BIT : 0)
    this.valid &= ~bits
    this.dirty &= ~bits
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
    this.#pushCached(number, S.S_GPR + number * 8)
  }

  popRegister(register: number): void {
    const number = register >> 3
    this.c.set(L_GPR + number)
    if (this.writesThrough) {
      this.valid |= 1 << number
      this.dirty &= ~(1 << number)
      this.storeState(S.S_GPR + number * 8, L_GPR + number)
    } else this.#changed(number)
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

  // ---- ways out ----
  /** L_WHERE = this instruction (for a fault), or the one after it. */
  setWhere(afterThis: boolean): void {
    const { c, op } = this
    const offset = this.blockOffset + op.offset + (afterThis ? op.length : 0)
    const giveBack = this.blockCount - this.done - (afterThis ? 1 : 0)
    c.i32(offset | (giveBack << 13))
    c.set(L_WHERE)
  }

  /** Leaves the region: the interpreter goes on with this instruction, which must not have changed anything yet. */
  miss(): void {
    const { c } = this
    this.aside(() => {
      this.flush()
      c.i32(this.op.address)
      c.set(L_WHERE)
      c.i32(this.blockAddress)
      c.set(L_POINTER)
      c.br(this.missLabel)
    })
  }

  /** Leaves the region; the RIP to go on at is in L_RIP. */
  leave(): void {
    this.flush()
    this.c.br(this.exitLabel)
  }

  /** Leaves the region to go on at L_PAGE + `distance`. The sum is made at the one exit: made here, V8 would hoist it to the entry of the region. */
  leaveTo(distance: number): void {
    const { c } = this
    if (distance === (distance | 0)) {
      this.flush()
      c.i32(distance)
      c.set(L_ENTRY)
      c.br(this.placeLabel)
      return
    }
    this.pushPlace(distance)
    c.set(L_RIP)
    this.leave()
  }
}
