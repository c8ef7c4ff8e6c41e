/**
 * One region as one function: a loop around nested blocks, so that forward branches go straight to their target and backward
 * ones go round through a jump table, which is also how the region is entered.
 *
 *     loop
 *       block n-1 ... block 1, block 0
 *         br_table entry
 *       end  code of block 0, falls or branches on to ...
 *       end  code of block 1
 *       ...
 *     end
 *     miss:  the interpreter goes on at the record in L_WHERE
 *     fault: L_ENTRY and L_LEFT from L_WHERE
 *     place: L_RIP from L_ENTRY
 *     exit:  RIP back to the state
 */
import * as O from '../../../wasm/cpu/ops.ts'
import * as S from '../../../wasm/cpu/state.ts'
import { findAccesses, freshSymbols } from './accesses.ts'
import {
  F_END,
  type Knowledge,
  L_ENTRY,
  L_LEFT,
  L_PAGE,
  L_POINTER,
  L_RIP,
  L_TEMP,
  L_WHERE,
  LOCALS,
  readOperation,
} from './context.ts'
import { accessesMemory, deadFlags } from './dead-flags.ts'
import { K_UNKNOWN } from './flags.ts'
import { OperationContext } from './operations.ts'
import type { Block, Region } from './region.ts'
import { type FunctionBody, type Label, MEM, OP } from './wasm-emitter.ts'

export class RegionTranslator extends OperationContext {
  readonly #view: DataView
  /** Look at the budget and at attention on every edge, not only on backward ones: then both tiers stop at the same places. */
  readonly #everyEdge: boolean
  #region!: Region
  #current = 0
  #labels: Label[] = []
  #loop: Label = 0
  #self: Label = 0
  /** What is known of the flags on the forward edges to a block; -1 = no edge so far. */
  #incoming: number[] = []
  /** What is known on the one edge to a block that continues another. */
  #carried: (Knowledge | undefined)[] = []
  /** How many branches of the region lead to a block. */
  #edges: number[] = []
  /** Numbers of the blocks that may be entered, by index. */
  readonly #enterable = new Map<number, number>()

  constructor(view: DataView, base: number, everyEdge: boolean) {
    super(base)
    this.#view = view
    this.#everyEdge = everyEdge
  }

  compile(region: Region): FunctionBody {
    this.#region = region
    this.#enterable.clear()
    region.entries.forEach((index, number) => void this.#enterable.set(index, number))
    this.tlb = region.tlb
    this.#countEdges()
    this.#body()
    return { locals: LOCALS, code: this.c.bytes().slice() }
  }

  #countEdges(): void {
    const { blocks, byOffset } = this.#region
    this.#edges = blocks.map(() => 0)
    for (const { taken, next } of blocks)
      for (const target of [taken, next]) {
        const index = byOffset.get(target)
        if (index !== undefined) this.#edges[index]!++
      }
  }

