/**
 * Which blocks are compiled together: those that reach each other by direct branches, calls and returns from them, loops included, in the page of
 * the hot block and in others.
 */
import * as O from '../../../wasm/cpu/ops.ts'
import * as S from '../../../wasm/cpu/state.ts'

/** A block that is ready to be compiled, and the RIP at which it was hot. */
export interface HotBlock {
  readonly address: number
  readonly rip: bigint
}

/** A page of code that a region has blocks of. */
export interface Page {
  /** Its linear address less that of the page in which the region is entered. */
  readonly place: number
  /** Where it is in the shared memory, and its number in RAM. */
  readonly host: number
  readonly number: number
  /** How often code there had been overwritten (PROOF_WRITES) when it was read. */
  readonly writes: number
}

/** A decoded block as the interpreter keeps it in the shared memory. */
export interface Block {
  readonly address: number
  readonly page: Page
  /** Its linear address less that of the page in which the region is entered. */
  readonly place: number
  /** Its distance from the start of its page. */
  readonly offset: number
  readonly count: number
  /** Where it goes by direct branches, as places; NOWHERE is one that does not exist. */
  readonly taken: number
  readonly next: number
  /** Where the call at its end comes back to, or NOWHERE; whether it is a direct one. */
  readonly returns: number
  readonly calls: boolean
  /** It ends with a return. */
  readonly isReturn: boolean
  readonly runs: number
  /** Accesses are looked up one by one (BLK_APART). */
  readonly apart: boolean
}

export interface Region {
  /** Forward branches lead to later ones, as far as there are no loops. */
  readonly blocks: readonly Block[]
  /** Index of a block by its place. */
  readonly byPlace: ReadonlyMap<number, number>
  /** Places where the return at the end of a block probably leads, by its index; the most likely first. */
  readonly returnsTo: readonly (readonly number[])[]
  /** Indices of blocks that are entered: from outside, which `outside` counts, and then by backward branches alone. */
  readonly entries: readonly number[]
  readonly outside: number
  readonly instructions: number
  /** Where the TLB of its privilege level is, and the proofs. */
  readonly tlb: number
  readonly proofs: number
}

const HASH_BUCKETS = 65536
const MOST_BLOCKS = 64
const MOST_INSTRUCTIONS = 500
/**
 * Instructions of a function in another page that becomes part of the regions that call it. Longer ones are left to regions of their own: their code
 * would be compiled again and again, and V8 would be done with it much later.
 */
const MOST_OF_CALLEE = 40
/** A branch into another page that goes no farther leads to a part of the same function. */
const NEAR = 4096
const MOST_HASH_STEPS = 4096
/** Places that a return is compared with. */
const MOST_RETURNS = 4
/** A page whose code is overwritten again and again is left to regions of its own. */
const MOST_WRITES = 1000

