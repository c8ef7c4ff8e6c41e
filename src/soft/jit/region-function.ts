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
 *     proof: L_RIP from L_ENTRY, and a look whether it may go on there next time
 *     miss:  the interpreter goes on at the record in L_WHERE
 *     fault: L_ENTRY and L_LEFT from L_WHERE
 *     place: L_RIP from L_ENTRY
 *     exit:  RIP back to the state
 */
import * as O from '../../../wasm/cpu/ops.ts'
import * as S from '../../../wasm/cpu/state.ts'
import { findAccesses, freshSymbols } from './accesses.ts'
import {
  F_CROSS,
  F_END,
  type Knowledge,
  L_ADDRESS,
  L_ENTRY,
  L_LEFT,
  L_PAGE,
  L_POINTER,
  L_RIP,
  L_TEMP,
  L_VALUE,
  L_WHERE,
  LOCALS,
  readOperation,
} from './context.ts'
import { accessesMemory, deadFlags } from './dead-flags.ts'
import { K_UNKNOWN } from './flags.ts'
import { OperationContext } from './operations.ts'
import type { Block, Page, Region } from './region.ts'
import { type FunctionBody, type Label, MEM, OP } from './wasm-emitter.ts'

/** A way that is gone less often than once in so many times is laid aside. */
const RARE = 64

