/**
 * Guest memory in compiled code: effective addresses, the software TLB in line, and groups of accesses that one look at it serves (accesses.ts).
 * An access that the TLB does not serve leaves the region before anything has changed.
 */
import * as O from '../../../wasm/cpu/ops.ts'
import * as S from '../../../wasm/cpu/state.ts'
import type { BlockAccesses, Group, Served } from './accesses.ts'
import { Context, GROUP_LOCALS, L_ADDRESS, L_GROUP, L_POINTER, L_SLOT } from './context.ts'
import { MEM, OP } from './wasm-emitter.ts'

const TLB_INDEX_MASK = 4095 << 5
const TLB_READ = 0
const TLB_WRITE = 8
const TLB_ADDEND = 24

const LOAD_S = [MEM.i64_load8_s, MEM.i64_load16_s, MEM.i64_load32_s, MEM.i64_load] as const
const LOAD_U = [MEM.i64_load8_u, MEM.i64_load16_u, MEM.i64_load32_u, MEM.i64_load] as const
const STORE = [MEM.i64_store8, MEM.i64_store16, MEM.i64_store32, MEM.i64_store] as const

export class MemoryContext extends Context {
  /** Of the block being translated. */
  accesses!: BlockAccesses
  /** Where the TLB of this region's privilege level is. */
  tlb = 0
  /** Where in the place that `beginChange` looked up the operand is. */
  #changed = 0

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

  /** With the address of the first of `bytes` bytes in L_ADDRESS: leaves the region unless the TLB serves them all, and pushes their place. */
  #pushLookedUp(bytes: number, writes: boolean): void {
    const { c } = this
    c.get(L_ADDRESS)
    c.i64(7)
    c.op(OP.i64_shr_u)
    c.op(OP.i32_wrap)
    c.i32(TLB_INDEX_MASK)
    c.op(OP.i32_and)
    c.tee(L_SLOT)
    c.memory(MEM.i64_load, this.tlb + (writes ? TLB_WRITE : TLB_READ))
    c.get(L_ADDRESS)
    if (bytes > 1) {
      c.i64(bytes - 1)
      c.op(OP.i64_add)
    }
    c.i64(-4096)
    c.op(OP.i64_and)
    c.op(OP.i64_ne)
    c.ifHinted(false)
    this.miss()
    c.end()
    c.get(L_SLOT)
    c.memory(MEM.i32_load, this.tlb + TLB_ADDEND)
    c.get(L_ADDRESS)
    c.op(OP.i32_wrap)
    c.op(OP.i32_add)
  }

  /** A local for the place of a group, or -1 when all are taken. */
  #takeLocal(): number {
    for (let local = L_GROUP; local < L_GROUP + GROUP_LOCALS; local++)
      if (!this.groups.some(group => group.local === local)) return local
    return -1
  }

  /** Pushes a place in the shared memory; the access is at the offset returned from it. `address` pushes its linear address. */
  #place(served: Served | undefined, bytes: number, writes: boolean, address: () => void): number {
    const { c } = this
    const group: Group | undefined = served?.group
    if (group && group.local < 0) {
      const local = this.#takeLocal()
      if (local >= 0) {
        address()
        if (served!.at !== group.lo) {
          c.i64(group.lo - served!.at)
          c.op(OP.i64_add)
        }
        c.set(L_ADDRESS)
        this.#pushLookedUp(group.hi - group.lo, group.writes)
        c.set(local)
        group.local = local
        this.groups = [...this.groups, group]
      }
    }
    if (group && group.local >= 0) {
      c.get(group.local)
      return served!.at - group.lo
    }
    address()
    c.set(L_ADDRESS)
    this.#pushLookedUp(bytes, writes)
    return 0
  }

  /** Pushes the place of the memory operand, which is at the offset returned from there. */
  placeOperand(bytes: number, writes: boolean): number {
    return this.#place(this.accesses.operand[this.done], bytes, writes, () => this.pushAddress())
  }

  /** Pushes the memory operand, extended to 64 bits. */
  readOperand(size: number, signed: boolean): void {
    const at = this.placeOperand(1 << size, false)
    this.c.memory((signed ? LOAD_S : LOAD_U)[size]!, at)
  }

  /** Stores what `value` pushes in the memory operand. */
  writeOperand(size: number, value: () => void): void {
    const at = this.placeOperand(1 << size, true)
    value()
    this.c.memory(STORE[size]!, at)
  }

  /** Pushes 8 bytes of the guest's stack, from where `register` points. */
  readStack(register: number): void {
    const at = this.#place(this.accesses.stack[this.done], 8, false, () => this.pushRegister(register))
    this.c.memory(MEM.i64_load, at)
  }

  /** Pushes what `value` pushes on the guest's stack. */
  pushStack(value: () => void): void {
    const { c } = this
    const at = this.#place(this.accesses.stack[this.done], 8, true, () => {
      this.pushRegister(S.S_RSP)
      c.i64(-8)
      c.op(OP.i64_add)
    })
    value()
    c.memory(MEM.i64_store, at)
    this.moveStack(-8)
  }

  /** RSP += `bytes`. */
  moveStack(bytes: number): void {
    this.pushRegister(S.S_RSP)
    this.c.i64(bytes)
    this.c.op(OP.i64_add)
    this.popRegister(S.S_RSP)
  }

  /** Begins to change the memory operand in place. */
  beginChange(size: number): void {
    this.#changed = this.placeOperand(1 << size, true)
    this.c.set(L_POINTER)
  }

  pushOld(size: number): void {
    this.c.get(L_POINTER)
    this.c.memory(LOAD_S[size]!, this.#changed)
  }

  /** Stores local `value` in the operand. */
  endChange(size: number, value: number): void {
    const { c } = this
    c.get(L_POINTER)
    c.get(value)
    c.memory(STORE[size]!, this.#changed)
  }
}