const NOWHERE = Number.POSITIVE_INFINITY
/** Places are so near to each other that their distances have 32 bits. */
const FARTHEST = 2 ** 30
const TLB_ENTRIES = 4096
const TLB_EXEC = 16
const TLB_ADDEND = 24
const PAGE_MASK = ~4095

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

  /** The valid block of code at `offset` of `page` that was decoded for `mode`, or undefined. */
  find(page: Page, offset: number, mode: number): Block | undefined {
    const host = page.host + offset
    const bucket = this.#state(S.S_BLOCK_HASH) + (((host ^ (host >>> 14)) & (HASH_BUCKETS - 1)) << 2)
    let address = this.view.getUint32(bucket, true)
    for (let steps = 0; address !== 0 && steps < MOST_HASH_STEPS; steps++) {
      if (
        this.view.getUint32(address + O.BLK_HOST, true) === host &&
        this.view.getUint32(address + O.BLK_MODE, true) === mode
      ) {
        const block = this.read(address, page)
        if (block) return block
      }
      address = this.view.getUint32(address + O.BLK_HASH_NEXT, true)
    }
    return undefined
  }

  /** The block at `address`, in `page`, if it is valid 64-bit code without single-stepping. */
  read(address: number, page: Page): Block | undefined {
    const { view } = this
    if (address < this.#state(S.S_ARENA) || address >= this.#state(S.S_ARENA_NEXT)) return undefined
    if (view.getUint32(address + O.BLK_VALID, true) !== 1) return undefined
    const mode = view.getUint32(address + O.BLK_MODE, true)
    if ((mode & (S.MODE_SIZE_MASK | S.MODE_SINGLE)) !== S.MODE_64) return undefined
    // An instruction across two pages: its second part depends on more than this page.
    if (view.getUint32(address + O.BLK_SECOND, true) !== 0) return undefined
    const offset = view.getUint32(address + O.BLK_HOST, true) - page.host
    if (offset < 0 || offset >= 4096) return undefined
    const place = page.place + offset
    const count = view.getUint16(address + O.BLK_COUNT, true)
    let last = address + O.BLK_HEADER_SIZE + (count - 1) * O.OP_RECORD_SIZE
    const near = (distance: number): number => {
      const at = place + distance
      return Math.abs(at) < FARTHEST ? at : NOWHERE
    }
    const distance = (): number =>
      view.getInt32(last + O.OP_IMM + 4, true) === view.getInt32(last + O.OP_IMM, true) >> 31
        ? view.getInt32(last + O.OP_IMM, true)
        : NOWHERE
    const end = view.getUint16(last + O.OP_OFFSET, true) + view.getUint8(last + O.OP_LENGTH)
    let taken = NOWHERE
    let next = NOWHERE
    let returns = NOWHERE
    let calls = false
    let isReturn = false
    const handler = view.getUint16(last + O.OP_HANDLER, true)
    switch (handler >= O.H_JCC && handler < O.H_JCC + 16 ? O.H_JCC : handler) {
      case O.H_JCC:
        taken = near(distance())
        next = near(end)
        break
      case O.H_JMP:
        taken = near(distance())
        break
      case O.H_CALL64:
        taken = near(distance())
        returns = near(end)
        calls = true
        break
      case O.H_CALLR64:
      case O.H_CALLM64:
        returns = near(end)
        break
      case O.H_RET64:
      case O.H_RETI64:
        isReturn = true
        break
      case O.H_JMPR64:
      case O.H_JMPM64:
      case O.H_BRANCH:
      case O.H_SYSTEM:
      case O.H_UNDEFINED:
        break
      default:
        // The record after the last instruction is H_FALL.
        last += O.OP_RECORD_SIZE
        if (view.getUint16(last + O.OP_HANDLER, true) === O.H_FALL) next = near(distance())
    }
    const runs = view.getUint32(address + O.BLK_RUNS, true)
    const apart = view.getUint32(address + O.BLK_APART, true) !== 0
    return { address, page, place, offset, count, taken, next, returns, calls, isReturn, runs, apart }
  }

  /** What is known of the page at shared-memory address `host`, before anything of it is read. */
  #page(place: number, host: number): Page {
    const number = (host - this.#state(S.S_RAM_OFFSET)) / 4096
    const proof = this.#state(S.S_PROOFS) + (number % S.PROOFS) * 16
    return { place, host, number, writes: this.view.getUint32(proof + S.PROOF_WRITES, true) }
  }

  /**
   * Where linear page `linear` probably is in the shared memory; 0 when nobody knows. It need not be true: the region looks for a proof before it
   * goes there.
   */
  #hostOf(linear: bigint, head: Page, headLinear: bigint, user: boolean): number {
    const entry =
      this.#state(user ? S.S_TLB_USER : S.S_TLB_KERNEL) + (Number((linear >> 12n) & BigInt(TLB_ENTRIES - 1)) << 5)
    if (this.view.getBigUint64(entry + TLB_EXEC, true) === linear) {
      const low = Number(linear & 0xffff_ffffn)
      return (this.view.getUint32(entry + TLB_ADDEND, true) + low) >>> 0
    }
    // The kernel lies in one piece, as a rule.
    return user ? 0 : head.host + Number(linear - headLinear)
  }

  /** The region around the hot block; blocks from `end` of the arena on, and those that ran fewer than `coldest` times, are left out. */
  region({ address, rip }: HotBlock, end: number, coldest: number): Region | undefined {
    const headHost = this.view.getUint32(address + O.BLK_HOST, true) & PAGE_MASK
    const headPage = this.#page(0, headHost >>> 0)
    const head = this.read(address, headPage)
    if (!head) return undefined
    const mode = this.view.getUint32(address + O.BLK_MODE, true)
    const user = (mode & S.MODE_USER) !== 0
    const headLinear = BigInt.asUintN(64, rip & ~4095n)
    const [ramStart, ramEnd] = [
      this.#state(S.S_RAM_OFFSET),
      this.#state(S.S_RAM_PAGES) * 4096 + this.#state(S.S_RAM_OFFSET),
    ]
    const pages = new Map<number, Page | undefined>([[0, headPage]])
    const pageAt = (place: number): Page | undefined => {
      if (pages.has(place)) return pages.get(place)
      const linear = BigInt.asUintN(64, headLinear + BigInt(place))
      const host = this.#hostOf(linear, headPage, headLinear, user)
      const page = host >= ramStart && host < ramEnd ? this.#page(place, host) : undefined
      const known = page && page.writes <= MOST_WRITES ? page : undefined
      pages.set(place, known)
      return known
    }
    const at = (place: number): Block | undefined => {
      const page = pageAt(place & PAGE_MASK)
      const block = page && this.find(page, place & 4095, mode)
      return block && block.address < end && block.runs >= coldest ? block : undefined
    }
    /** Whether the body of the function that begins with `first` is short, without what it calls. */
    const isSmall = (first: Block): boolean => {
      const seen = new Set([first.place])
      const rest = [first]
      let size = first.count
      while (rest.length > 0) {
        const block = rest.pop()!
        for (const target of block.calls ? [block.returns] : [block.next, block.taken, block.returns]) {
          if (target === NOWHERE || seen.has(target)) continue
          seen.add(target)
          const other = at(target)
          if (!other) continue
          size += other.count
          if (size > MOST_OF_CALLEE) return false
          rest.push(other)
        }
      }
      return size <= MOST_OF_CALLEE
    }
    // Only what is about as hot as the head pays for being compiled in several regions.
    const threshold = this.#state(S.S_JIT_THRESHOLD)
    const hot = threshold - (threshold >> 4)
    const found = new Map<number, Block>([[head.place, head]])
    const work = [head]
    const outside = new Set<number>([head.place])
    let instructions = head.count
    while (work.length > 0) {
      const block = work.shift()!
      if (block.returns !== NOWHERE) outside.add(block.returns)
      for (const target of [block.next, block.taken, block.returns]) {
        if (target === NOWHERE) continue
        if (target <= block.place) outside.add(target)
        if (found.has(target) || found.size >= MOST_BLOCKS || instructions >= MOST_INSTRUCTIONS) continue
        const other = at(target)
        if (!other) continue
        const isNear = other.page === block.page || Math.abs(target - block.place) <= NEAR
        if (!isNear && (block.runs < hot || other.runs < hot || !isSmall(other))) continue
        found.set(target, other)
        instructions += other.count
        work.push(other)
      }
    }
    const tlb = this.#state(user ? S.S_TLB_USER : S.S_TLB_KERNEL)
    const entered = [...outside].filter(place => found.get(place)?.page === headPage)
    return { ...order(found, entered), instructions, tlb, proofs: this.#state(S.S_PROOFS) }
  }
}