  /** Only one place leads to this block, so what is known there holds in it. */
  #continues(index: number): boolean {
    return this.#edges[index] === 1 && !this.#enterable.has(index)
  }

  #body(): void {
    const { c } = this
    const { blocks, entries } = this.#region
    c.clear()
    c.get(L_RIP)
    c.i64(-4096)
    c.op(OP.i64_and)
    c.set(L_PAGE)
    this.exitLabel = c.block()
    this.placeLabel = c.block()
    this.faultLabel = c.block()
    this.missLabel = c.block()
    this.#loop = c.loop()
    this.#labels = new Array<Label>(blocks.length)
    for (let index = blocks.length - 1; index >= 0; index--) this.#labels[index] = c.block()
    // Only blocks that are entered, so that the others have one way in each as far as V8 can see.
    c.get(L_ENTRY)
    c.brTable(entries.map(entry => this.#labels[entry]!))
    this.#incoming = blocks.map(() => -1)
    this.#carried = blocks.map(() => undefined)
    blocks.forEach((block, index) => {
      c.end()
      this.#current = index
      this.#block(block)
    })
    c.end()
    c.end()
    this.#resumeInInterpreter()
    c.end()
    this.#leaveAtWhere()
    c.end()
    this.#goToPlace()
    c.end()
    this.storeState(S.S_RIP, L_RIP)
    c.get(L_LEFT)
  }

  /** The interpreter goes on in the middle of a block, at a record whose memory access the TLB did not serve (S_RESUME in run.ts). */
  #resumeInInterpreter(): void {
    const { c } = this
    this.storeState(S.S_RESUME, L_WHERE, MEM.i32_store)
    this.storeState(S.S_BLOCK, L_POINTER, MEM.i32_store)
    this.storeState(S.S_RIP, L_PAGE)
    c.get(L_LEFT)
    c.op(OP.return)
  }

  /** L_ENTRY and L_LEFT from L_WHERE. */
  #leaveAtWhere(): void {
    const { c } = this
    c.get(L_WHERE)
    c.i32(0x1fff)
    c.op(OP.i32_and)
    c.set(L_ENTRY)
    c.get(L_LEFT)
    c.get(L_WHERE)
    c.i32(13)
    c.op(OP.i32_shr_u)
    c.op(OP.i32_add)
    c.set(L_LEFT)
  }

  /** L_RIP from the distance in L_ENTRY. */
  #goToPlace(): void {
    const { c } = this
    c.get(L_PAGE)
    c.get(L_ENTRY)
    c.op(OP.i64_extend_i32_s)
    c.op(OP.i64_add)
    c.set(L_RIP)
  }

  #block(block: Block): void {
    const { c } = this
    const carried = this.#carried[this.#current]
    if (carried) this.recall(carried)
    else {
      const known = this.#incoming[this.#current]!
      this.forget()
      this.symbols = freshSymbols()
      this.groups = []
      this.known = this.#enterable.has(this.#current) || known < 0 ? K_UNKNOWN : known
    }
    this.blockAddress = block.address
    this.blockOffset = block.offset
    this.blockCount = block.count
    const repeats = block.taken === block.offset || block.next === block.offset
    if (repeats) this.#self = c.loop()
    c.get(L_LEFT)
    c.i32(block.count)
    c.op(OP.i32_sub)
    c.set(L_LEFT)
    const address = block.address + O.BLK_HEADER_SIZE
    const operations = Array.from({ length: block.count }, (_, index) =>
      readOperation(this.#view, address + index * O.OP_RECORD_SIZE),
    )
    const dead = deadFlags(operations)
    this.accesses = findAccesses(operations, block.offset, this.symbols, this.groups, block.apart)
    this.symbols = this.accesses.symbols
    this.fpuChecked = false
    this.writesThrough = operations.filter(accessesMemory).length * 4 >= block.count
    for (this.done = 0; this.done < block.count; this.done++) {
      this.op = operations[this.done]!
      this.flagsDead = dead[this.done]!
      if (this.done === block.count - 1 && this.#transfer(block)) break
      this.translate()
    }
    // Without a transfer at its end the block falls into the next.
    if (this.done === block.count) {
      this.op = readOperation(this.#view, address + block.count * O.OP_RECORD_SIZE)
      this.#go(block.offset + this.distance())
    }
    if (repeats) c.end()
  }

  /** Continues at offset `target` of this page, inside the region if it is there. */
  #go(target: number): void {
    const { c } = this
    const index = target >= 0 && target < 4096 ? this.#region.byOffset.get(target) : undefined
    if (index === undefined) {
      this.leaveTo(target)
      return
    }
    const forward = index > this.#current
    if (!forward || this.#everyEdge) {
      c.get(L_LEFT)
      c.i32(0)
      c.op(OP.i32_le_s)
      this.loadState32(S.S_ATTENTION)
      c.op(OP.i32_or)
      c.if()
      this.aside(() => this.leaveTo(target))
      c.end()
    }
    if (this.#continues(index)) {
      this.#carried[index] = this.remember()
      c.br(this.#labels[index]!)
      return
    }
    this.flush()
    if (forward) {
      const before = this.#incoming[index]!
      this.#incoming[index] = before < 0 || before === this.known ? this.known : K_UNKNOWN
      c.br(this.#labels[index]!)
    } else if (index === this.#current) c.br(this.#self)
    else {
      c.i32(this.#enterable.get(index)!)
      c.set(L_ENTRY)
      c.br(this.#loop)
    }
  }

  /** Translates the record that ends a block; false when it is one like any other. */
  #transfer(block: Block): boolean {
    const { c, op } = this
    const { offset } = block
    switch (op.handler >= O.H_JCC && op.handler < O.H_JCC + 16 ? O.H_JCC : op.handler) {
      case O.H_JCC:
        this.pushCondition(op.aux)
        c.if()
        this.aside(() => this.#go(offset + this.distance()))
        c.end()
        this.#go(offset + op.offset + op.length)
        return true
      case O.H_JMP:
        this.#go(offset + this.distance())
        return true
      case O.H_CALL64:
        this.#pushReturn()
        this.#go(offset + this.distance())
        return true
      case O.H_RET64:
      case O.H_RETI64:
        this.readStack(S.S_RSP)
        this.#popTarget()
        this.moveStack(op.handler === O.H_RET64 ? 8 : 8 + op.immLow)
        this.#goToTarget()
        return true
      case O.H_JMPR64:
      case O.H_JMPM64:
        this.#pushIndirect(op.handler === O.H_JMPR64)
        this.#popTarget()
        this.#goToTarget()
        return true
      case O.H_CALLR64:
      case O.H_CALLM64:
        this.#pushIndirect(op.handler === O.H_CALLR64)
        this.#popTarget()
        this.#pushReturn()
        this.#goToTarget()
        return true
      case O.H_BRANCH:
      case O.H_SYSTEM:
      case O.H_UNDEFINED:
        this.#endInInterpreter()
        return true
      default:
        return false
    }
  }

  #pushReturn(): void {
    const { op } = this
    this.pushStack(() => this.pushPlace(this.blockOffset + op.offset + op.length))
  }

  #pushIndirect(register: boolean): void {
    if (register) this.pushRegister(this.op.src)
    else this.readOperand(3, false)
  }

  /** L_TEMP = the target on the stack, which must be canonical; the interpreter raises the fault otherwise. */
  #popTarget(): void {
    const { c } = this
    c.tee(L_TEMP)
    c.i64(16)
    c.op(OP.i64_shl)
    c.i64(16)
    c.op(OP.i64_shr_s)
    c.get(L_TEMP)
    c.op(OP.i64_ne)
    c.if()
    this.aside(() => this.#endInInterpreter())
    c.end()
  }

  #goToTarget(): void {
    this.c.get(L_TEMP)
    this.c.set(L_RIP)
    this.leave()
  }

  /** The interpreter executes this record and returns for us: RIP and budget are as it leaves them. */
  #endInInterpreter(): void {
    const { c } = this
    this.flush()
    this.storeBlockRip()
    c.i32(this.op.address)
    c.get(L_LEFT)
    c.call(F_END)
    c.op(OP.return)
  }
}
