/** Which blocks are compiled together: those of one page that reach each other by direct branches, loops included. */
import * as O from '../../../wasm/cpu/ops.ts'
import * as S from '../../../wasm/cpu/state.ts'

/** A decoded block as the interpreter keeps it in the shared memory. */
export interface Block {
  readonly address: number
  readonly host: number
  /** Its distance from the start of its page. */
  readonly offset: number
  readonly count: number
  /** Where it goes by direct branches, as offsets in the page; -1 is elsewhere. */
  readonly taken: number
  readonly next: number
  /** Where the call at its end comes back to, or -1. */
  readonly returns: number
  readonly runs: number
  /** Accesses are looked up one by one (BLK_APART). */
  readonly apart: boolean
}

export interface Region {
  readonly blocks: readonly Block[]
  /** Index of a block by its offset in the page. */
  readonly byOffset: ReadonlyMap<number, number>
  /** Indices of blocks that may be entered from outside. */
  readonly entries: readonly number[]
  readonly instructions: number
  /** Where the TLB of its privilege level is. */
  readonly tlb: number
}

const HASH_BUCKETS = 65536
const MOST_BLOCKS = 48
const MOST_INSTRUCTIONS = 400
const MOST_HASH_STEPS = 4096

export class BlockReader {
  readonly view: DataView
  readonly base: number

  constructor(view: DataView, base: number) {
    this.view = view
    this.base = base
  }

  #state(offset: number): number {
    return this.view.getUint32(this.base + offset, true)
  }

  /** The valid block of code at `host` that was decoded for `mode`, or undefined. */
  find(host: number, mode: number): Block | undefined {
    const bucket = this.#state(S.S_BLOCK_HASH) + (((host ^ (host >>> 14)) & (HASH_BUCKETS - 1)) << 2)
    let address = this.view.getUint32(bucket, true)
    for (let steps = 0; address !== 0 && steps < MOST_HASH_STEPS; steps++) {
      if (
        this.view.getUint32(address + O.BLK_HOST, true) === host &&
        this.view.getUint32(address + O.BLK_MODE, true) === mode
      ) {
        const block = this.read(address)
        if (block) return block
      }
      address = this.view.getUint32(address + O.BLK_HASH_NEXT, true)
    }
    return undefined
  }

  /** The block at `address`, if it is valid 64-bit code without single-stepping. */
  read(address: number): Block | undefined {
    const { view } = this
    if (address < this.#state(S.S_ARENA) || address >= this.#state(S.S_ARENA_NEXT)) return undefined
    if (view.getUint32(address + O.BLK_VALID, true) !== 1) return undefined
    const mode = view.getUint32(address + O.BLK_MODE, true)
    if ((mode & (S.MODE_SIZE_MASK | S.MODE_SINGLE)) !== S.MODE_64) return undefined
    // An instruction across two pages: its second part depends on more than this page.
    if (view.getUint32(address + O.BLK_SECOND, true) !== 0) return undefined
    const host = view.getUint32(address + O.BLK_HOST, true)
    const offset = host & 0xfff
    const count = view.getUint16(address + O.BLK_COUNT, true)
    let last = address + O.BLK_HEADER_SIZE + (count - 1) * O.OP_RECORD_SIZE
    const inPage = (distance: number): number => {
      const at = offset + distance
      return at >= 0 && at < 4096 ? at : -1
    }
    const distance = (): number =>
      view.getInt32(last + O.OP_IMM + 4, true) === view.getInt32(last + O.OP_IMM, true) >> 31
        ? view.getInt32(last + O.OP_IMM, true)
        : 1 << 30
    const end = view.getUint16(last + O.OP_OFFSET, true) + view.getUint8(last + O.OP_LENGTH)
    let taken = -1
    let next = -1
    let returns = -1
    const handler = view.getUint16(last + O.OP_HANDLER, true)
    switch (handler >= O.H_JCC && handler < O.H_JCC + 16 ? O.H_JCC : handler) {
      case O.H_JCC:
        taken = inPage(distance())
        next = inPage(end)
        break
      case O.H_JMP:
        taken = inPage(distance())
        break
      case O.H_CALL64:
        taken = inPage(distance())
        returns = inPage(end)
        break
      case O.H_CALLR64:
      case O.H_CALLM64:
        returns = inPage(end)
        break
      case O.H_RET64:
      case O.H_RETI64:
      case O.H_JMPR64:
      case O.H_JMPM64:
      case O.H_BRANCH:
      case O.H_SYSTEM:
      case O.H_UNDEFINED:
        break
      default:
        // The record after the last instruction is H_FALL.
        last += O.OP_RECORD_SIZE
        if (view.getUint16(last + O.OP_HANDLER, true) === O.H_FALL) next = inPage(distance())
    }
    const runs = view.getUint32(address + O.BLK_RUNS, true)
    const apart = view.getUint32(address + O.BLK_APART, true) !== 0
    return { address, host, offset, count, taken, next, returns, runs, apart }
  }

  /** The region around the hot block at `address`; blocks from `end` of the arena on, and those that ran fewer than `coldest` times, are left out. */
  region(address: number, end: number, coldest: number): Region | undefined {
    const head = this.read(address)
    if (!head) return undefined
    const page = head.host - head.offset
    const mode = this.view.getUint32(address + O.BLK_MODE, true)
    const found = new Map<number, Block>([[head.offset, head]])
    const work = [head]
    const entered = new Set<number>([head.offset])
    let instructions = head.count
    while (work.length > 0) {
      const block = work.shift()!
      if (block.returns >= 0) entered.add(block.returns)
      for (const target of [block.next, block.taken, block.returns]) {
        if (target < 0) continue
        if (target <= block.offset) entered.add(target)
        if (found.has(target) || found.size >= MOST_BLOCKS || instructions >= MOST_INSTRUCTIONS) continue
        const other = this.find(page + target, mode)
        if (!other || other.address >= end || other.runs < coldest) continue
        found.set(target, other)
        instructions += other.count
        work.push(other)
      }
    }
    const blocks = [...found.values()].sort((a, b) => a.offset - b.offset)
    const byOffset = new Map(blocks.map((block, index) => [block.offset, index]))
    const entries = [...entered].flatMap(offset => byOffset.get(offset) ?? [])
    const tlb = this.#state(mode & S.MODE_USER ? S.S_TLB_USER : S.S_TLB_KERNEL)
    return { blocks, byOffset, entries, instructions, tlb }
  }
}
