/**
 * Tier 1 of one vCPU: takes the hot blocks that the interpreter reports, compiles the regions around them, many to a module, and
 * enters them in the CPU module's table. All of it happens between two slices, so nothing runs while code is read and installed.
 */
import * as O from '../../../wasm/cpu/ops.ts'
import * as S from '../../../wasm/cpu/state.ts'
import { IMPORTS, REGION_TYPE } from './context.ts'
import { BlockReader, type Region } from './region.ts'
import { RegionTranslator } from './region-function.ts'
import { buildModule } from './wasm-emitter.ts'

export interface TierSettings {
  /** Executions after which a block is hot. */
  readonly threshold: number
  /** Hot blocks that make a batch, and slices that fewer wait for. */
  readonly batch: number
  readonly patience: number
  /** Stop at exactly the places where the interpreter does. */
  readonly everyEdge: boolean
}

/** Compiled soon enough to pay, late enough to know the loops. */
export const AUTOMATIC: TierSettings = { threshold: 2000, batch: 24, patience: 20, everyEdge: false }
/** Compiled at first sight: for tests. */
export const EAGER: TierSettings = { threshold: 1, batch: 1, patience: 0, everyEdge: true }

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
  milliseconds: number
  evictions: number
}

/** Regions in the table before everything is forgotten and what is still hot is compiled again. */
const MOST_REGIONS = 6000

export class JitTier {
  readonly counters: TierCounters = {
    regions: 0,
    blocks: 0,
    instructions: 0,
    modules: 0,
    bytes: 0,
    milliseconds: 0,
    evictions: 0,
  }
  readonly #view: DataView
  readonly #base: number
  readonly #exports: TierExports
  readonly #imports: WebAssembly.Imports
  readonly #settings: TierSettings
  readonly #reader: BlockReader
  readonly #translator: RegionTranslator
  readonly #firstSlot: number
  #used = 0
  #waited = 0
  #resets = 0

  constructor(memory: WebAssembly.Memory, base: number, exports: TierExports, settings: TierSettings) {
    this.#view = new DataView(memory.buffer)
    this.#base = base
    this.#exports = exports
    this.#settings = settings
    this.#reader = new BlockReader(this.#view, base)
    this.#translator = new RegionTranslator(this.#view, base, settings.everyEdge)
    this.#firstSlot = exports.table.length
    const functions = exports as unknown as Record<string, WebAssembly.ImportValue>
    this.#imports = { env: { memory, ...Object.fromEntries(IMPORTS.map(({ name }) => [name, functions[name]!])) } }
    this.#resets = this.#cacheResets()
    this.#view.setUint32(base + S.S_JIT_QUEUED, 0, true)
    this.#view.setUint32(base + S.S_JIT_THRESHOLD, settings.threshold, true)
  }

  #cacheResets(): number {
    return Number(this.#view.getBigUint64(this.#base + S.S_COUNT_CACHE_RESETS, true))
  }

  /** To be called between slices. */
  poll(): void {
    const queued = this.#view.getUint32(this.#base + S.S_JIT_QUEUED, true)
    if (queued === 0) return
    if (queued < this.#settings.batch && this.#waited++ < this.#settings.patience) return
    this.#waited = 0
    const addresses = Array.from({ length: queued }, (_, index) =>
      this.#view.getUint32(this.#base + S.S_JIT_QUEUE + index * 4, true),
    )
    this.#view.setUint32(this.#base + S.S_JIT_QUEUED, 0, true)
    if (this.#cacheResets() !== this.#resets) this.#forget()
    if (this.#used + queued > MOST_REGIONS) {
      this.#exports.resetBlocks()
      this.#forget()
      return
    }
    const start = performance.now()
    this.#compile(addresses)
    this.counters.milliseconds += performance.now() - start
  }

  /** No block refers to compiled code any more: let go of it. */
  #forget(): void {
    for (let slot = 0; slot < this.#used; slot++) this.#exports.table.set(this.#firstSlot + slot, null)
    this.#used = 0
    this.#resets = this.#cacheResets()
    this.counters.evictions++
  }

  #compile(addresses: readonly number[]): void {
    const regions: Region[] = []
    const covered = new Set<number>()
    for (const address of addresses) {
      // An earlier region of this batch, or of another, may have this block as an entry.
      if (covered.has(address) || this.#view.getUint32(address + O.BLK_JIT, true) !== 0) continue
      const region = this.#reader.region(
        address,
        Math.min(this.#settings.threshold, 1 + (this.#settings.threshold >> 4)),
      )
      if (!region) continue
      regions.push(region)
      for (const entry of region.entries) covered.add(region.blocks[entry]!.address)
    }
    if (regions.length === 0) return
    const bytes = buildModule(
      REGION_TYPE,
      IMPORTS,
      regions.map(region => this.#translator.compile(region)),
    )
    const { exports } = new WebAssembly.Instance(new WebAssembly.Module(bytes), this.#imports)
    this.counters.modules++
    this.counters.bytes += bytes.length
    for (const [index, region] of regions.entries()) this.#install(region, exports[String(index)] as () => number)
  }

  #install(region: Region, compiled: () => number): void {
    const { table } = this.#exports
    const slot = this.#firstSlot + this.#used++
    if (slot >= table.length) table.grow(256)
    table.set(slot, compiled)
    for (const entry of region.entries) {
      const { address } = region.blocks[entry]!
      if (this.#view.getUint32(address + O.BLK_JIT, true) !== 0) continue
      this.#view.setUint32(address + O.BLK_JIT_STAMP, entry, true)
      this.#view.setUint32(address + O.BLK_JIT, slot + 1, true)
    }
    this.counters.regions++
    this.counters.blocks += region.blocks.length
    this.counters.instructions += region.instructions
  }
}
