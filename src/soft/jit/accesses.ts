/**
 * Which memory accesses of a block lie so near to each other that one look at the TLB serves them all: pushes and pops, fields of one
 * structure, locals of one frame.
 *
 * Addresses are followed as symbol + constant: every register begins as a symbol of its own, and moves, additions of constants and stack
 * instructions keep it. Accesses to one symbol within SPAN bytes make a group. The first of them looks up the whole range, which must lie in one page;
 * where it does not, the interpreter executes the rest of the block, and a block where that happens often is compiled without groups (BLK_APART).
 */
import * as O from '../../../wasm/cpu/ops.ts'
import * as S from '../../../wasm/cpu/state.ts'
import type { Operation } from './context.ts'

/** Bytes from the first to the last of a group. */
const SPAN = 256

export interface Group {
  readonly key: number
  /** First byte and the one after the last, from the symbol. */
  lo: number
  hi: number
  writes: boolean
  uses: number
  /** The local with the place of the first byte in the shared memory, once it has been looked up; -1 before. */
  local: number
}

/** An access that a group serves, `at` bytes from its first. */
export interface Served {
  readonly group: Group
  readonly at: number
}

export interface BlockAccesses {
  /** By the number of the instruction: its memory operand, and its access to the stack. */
  readonly operand: readonly (Served | undefined)[]
  readonly stack: readonly (Served | undefined)[]
  /** Registers at the end of the block. */
  readonly symbols: Symbols
}

interface Value {
  readonly id: number
  readonly offset: number
}

/** What registers hold, and the number of the next symbol. */
export interface Symbols {
  readonly registers: readonly Value[]
  readonly next: number
  /** Changes when segment bases may have. */
  readonly segments: number
}

const ABSOLUTE = 0
const PAGE = 1
const FIRST = 2

export const freshSymbols = (next = FIRST, segments = 0): Symbols => ({
  registers: Array.from({ length: 16 }, (_, number) => ({ id: next + number, offset: 0 })),
  next: next + 16,
  segments,
})

interface Access {
  readonly bytes: number
  readonly writes: boolean
}

/** The memory operand's access, of instructions that are translated. */
function operandOf({ handler, size, flags, ea }: Operation): Access | undefined {
  if (ea === O.EA_REGISTER || flags & O.OPF_LOCK) return undefined
  if (handler >= O.H_ALU && handler < O.H_ALU_END) {
    const which = (handler - O.H_ALU) >> 2
    const form = which % 5
    if (form < O.FORM_RM) return undefined
    const alu = Math.floor(which / 5)
    const writes = form !== O.FORM_RM && alu !== O.ALU_CMP && alu !== O.ALU_TEST
    return { bytes: 1 << (handler & 3), writes }
  }
  if (handler >= O.H_MOV && handler < O.H_LEA) {
    const form = (handler - O.H_MOV) >> 2
    return form < O.FORM_RM ? undefined : { bytes: 1 << (handler & 3), writes: form !== O.FORM_RM }
  }
  switch (handler) {
    case O.H_MOVZX_M8:
    case O.H_MOVSX_M8:
      return { bytes: 1, writes: false }
    case O.H_MOVZX_M16:
    case O.H_MOVSX_M16:
      return { bytes: 2, writes: false }
    case O.H_MOVSX_M32:
      return { bytes: 4, writes: false }
    case O.H_CMOV_M:
    case O.H_IMUL_M:
      return { bytes: 1 << size, writes: false }
    case O.H_SETCC_M:
      return { bytes: 1, writes: true }
    case O.H_UNARY_M:
      return { bytes: 1 << size, writes: true }
    case O.H_JMPM64:
    case O.H_CALLM64:
      return { bytes: 8, writes: false }
    default:
      return undefined
  }
}

/** Selectors (ops.ts) of common vector instructions that change no general register: moves and logic, with any prefix. */
const STAYS_IN_VECTORS: ReadonlySet<number> = new Set(
  [0x10, 0x11, 0x12, 0x13, 0x16, 0x17, 0x28, 0x29, 0x2b, 0x54, 0x56, 0x57, 0x6e, 0x6f, 0x70, 0x7f, 0xd6, 0xef].flatMap(
    opcode => [0, 1, 2, 3].map(prefix => opcode | (prefix << 8)),
  ),
)

const NOTHING = -1
const EVERYTHING = -2

