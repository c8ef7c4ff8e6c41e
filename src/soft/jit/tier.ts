/**
 * Tier 1 of one vCPU: takes the hot blocks that the interpreter reports, has the regions around them compiled, many to a module, and
 * enters them in the CPU module's table. It takes and installs between two slices, while nothing runs.
 */
import * as O from '../../../wasm/cpu/ops.ts'
import * as S from '../../../wasm/cpu/state.ts'
import { BackgroundCompiler } from './background.ts'
import { type Compilation, type CompiledRegion, RegionCompiler } from './compile.ts'
import { IMPORTS } from './context.ts'

export interface TierSettings {
  /** Executions after which a block is hot. */
  readonly threshold: number
  /** Hot blocks that make a batch, and slices that fewer wait for. */
  readonly batch: number
  readonly patience: number
  /** Stop at exactly the places where the interpreter does. */
  readonly everyEdge: boolean
  /** Compile in a thread of its own; otherwise between slices, so that it depends on nothing but the guest. */
  readonly background: boolean
}

/** Compiled soon enough to pay, late enough to know the loops. */
export const AUTOMATIC: TierSettings = {
  threshold: 2000,
  batch: 24,
  patience: 20,
  everyEdge: false,
  background: true,
}
/** Compiled at first sight: for tests. */
export const EAGER: TierSettings = { threshold: 1, batch: 1, patience: 0, everyEdge: true, background: false }

/** Exports of the CPU module that compiled code calls, and its table. */
export interface TierExports {
  readonly table: WebAssembly.Table
  resetBlocks(): void
}

export interface TierCounters {
  regions: number
  blocks: number
  instructions: number
  modules: number
  bytes: number
  evictions: number
  /** Compiling threads that died: since then it is done between slices. */
  lostThreads: number
}

/**
 * Instructions that a restored guest runs before anything is compiled for it. Many a clone answers one question and is gone: it does without a thread
 * that compiles, which costs as much as the machine's others.
 */
const REST = 30_000_000

/** Regions in the table before everything is forgotten and what is still hot is compiled again. */
const MOST_REGIONS = 16000

export class JitTier {
  readonly counters: TierCounters = {
    regions: 0,
    blocks: 0,
    instructions: 0,
    modules: 0,
    bytes: 0,
    evictions: 0,
    lostThreads: 0,
  }
  readonly #view: DataView
  readonly #base: number
  readonly #exports: TierExports
  readonly #imports: WebAssembly.Imports
  readonly #settings: TierSettings
  readonly #memory: WebAssembly.Memory
  #compiler: RegionCompiler | BackgroundCompiler
  /** Blocks that ran less often are not compiled with a hot one. */
  readonly #coldest: number
  readonly #firstSlot: number
  #used = 0
  /** Counts how often everything was forgotten: what was asked for before is void. */
  #generation = 0
  #waited = 0
  #resets = 0
  /** Whether anything has been compiled; the count of instructions before which nothing is (0: no more). */
  #isWarm = false
  #restUntil = 0
  readonly #onWarm: () => void

  /** `onWarm` hears that the guest does enough for compiling to begin. */
  constructor(
    memory: WebAssembly.Memory,
    base: number,
    exports: TierExports,
    settings: TierSettings,
    onWarm: () => void,
  ) {
    this.#onWarm = onWarm
    this.#memory = memory
    this.#view = new DataView(memory.buffer)
    this.#base = base
    this.#exports = exports
    this.#settings = settings
    this.#coldest = Math.min(settings.threshold, 1 + (settings.threshold >> 4))
    this.#compiler = settings.background
      ? new BackgroundCompiler(memory, base)
      : new RegionCompiler(memory, base, settings.everyEdge)
    this.#firstSlot = exports.table.length
    const functions = exports as unknown as Record<string, WebAssembly.ImportValue>
    this.#imports = { env: { memory, ...Object.fromEntries(IMPORTS.map(({ name }) => [name, functions[name]!])) } }
    this.#resets = this.#cacheResets()
    this.#view.setUint32(base + S.S_JIT_QUEUED, 0, true)
    this.#view.setUint32(base + S.S_JIT_THRESHOLD, settings.threshold, true)
  }

