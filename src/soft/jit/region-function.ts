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
 *     fault: L_RIP and L_LEFT from L_WHERE
 *     exit:  registers, flags and RIP back to the state
 */
import * as O from '../../../wasm/cpu/ops.ts'
import * as S from '../../../wasm/cpu/state.ts'
import { F_END, L_ENTRY, L_LEFT, L_PAGE, L_RIP, L_TEMP, L_TLB, L_WHERE, LOCALS, readOperation } from './context.ts'
import { K_UNKNOWN } from './flags.ts'
import { OperationContext } from './operations.ts'
import type { Block, Region } from './region.ts'
import { Code, type FunctionBody, type Label, MEM, OP } from './wasm-emitter.ts'

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
  readonly #enterable = new Set<number>()

  constructor(view: DataView, base: number, everyEdge: boolean) {
    super(base)
    this.#view = view
    this.#everyEdge = everyEdge
  }

  compile(region: Region): FunctionBody {
    this.#region = region
    this.#enterable.clear()
    for (const entry of region.entries) this.#enterable.add(entry)
    this.used = 0
    this.written = 0
    this.flagsWritten = false
    this.#body()
    this.#body()
    const code = new Code()
    code.append(this.c.bytes())
    return { locals: LOCALS, code: code.bytes() }
  }

  #body(): void {
    const { c } = this
    const { blocks } = this.#region
    c.clear()
    c.get(L_RIP)
    c.i64(-4096)
    c.op(OP.i64_and)
    c.set(L_PAGE)
    this.loadState32(S.S_TLB)
    c.set(L_TLB)
    this.fillRegisters()
    this.fillFlags()
    this.exitLabel = c.block()
    this.faultLabel = c.block()
    this.#loop = c.loop()
    this.#labels = new Array<Label>(blocks.length)
    for (let index = blocks.length - 1; index >= 0; index--) this.#labels[index] = c.block()
    c.get(L_ENTRY)
    c.brTable(this.#labels)
    this.#incoming = blocks.map(() => -1)
    blocks.forEach((block, index) => {
      c.end()
      this.#current = index
      this.#block(block)
    })
    c.end()
    c.end()
    this.#leaveAtWhere()
    c.end()
    this.spillRegisters()
    if (this.flagsWritten) this.spillFlags()
    this.storeState(S.S_RIP, L_RIP)
    c.get(L_LEFT)
  }

  #leaveAtWhere(): void {
    const { c } = this
    c.get(L_PAGE)
    c.get(L_WHERE)
    c.i32(0x1fff)
    c.op(OP.i32_and)
    c.op(OP.i64_extend_i32_u)
    c.op(OP.i64_add)
    c.set(L_RIP)
    c.get(L_LEFT)
    c.get(L_WHERE)
    c.i32(13)
    c.op(OP.i32_shr_u)
    c.op(OP.i32_add)
    c.set(L_LEFT)
  }

  #block(block: Block): void {
    const { c } = this
    const known = this.#incoming[this.#current]!
    this.known = this.#enterable.has(this.#current) || known < 0 ? K_UNKNOWN : known
    this.blockOffset = block.offset
    this.blockCount = block.count
    const repeats = block.taken === block.offset || block.next === block.offset
    if (repeats) this.#self = c.loop()
    c.get(L_LEFT)
    c.i32(block.count)
    c.op(OP.i32_sub)
    c.set(L_LEFT)
    let address = block.address + O.BLK_HEADER_SIZE
    for (this.done = 0; this.done < block.count; this.done++) {
      this.op = readOperation(this.#view, address)
      address += O.OP_RECORD_SIZE
      if (this.done === block.count - 1 && this.#transfer(block)) break
      this.translate()
    }
    // Without a transfer at its end the block falls into the next.
    if (this.done === block.count) {
      this.op = readOperation(this.#view, address)
      this.#go(block.offset + this.distance())
    }
    if (repeats) c.end()
  }

  /** Continues at offset `target` of this page, inside the region if it is there. */
  #go(target: number): void {
    const { c } = this
    const index = target >= 0 && target < 4096 ? this.#region.byOffset.get(target) : undefined
    if (index === undefined) {
      this.pushPlace(target)
      c.set(L_RIP)
      this.leave()
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
      this.pushPlace(target)
      c.set(L_RIP)
      this.leave()
      c.end()
    }
    if (forward) {
      const before = this.#incoming[index]!
      this.#incoming[index] = before < 0 || before === this.known ? this.known : K_UNKNOWN
      c.br(this.#labels[index]!)
    } else if (index === this.#current) c.br(this.#self)
    else {
      c.i32(index)
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
        this.#go(offset + this.distance())
        c.end()
        this.#go(offset + op.offset + op.length)
        return true
      case O.H_JMP:
        this.#go(offset + this.distance())
        return true
      case O.H_CALL64:
        this.#pushReturn(() => {
          this.pushPlace(offset + this.distance())
          c.set(L_RIP)
          this.leave()
          return true
        })
        this.#go(offset + this.distance())
        return true
      case O.H_RET64:
      case O.H_RETI64:
        this.pushRegister(S.S_RSP)
        this.read(3, false)
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
        this.#pushReturn(() => {
          this.#goToTarget()
          return true
        })
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

  #pushReturn(commit: () => boolean): void {
    const { op } = this
    this.pushStack(() => this.pushPlace(this.blockOffset + op.offset + op.length), commit)
  }

  #pushIndirect(register: boolean): void {
    if (register) this.pushRegister(this.op.src)
    else {
      this.pushAddress()
      this.read(3, false)
    }
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
    this.#endInInterpreter()
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
    this.spillRegisters()
    if (this.flagsWritten) this.spillFlags()
    this.storeBlockRip()
    c.i32(0)
    c.i32(this.op.address)
    c.memory(MEM.i32_store, this.base + S.S_FAULT_OP)
    c.i32(this.op.address)
    c.get(L_LEFT)
    c.call(F_END)
    c.op(OP.return)
  }
}