/** The register (its number) that an instruction without a case of its own in `#step` changes; NOTHING or EVERYTHING. */
function changes(op: Operation): number {
  const { handler, dst, src, aux, ea } = op
  if (handler >= O.H_ALU && handler < O.H_ALU_END) {
    const which = (handler - O.H_ALU) >> 2
    const alu = Math.floor(which / 5)
    return which % 5 > O.FORM_RM || alu === O.ALU_CMP || alu === O.ALU_TEST ? NOTHING : dst >> 3
  }
  if (handler >= O.H_MOV && handler < O.H_LEA) return (handler - O.H_MOV) >> 2 > O.FORM_RM ? NOTHING : dst >> 3
  if (handler >= O.H_LEA && handler <= O.H_MOVSX_M32) return dst >> 3
  if (handler >= O.H_INC_R && handler < O.H_UNARY_M) return dst >> 3
  if (handler >= O.H_SHL32 && handler <= O.H_IMUL_M) return dst >> 3
  if (handler >= O.H_JCC && handler < O.H_JCC + 16) return NOTHING
  switch (handler) {
    case O.H_SETCC_R:
    case O.H_CMOV_R:
    case O.H_CMOV_M:
    case O.H_SHIFT_RCL:
    case O.H_SHIFT_RI:
    case O.H_SCAN:
    case O.H_BSWAP:
      return dst >> 3
    case O.H_CBW:
    case O.H_FLAGOP:
      return S.S_RAX >> 3
    case O.H_CWD:
      return S.S_RDX >> 3
    case O.H_BIT:
      return ea === O.EA_REGISTER ? (aux ? src >> 3 : NOTHING) : EVERYTHING
    case O.H_NOP:
    case O.H_SETCC_M:
    case O.H_JMP:
    case O.H_JMPR64:
    case O.H_JMPM64:
    case O.H_FALL:
      return NOTHING
    case O.H_UNARY_M:
    case O.H_SHIFT_MI:
    case O.H_SHIFT_MCL:
      return NOTHING
    case O.H_VECTOR:
      return STAYS_IN_VECTORS.has(op.immLow >>> 16) ? NOTHING : EVERYTHING
    default:
      return EVERYTHING
  }
}

const isSmall = (low: number, high: number): boolean => high === low >> 31 && Math.abs(low) < 0x4000_0000

class Scan {
  readonly #registers: Value[]
  #next: number
  #segments: number
  readonly #blockOffset: number
  /** Groups that may take another access. */
  readonly #open: Group[] = []
  readonly #known: readonly Group[]
  readonly #apart: boolean

  constructor(blockOffset: number, symbols: Symbols, known: readonly Group[], apart: boolean) {
    this.#registers = [...symbols.registers]
    this.#next = symbols.next
    this.#segments = symbols.segments
    this.#blockOffset = blockOffset
    this.#known = known
    this.#apart = apart
  }

  symbols(): Symbols {
    return { registers: this.#registers, next: this.#next, segments: this.#segments }
  }

  #set(number: number, value?: Value): void {
    this.#registers[number] = value && Math.abs(value.offset) < 0x4000_0000 ? value : { id: this.#next++, offset: 0 }
  }