  #count(offset: number): number {
    const at = this.#base + offset
    return this.#view.getUint32(at + 4, true) * 2 ** 32 + this.#view.getUint32(at, true)
  }

  #cacheResets(): number {
    return this.#count(S.S_COUNT_CACHE_RESETS)
  }

  /** The guest was restored: it may have little to do, and until it has done something nothing is even counted. */
  rest(): void {
    if (!this.#settings.background) return
    this.#restUntil = this.#count(S.S_RETIRED) + REST
    this.#view.setUint32(this.#base + S.S_JIT_THRESHOLD, 0, true)
  }

  /** Whether it still rests. */
  #rests(): boolean {
    if (this.#restUntil === 0) return false
    if (this.#count(S.S_RETIRED) < this.#restUntil) return true
    this.#restUntil = 0
    this.#view.setUint32(this.#base + S.S_JIT_THRESHOLD, this.#settings.threshold, true)
    return false
  }

  #warmUp(): void {
    if (this.#isWarm) return
    this.#isWarm = true
    this.#onWarm()
  }

  /** To be called between slices. */
  poll(): void {
    if (this.#rests()) return
    const compiler = this.#compiler
    if (compiler instanceof BackgroundCompiler) {
      const answer = compiler.take()
      const holds = answer?.generation === this.#generation && this.#resets === this.#cacheResets()
      if (answer && holds) this.#install(answer)
      if (compiler.isLost) {
        compiler.close()
        this.#compiler = new RegionCompiler(this.#memory, this.#base, this.#settings.everyEdge)
        this.counters.lostThreads++
        return
      }
      if (compiler.isBusy) return
    }
    const queued = this.#view.getUint32(this.#base + S.S_JIT_QUEUED, true)
    if (queued === 0) return
    this.#warmUp()
    if (queued < this.#settings.batch && this.#waited++ < this.#settings.patience) return
    this.#waited = 0
    const blocks = Array.from({ length: queued }, (_, index) => ({
      address: this.#view.getUint32(this.#base + S.S_JIT_QUEUE + index * 4, true),
      rip: this.#view.getBigUint64(this.#base + S.S_JIT_QUEUE_RIPS + index * 8, true),
    }))
    this.#view.setUint32(this.#base + S.S_JIT_QUEUED, 0, true)
    if (this.#cacheResets() !== this.#resets) this.forget()
    if (this.#used + queued > MOST_REGIONS) {
      this.#exports.resetBlocks()
      this.forget()
      return
    }
    const end = this.#view.getUint32(this.#base + S.S_ARENA_NEXT, true)
    if (compiler instanceof BackgroundCompiler) {
      compiler.request({ blocks, end, coldest: this.#coldest, generation: this.#generation })
      return
    }
    this.#install(compiler.compile(blocks, end, this.#coldest))
  }

  /** No block refers to compiled code any more: lets go of it. */
  forget(): void {
    for (let slot = 0; slot < this.#used; slot++) this.#exports.table.set(this.#firstSlot + slot, null)
    this.#used = 0
    this.#resets = this.#cacheResets()
    this.#generation++
    if (this.#compiler instanceof RegionCompiler) this.#compiler.forget()
    this.counters.evictions++
  }

  #install({ batch, postponed }: Compilation): void {
    for (const address of postponed) this.#view.setUint32(address + O.BLK_RUNS, this.#settings.threshold >> 1, true)
    if (!batch) return
    const { module, bytes, regions } = batch
    const { exports } = new WebAssembly.Instance(module, this.#imports)
    this.counters.modules++
    this.counters.bytes += bytes
    for (const [index, region] of regions.entries()) this.#enter(region, exports[String(index)] as () => number)
  }

  #enter({ blocks, entries, instructions }: CompiledRegion, compiled: () => number): void {
    if (blocks.some(address => this.#view.getUint32(address + O.BLK_VALID, true) !== 1)) return
    const { table } = this.#exports
    const slot = this.#firstSlot + this.#used++
    if (slot >= table.length) table.grow(256)
    table.set(slot, compiled)
    for (const [number, address] of entries.entries()) {
      if (this.#view.getUint32(address + O.BLK_JIT, true) !== 0) continue
      this.#view.setUint32(address + O.BLK_JIT_STAMP, number, true)
      this.#view.setUint32(address + O.BLK_JIT, slot + 1, true)
    }
    this.counters.regions++
    this.counters.blocks += blocks.length
    this.counters.instructions += instructions
  }

  close(): void {
    if (this.#compiler instanceof BackgroundCompiler) this.#compiler.close()
  }
}