export class RegionTranslator extends OperationContext {
  readonly #view: DataView
  /** Look at the budget and at attention on every edge, not only on backward ones: then both tiers stop at the same places. */
  readonly #everyEdge: boolean
  #region!: Region
  #current = 0
  #labels: Label[] = []
  #loop: Label = 0
  #self: Label = 0
  #proofLabel: Label = 0
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
    return { locals: LOCALS, code: this.c.bytes().slice(), hints: this.c.hints }
  }

  #countEdges(): void {
    const { blocks, byPlace, returnsTo } = this.#region
    this.#edges = blocks.map(() => 0)
    for (const [from, { taken, next }] of blocks.entries())
      for (const target of [taken, next, ...returnsTo[from]!]) {
        const index = byPlace.get(target)
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
    this.#proofLabel = c.block()
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
    this.#askForProof()
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
    const returns = this.#region.returnsTo[this.#current]!
    const repeats = [block.taken, block.next, ...returns].includes(block.place)
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
    this.accesses = findAccesses(operations, block.place, this.symbols, this.groups, block.apart)
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
      this.#go(this.distance())
    }
    if (repeats) c.end()
  }

  /** Continues `distance` bytes from the start of this block, inside the region if it is there. */
  #go(distance: number): void {
    const { c } = this
    const block = this.#region.blocks[this.#current]!
    const index = this.#region.byPlace.get(block.place + distance)
    const target = block.offset + distance
    if (index === undefined) {
      this.leaveTo(target)
      return
    }
    const forward = index > this.#current
    const looks = !forward || this.#everyEdge
    const { page } = this.#region.blocks[index]!
    if (looks) {
      c.get(L_LEFT)
      c.i32(0)
      c.op(OP.i32_le_s)
      this.loadState32(S.S_ATTENTION)
      c.op(OP.i32_or)
    }
    if (page !== block.page) {
      this.#pushUnproven(block.page, page)
      if (looks) c.op(OP.i32_or)
      c.ifHinted(false)
      this.aside(() => this.#leaveForProof(target, page))
      c.end()
      c.get(L_PAGE)
      c.i64(page.place - block.page.place)
      c.op(OP.i64_add)
      c.set(L_PAGE)
    } else if (looks) {
      c.ifHinted(false)
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

  /**
   * Pushes whether there is no proof that `to`, seen from `from`, where the region is now, is still the RAM page that was compiled, with the code
   * that was (PROOF_AT in wasm/cpu/state.ts). With it going there is as good as by an entry of the jump cache.
   */
  #pushUnproven(from: Page, to: Page): void {
    const { c } = this
    const proof = this.#region.proofs + (to.number % S.PROOFS) * 16
    c.get(L_PAGE)
    c.i64(to.place - from.place + Math.floor(to.number / S.PROOFS))
    c.op(OP.i64_add)
    c.tee(L_ADDRESS)
    c.i32(0)
    c.memory(MEM.i64_load, proof + S.PROOF_AT)
    c.op(OP.i64_ne)
    c.get(L_ADDRESS)
    c.i64(63)
    c.op(OP.i64_shr_u)
    c.op(OP.i32_wrap)
    c.i32(2)
    c.op(OP.i32_shl)
    c.memory(MEM.i64_load32_u, this.base + S.S_JUMP_KEY)
    c.i64Halves(0, to.writes)
    c.op(OP.i64_or)
    c.i32(0)
    // PROOF_KEY and PROOF_WRITES.
    c.memory(MEM.i64_load, proof + S.PROOF_KEY)
    c.op(OP.i64_ne)
    c.op(OP.i32_or)
  }

  /** Leaves the region to go on at L_PAGE + `target`, in page `to`, so that next time there may be a proof. */
  #leaveForProof(target: number, { number, writes }: Page): void {
    const { c } = this
    this.flush()
    c.i32(target)
    c.set(L_ENTRY)
    c.i32(number)
    c.set(L_WHERE)
    c.i32(writes)
    c.set(L_POINTER)
    c.br(this.#proofLabel)
  }

  /** L_RIP from the distance in L_ENTRY, to RAM page L_WHERE as it was after L_POINTER writes. */
  #askForProof(): void {
    const { c } = this
    this.#goToPlace()
    c.get(L_RIP)
    c.get(L_WHERE)
    c.get(L_POINTER)
    c.i32(this.#region.blocks[this.#region.entries[0]!]!.address)
    c.call(F_CROSS)
    c.br(this.exitLabel)
  }

  /** Translates the record that ends a block; false when it is one like any other. */
  #transfer(block: Block): boolean {
    const { c, op } = this
    switch (op.handler >= O.H_JCC && op.handler < O.H_JCC + 16 ? O.H_JCC : op.handler) {
      case O.H_JCC:
        this.pushCondition(op.aux)
        this.#ifTaken(block)
        this.aside(() => this.#go(this.distance()))
        c.end()
        this.#go(op.offset + op.length)
        return true
      case O.H_JMP:
        this.#go(this.distance())
        return true
      case O.H_CALL64:
        this.#pushReturn()
        this.#go(this.distance())
        return true
      case O.H_RET64:
      case O.H_RETI64:
        this.readStack(S.S_RSP)
        this.#popTarget()
        this.moveStack(op.handler === O.H_RET64 ? 8 : 8 + op.immLow)
        this.#goToCallers(block)
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

  /** An `if` on the condition of the branch at the end of `block`, with a hint where only one way was gone. */
  #ifTaken(block: Block): void {
    const { blocks, byPlace } = this.#region
    const isGone = (place: number): boolean => {
      const index = byPlace.get(place)
      return index !== undefined && blocks[index]!.runs * RARE >= block.runs
    }
    const taken = isGone(block.taken)
    if (taken === isGone(block.next)) this.c.if()
    else this.c.ifHinted(taken)
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
    c.ifHinted(false)
    this.aside(() => this.#endInInterpreter())
    c.end()
  }

  /** Continues in the region if L_TEMP is one of the places where this return probably leads. */
  #goToCallers(block: Block): void {
    const { c } = this
    const sites = this.#region.returnsTo[this.#current]!
    if (sites.length === 0) return
    if (sites.length > 1) this.flush()
    // The distance is compared: sums of L_PAGE and constants V8 would make on entry to the region.
    c.get(L_TEMP)
    c.get(L_PAGE)
    c.op(OP.i64_sub)
    c.set(L_VALUE)
    for (const site of sites) {
      c.get(L_VALUE)
      c.i64(site - block.page.place)
      c.op(OP.i64_eq)
      if (sites.length === 1) c.ifHinted(true)
      else c.if()
      this.aside(() => this.#go(site - block.place))
      c.end()
    }
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