  #value(register: number): Value {
    return this.#registers[register >> 3]!
  }

  #serve(key: number, at: number, { bytes, writes }: Access): Served | undefined {
    for (const group of this.#known)
      if (group.key === key && at >= group.lo && at + bytes <= group.hi && (group.writes || !writes)) {
        return { group, at }
      }
    if (this.#apart) return undefined
    for (const group of this.#open) {
      if (group.key !== key) continue
      const lo = Math.min(group.lo, at)
      const hi = Math.max(group.hi, at + bytes)
      if (hi - lo > SPAN) continue
      group.lo = lo
      group.hi = hi
      group.writes ||= writes
      group.uses++
      return { group, at }
    }
    const group: Group = { key, lo: at, hi: at + bytes, writes, uses: 1, local: -1 }
    this.#open.push(group)
    return { group, at }
  }

  operand(op: Operation): Served | undefined {
    const access = operandOf(op)
    if (!access || op.index !== S.S_ZERO || !isSmall(op.dispLow, op.dispHigh)) return undefined
    const segmented = op.ea === O.EA_SEG64
    if (!segmented && op.ea !== O.EA_FLAT64) return undefined
    const base =
      op.base === S.S_BLOCK_RIP
        ? { id: PAGE, offset: this.#blockOffset }
        : op.base === S.S_ZERO
          ? { id: ABSOLUTE, offset: 0 }
          : this.#value(op.base)
    const segment = segmented ? 1 + this.#segments * 2 + (op.segment === S.GS ? 1 : 0) : 0
    return this.#serve(base.id * 4096 + (segment & 4095), base.offset + op.dispLow, access)
  }

  /** 8 bytes on the stack, `distance` from what `register` holds. */
  #onStack(register: number, distance: number, writes: boolean): Served | undefined {
    const { id, offset } = this.#value(register)
    return this.#serve(id * 4096, offset + distance, { bytes: 8, writes })
  }

  stack({ handler }: Operation): Served | undefined {
    switch (handler) {
      case O.H_PUSH64:
      case O.H_PUSHI64:
      case O.H_CALL64:
      case O.H_CALLR64:
      case O.H_CALLM64:
        return this.#onStack(S.S_RSP, -8, true)
      case O.H_POP64:
      case O.H_RET64:
      case O.H_RETI64:
        return this.#onStack(S.S_RSP, 0, false)
      case O.H_LEAVE64:
        return this.#onStack(S.S_RBP, 0, false)
      default:
        return undefined
    }
  }

  #moved(register: number, distance: number): Value {
    const { id, offset } = this.#value(register)
    return { id, offset: offset + distance }
  }

  /** What the instruction does to registers. */
  step(op: Operation): void {
    const { handler, dst, src } = op
    switch (handler) {
      case O.H_PUSH64:
      case O.H_PUSHI64:
      case O.H_CALL64:
      case O.H_CALLR64:
      case O.H_CALLM64:
        this.#set(S.S_RSP >> 3, this.#moved(S.S_RSP, -8))
        return
      case O.H_POP64:
        this.#set(S.S_RSP >> 3, this.#moved(S.S_RSP, 8))
        this.#set(dst >> 3)
        return
      case O.H_RET64:
      case O.H_RETI64:
        this.#set(S.S_RSP >> 3, this.#moved(S.S_RSP, handler === O.H_RET64 ? 8 : 8 + op.immLow))
        return
      case O.H_LEAVE64:
        this.#set(S.S_RSP >> 3, this.#moved(S.S_RBP, 8))
        this.#set(S.S_RBP >> 3)
        return
      case O.H_MOV + O.FORM_RR * 4 + 3:
        this.#set(dst >> 3, this.#value(src))
        return
      case O.H_ALU + (O.ALU_ADD * 5 + O.FORM_RI) * 4 + 3:
        this.#set(dst >> 3, isSmall(op.immLow, op.immHigh) ? this.#moved(dst, op.immLow) : undefined)
        return
      case O.H_ALU + (O.ALU_SUB * 5 + O.FORM_RI) * 4 + 3:
        this.#set(dst >> 3, isSmall(op.immLow, op.immHigh) ? this.#moved(dst, -op.immLow) : undefined)
        return
      case O.H_LEA + 3: {
        const plain =
          op.ea === O.EA_FLAT64 && op.index === S.S_ZERO && op.base < S.S_ZERO && isSmall(op.dispLow, op.dispHigh)
        this.#set(dst >> 3, plain ? this.#moved(op.base, op.dispLow) : undefined)
        return
      }
      default: {
        const changed = changes(op)
        if (changed >= 0) this.#set(changed)
        else if (changed === EVERYTHING) {
          for (let number = 0; number < 16; number++) this.#set(number)
          this.#segments++
        }
      }
    }
  }
}

/** The groups of a block whose registers hold `symbols` at its start; `known` ones have been looked up already. */
export function findAccesses(
  operations: readonly Operation[],
  blockOffset: number,
  symbols: Symbols,
  known: readonly Group[],
  apart: boolean,
): BlockAccesses {
  const scan = new Scan(blockOffset, symbols, known, apart)
  const operand: (Served | undefined)[] = []
  const stack: (Served | undefined)[] = []
  for (const op of operations) {
    operand.push(scan.operand(op))
    stack.push(scan.stack(op))
    scan.step(op)
  }
  const useful = (served: Served | undefined): Served | undefined =>
    served && (served.group.local >= 0 || served.group.uses > 1) ? served : undefined
  return { operand: operand.map(useful), stack: stack.map(useful), symbols: scan.symbols() }
}
