/** From hot blocks to a module with a function for every region around them; what of it is to be installed, as plain numbers. */
import * as O from '../../../wasm/cpu/ops.ts'
import { IMPORTS, REGION_TYPE } from './context.ts'
import { BlockReader, type HotBlock, type Region } from './region.ts'
import { RegionTranslator } from './region-function.ts'
import { buildModule, type FunctionBody } from './wasm-emitter.ts'

/** A region in a compiled module: function `String(index)` of its exports. */
export interface CompiledRegion {
  /** Addresses of its blocks: it holds as long as all of them are valid. */
  readonly blocks: readonly number[]
  /** Addresses of those that may be entered from outside, by the number of the entry. */
  readonly entries: readonly number[]
  readonly instructions: number
}

export interface CompiledBatch {
  readonly module: WebAssembly.Module
  readonly bytes: number
  readonly regions: readonly CompiledRegion[]
}

/** What became of the hot blocks of a request. */
export interface Compilation {
  readonly batch: CompiledBatch | undefined
  /** Blocks that are within a compiled region: to be compiled once more only if the interpreter still runs them often. */
  readonly postponed: readonly number[]
}

export class RegionCompiler {
  readonly #view: DataView
  readonly #reader: BlockReader
  readonly #translator: RegionTranslator
  /**
   * Blocks of compiled regions that cannot be entered there. All blocks of a loop get hot at the same time, and once the loop is compiled nobody
   * comes to them from outside: a region around each would be the same code again, five times over in a boot.
   */
  readonly #inside = new Set<number>()

  constructor(memory: WebAssembly.Memory, base: number, everyEdge: boolean) {
    this.#view = new DataView(memory.buffer)
    this.#reader = new BlockReader(this.#view, base)
    this.#translator = new RegionTranslator(this.#view, base, everyEdge)
  }

  /** Compiles the regions around `hot` blocks. Blocks from `end` of the arena on are left alone, and those that ran fewer than `coldest` times. */
  compile(hot: readonly HotBlock[], end: number, coldest: number): Compilation {
    const regions: Region[] = []
    const bodies: FunctionBody[] = []
    const postponed: number[] = []
    const covered = new Set<number>()
    for (const block of hot) {
      const { address } = block
      // An earlier region of this batch, or of another, may have this block as an entry.
      if (covered.has(address) || this.#view.getUint32(address + O.BLK_JIT, true) !== 0) continue
      if (this.#inside.delete(address)) {
        postponed.push(address)
        continue
      }
      const region = this.#region(block, end, coldest)
      const body = region && this.#translate(region)
      if (!region || !body) continue
      regions.push(region)
      bodies.push(body)
      for (const { address: inside } of region.blocks) this.#inside.add(inside)
      for (const entry of region.entries.slice(0, region.outside)) {
        covered.add(region.blocks[entry]!.address)
        this.#inside.delete(region.blocks[entry]!.address)
      }
    }
    return { batch: regions.length > 0 ? this.#assemble(regions, bodies) : undefined, postponed }
  }

  /** Blocks are where others were. */
  forget(): void {
    this.#inside.clear()
  }

  #assemble(regions: readonly Region[], bodies: readonly FunctionBody[]): CompiledBatch {
    const bytes = buildModule(REGION_TYPE, IMPORTS, bodies)
    return {
      module: new WebAssembly.Module(bytes),
      bytes: bytes.length,
      regions: regions.map(({ blocks, entries, outside, instructions }) => ({
        blocks: blocks.map(({ address }) => address),
        entries: entries.slice(0, outside).map(entry => blocks[entry]!.address),
        instructions,
      })),
    }
  }

  /** Undefined, too, when the arena was emptied while its blocks were read: pointers found in them may lead anywhere. */
  #region(hot: HotBlock, end: number, coldest: number): Region | undefined {
    try {
      return this.#reader.region(hot, end, coldest)
    } catch (error) {
      if (error instanceof RangeError) return undefined
      throw error
    }
  }

  /** Undefined when a block was overwritten meanwhile, by the vCPU in its own thread: what was made of it may be nonsense. */
  #translate(region: Region): FunctionBody | undefined {
    const isWhole = (): boolean =>
      region.blocks.every(({ address }) => this.#view.getUint32(address + O.BLK_VALID, true) === 1)
    try {
      const body = this.#translator.compile(region)
      return isWhole() ? body : undefined
    } catch (error) {
      if (isWhole()) throw error
      return undefined
    }
  }
}