/** Where each return probably leads: to what follows the calls of the region from which it can be reached. */
function findReturns(found: ReadonlyMap<number, Block>): Map<number, number[]> {
  const sites = new Map<number, Block[]>()
  for (const block of found.values())
    if (block.calls && found.has(block.taken) && found.has(block.returns))
      sites.set(block.taken, [...(sites.get(block.taken) ?? []), found.get(block.returns)!])
  const leads = new Map<number, Set<Block>>()
  for (const [callee, after] of sites) {
    const seen = new Set<number>([callee])
    const work = [callee]
    while (work.length > 0) {
      const block = found.get(work.pop()!)!
      if (block.isReturn) {
        const all = leads.get(block.place) ?? new Set()
        for (const site of after) all.add(site)
        leads.set(block.place, all)
      }
      for (const place of block.calls ? [block.returns] : [block.taken, block.next, block.returns])
        if (found.has(place) && !seen.has(place)) {
          seen.add(place)
          work.push(place)
        }
    }
  }
  const likely = [...leads].map(([place, all]): [number, number[]] => [
    place,
    [...all]
      .sort((a, b) => b.runs - a.runs)
      .slice(0, MOST_RETURNS)
      .map(site => site.place),
  ])
  return new Map(likely)
}

/** Puts blocks in an order in which only loops go back, and finds which of them are entered. */
function order(
  found: ReadonlyMap<number, Block>,
  outside: readonly number[],
): Pick<Region, 'blocks' | 'byPlace' | 'returnsTo' | 'entries' | 'outside'> {
  const returns = findReturns(found)
  const targets = (block: Block): number[] => [block.taken, block.next, ...(returns.get(block.place) ?? [])]
  const blocks: Block[] = []
  const seen = new Set<number>()
  for (const root of [...outside].reverse()) {
    const stack: { block: Block; left: number[] }[] = []
    const visit = (place: number): void => {
      const block = found.get(place)
      if (!block || seen.has(place)) return
      seen.add(place)
      // What follows a call is looked at first, so that it comes after what is called.
      stack.push({ block, left: [block.next, block.taken, block.returns, ...(returns.get(place) ?? [])] })
    }
    visit(root)
    while (stack.length > 0) {
      const top = stack.at(-1)!
      const place = top.left.pop()
      if (place !== undefined) visit(place)
      else blocks.push(stack.pop()!.block)
    }
  }
  blocks.reverse()
  const byPlace = new Map(blocks.map((block, index) => [block.place, index]))
  const entries = outside.map(place => byPlace.get(place)!)
  const entered = new Set(entries)
  for (const [index, block] of blocks.entries())
    for (const target of targets(block)) {
      const to = byPlace.get(target)
      if (to === undefined || to > index || entered.has(to)) continue
      entered.add(to)
      entries.push(to)
    }
  const returnsTo = blocks.map(({ place }) => returns.get(place) ?? [])
  return { blocks, byPlace, returnsTo, entries, outside: outside.length }
}
