/**
 * Our side: the CPU module alone on a memory of its own, with page tables, descriptor tables and an IDT whose handlers halt. A case
 * starts at CPL 3 in 64-bit code and ends in one of the handlers; its state is in the registers and in the exception's stack frame.
 *
 *     physical   0x01000 page tables    0x10000 handlers    0x11000 IDT   0x12000 GDT   0x13000 TSS   0x14000 kernel stack
 *                0x20000 data pages     0x22000 read-only   0x100000 code of the cases
 *     linear     KERNEL + physical (supervisor), CODE_BASE, DATA_BASE, READ_ONLY_BASE (user)
 */

import { RAM_OFFSET, SOFT_CPU_BASE } from '../../src/memory/layout.ts'
import { JitTier, type TierExports } from '../../src/soft/jit/tier.ts'
import { instantiateOnMemory } from '../../src/wasm/loader.ts'
import * as S from '../../wasm/cpu/state.ts'
import * as layout from './case.ts'

interface CpuExports extends TierExports {
  setCpu(base: number): void
  resetVcpu(): void
  updateMode(): void
  putRflags(value: number): void
  flushTlbAll(): void
  run(budget: number): void
}

const KERNEL = 0x3800_0000
const RAM_SIZE = 4 << 20
const PML4 = 0x1000
const HANDLERS = 0x1_0000
const IDT = 0x1_1000
const GDT = 0x1_2000
const TSS = 0x1_3000
const STACK_TOP = 0x1_5000
const DATA = 0x2_0000
const READ_ONLY = 0x2_2000
const CODE = 0x10_0000
const CODE_PAGES = 257

const USER_CS = 0x33
const USER_SS = 0x2b
/** As Linux has them: PE MP ET NE WP AM PG; PSE PAE PGE OSFXSR OSXMMEXCPT; SCE LME LMA NXE. */
const CR0 = 0x8005_0033n
const CR4 = 0x6b0n
const EFER = 0xd01n

const PRESENT = 1n
const WRITABLE = 2n
const USER = 4n
const NO_EXECUTE = 1n << 63n

export class Soft {
  readonly #memory: WebAssembly.Memory
  readonly #view: DataView
  readonly #bytes: Uint8Array
  readonly #cpu: CpuExports
  readonly #state = SOFT_CPU_BASE
  readonly #pattern = new Uint8Array(layout.DATA_PAGES * 4096)

  readonly #jit: JitTier | undefined

  constructor(tier: 'interpreter' | 'compiler' = 'interpreter') {
    const pages = (RAM_OFFSET + RAM_SIZE) / 65536
    this.#memory = new WebAssembly.Memory({ initial: pages, maximum: 65536, shared: true })
    this.#view = new DataView(this.#memory.buffer)
    this.#bytes = new Uint8Array(this.#memory.buffer)
    const nothing = (): number => 0
    const host = {
      mmioRead: nothing,
      mmioWrite: nothing,
      portRead: nothing,
      portWrite: nothing,
      now: nothing,
      wake: nothing,
      wallSeconds: nothing,
    }
    this.#cpu = instantiateOnMemory<CpuExports>('cpu', this.#memory, { host })
    this.#layOut()
    this.#cpu.setCpu(this.#state)
    this.#cpu.resetVcpu()
    this.#tables()
    for (let i = 0; i < this.#pattern.length; i++) this.#pattern[i] = layout.patternByte(i)
    this.#ram(DATA).set(this.#pattern)
    const settings = { threshold: 1, batch: 1, patience: 0, everyEdge: true, background: false }
    if (tier === 'compiler') this.#jit = new JitTier(this.#memory, this.#state, this.#cpu, settings, () => {})
  }

  /** Runs a batch; the records as our CPU leaves them. */
  run(batch: layout.Batch): Uint8Array {
    const code = this.#ram(CODE).subarray(0, CODE_PAGES * 4096)
    code.fill(0xcc)
    for (let i = 0; i < batch.length; i++)
      code.set(batch.code(i), batch.view.getUint32(i * layout.STATE_SIZE + layout.RIP, true) - layout.CODE_BASE)
    this.#cpu.resetBlocks()
    this.#cpu.flushTlbAll()
    // Compiled code: the first round makes the blocks, which are compiled, and the second runs them.
    if (this.#jit) this.#round(batch)
    return this.#round(batch)
  }

  #round(batch: layout.Batch): Uint8Array {
    const results = batch.bytes.slice(0, batch.length * layout.STATE_SIZE)
    for (let i = 0; i < batch.length; i++) {
      if (i % 64 === 0) this.#jit?.poll()
      const record = results.subarray(i * layout.STATE_SIZE, (i + 1) * layout.STATE_SIZE)
      this.#one(record, new DataView(results.buffer, record.byteOffset, layout.STATE_SIZE))
    }
    this.#jit?.poll()
    return results
  }

  /** How often compiled code was entered. */
  get compiledEntries(): number {
    return Number(this.#view.getBigUint64(this.#state + S.S_JIT_ENTRIES, true))
  }

  #ram(physical: number): Uint8Array {
    return this.#bytes.subarray(RAM_OFFSET + physical)
  }

  #u32(offset: number, value: number): void {
    this.#view.setUint32(this.#state + offset, value, true)
  }

  #u64(offset: number, value: bigint): void {
    this.#view.setBigUint64(this.#state + offset, value, true)
  }

  /** Where the CPU's tables are: what src/soft does for a machine, in small. */
  #layOut(): void {
    let at = this.#state + S.VCPU_STATE_SIZE * S.MAX_VCPUS
    const take = (offset: number, size: number): void => {
      this.#u32(offset, at)
      at += size
    }
    take(S.S_TLB_KERNEL, 0x2_0000)
    take(S.S_TLB_USER, 0x2_0000)
    take(S.S_JUMP_CACHE, 0x1_0000)
    take(S.S_REGION_CACHE, S.REGION_CACHE_ENTRIES * 16)
    take(S.S_PROOFS, S.PROOFS * 16)
    take(S.S_BLOCK_HASH, 0x4_0000)
    take(S.S_CODE_PAGES, 0x4_0000)
    take(S.S_PAGE_BLOCKS, 0x4_0000)
    take(S.S_CHIPS, 0x1000)
    take(S.S_ARENA, 0x200_0000)
    this.#u32(S.S_ARENA_END, at)
    this.#u32(S.S_ARENA_NEXT, at - 0x200_0000)
    this.#u32(S.S_RAM_LOW, RAM_SIZE)
    this.#u32(S.S_RAM_OFFSET, RAM_OFFSET)
    this.#u32(S.S_RAM_PAGES, RAM_SIZE >> 12)
    this.#u32(S.S_CPUS, 1)
    this.#u32(S.S_TSC_KHZ, 1_000_000)
  }

  #write64(physical: number, value: bigint): void {
    this.#view.setBigUint64(RAM_OFFSET + physical, value, true)
  }

  #tables(): void {
    const user = PRESENT | WRITABLE | USER
    const [pdpt, directory] = [PML4 + 0x1000, PML4 + 0x2000]
    this.#write64(PML4, BigInt(pdpt) | user)
    this.#write64(pdpt, BigInt(directory) | user)
    let next = PML4 + 0x3000
    const map = (linear: number, physical: number, count: number, bits: bigint): void => {
      const entry = directory + (linear >>> 21) * 8
      let table = Number(this.#view.getBigUint64(RAM_OFFSET + entry, true) & ~0xfffn)
      if (table === 0) {
        table = next
        next += 0x1000
        this.#write64(entry, BigInt(table) | user)
      }
      for (let i = 0; i < count; i++)
        this.#write64(table + ((linear >>> 12) & 511) * 8 + i * 8, BigInt(physical + i * 4096) | bits)
    }
    map(KERNEL, 0, 512, PRESENT | WRITABLE)
    map(layout.CODE_BASE, CODE, CODE_PAGES, user)
    map(layout.DATA_BASE, DATA, layout.DATA_PAGES, user | NO_EXECUTE)
    map(layout.READ_ONLY_BASE, READ_ONLY, 1, PRESENT | USER | NO_EXECUTE)

    this.#ram(HANDLERS).fill(0xf4, 0, 4096)
    for (let vector = 0; vector < 32; vector++) {
      const handler = BigInt(KERNEL + HANDLERS + vector * 16)
      this.#write64(
        IDT + vector * 16,
        (handler & 0xffffn) | (0x08n << 16n) | (0xeen << 40n) | ((handler >> 16n) << 48n),
      )
      this.#write64(IDT + vector * 16 + 8, handler >> 32n)
    }
    const tss = BigInt(KERNEL + TSS)
    const gdt = [
      0n,
      0x00af_9b00_0000_ffffn,
      0x00cf_9300_0000_ffffn,
      0n,
      0n,
      0x00cf_f300_0000_ffffn,
      0x00af_fb00_0000_ffffn,
      0n,
      0x67n | ((tss & 0xff_ffffn) << 16n) | (0x8bn << 40n) | ((tss >> 24n) << 56n),
      tss >> 32n,
    ]
    for (const [i, entry] of gdt.entries()) this.#write64(GDT + i * 8, entry)
    this.#write64(TSS + 4, BigInt(KERNEL + STACK_TOP))
    // No I/O permission bitmap: it would begin behind the limit.
    this.#view.setUint16(RAM_OFFSET + TSS + 102, 0x68, true)

    this.#u64(S.S_GDT_BASE, BigInt(KERNEL + GDT))
    this.#u32(S.S_GDT_LIMIT, gdt.length * 8 - 1)
    this.#u64(S.S_IDT_BASE, BigInt(KERNEL + IDT))
    this.#u32(S.S_IDT_LIMIT, 32 * 16 - 1)
    this.#u64(S.S_CR0, CR0)
    this.#u64(S.S_CR3, BigInt(PML4))
    this.#u64(S.S_CR4, CR4)
    this.#u64(S.S_EFER, EFER)
    this.#segment(S.TR, 0x40, KERNEL + TSS, 0x67, 0x8b)
  }

  #segment(segment: number, selector: number, base: number, limit: number, attributes: number): void {
    const at = S.S_SEG + segment * S.SEG_STRIDE
    this.#u64(at + S.SEG_BASE, BigInt(base))
    this.#u32(at + S.SEG_LIMIT, limit)
    this.#u32(at + S.SEG_ATTR, attributes)
    this.#u32(at + S.SEG_SELECTOR, selector)
    this.#u32(at + S.SEG_NULL, selector === 0 ? 1 : 0)
  }

  #one(record: Uint8Array, view: DataView): void {
    const { RIP, RFLAGS, TRAP, ERROR, CR2, OUTSIDE, WINDOW, WINDOW_SIZE } = layout
    const window = this.#ram(DATA)
      .subarray(layout.WINDOW_BASE - layout.DATA_BASE)
      .subarray(0, WINDOW_SIZE)
    window.set(record.subarray(WINDOW, WINDOW + WINDOW_SIZE))
    this.#bytes.set(record.subarray(0, 128), this.#state + S.S_GPR)
    this.#u64(S.S_RIP, view.getBigUint64(RIP, true))
    this.#u64(S.S_CR2, 0n)
    this.#u32(S.S_CPL, 3)
    this.#u32(S.S_MP_STATE, 0)
    this.#u32(S.S_ATTENTION, 0)
    this.#u32(S.S_FAULT, 0)
    this.#segment(S.CS, USER_CS, 0, 0xffff_ffff, 0xa0fb)
    this.#segment(S.SS, USER_SS, 0, 0xffff_ffff, 0xc0f3)
    this.#segment(S.DS, 0, 0, 0, 0)
    this.#segment(S.ES, 0, 0, 0, 0)
    this.#segment(S.FS, 0, 0, 0, 0)
    this.#segment(S.GS, 0, layout.DATA_BASE, 0, 0)
    this.#cpu.putRflags(view.getUint32(RFLAGS, true))
    this.#loadFpu(record, view)
    this.#cpu.updateMode()
    this.#cpu.run(10_000)

    const exit = this.#view.getUint32(this.#state + S.S_EXIT, true)
    const stopped = Number(this.#view.getBigUint64(this.#state + S.S_RIP, true)) - KERNEL - HANDLERS
    const halted = exit === S.EXIT_HALT && stopped > 0 && stopped < 32 * 16
    const vector = halted ? Math.floor((stopped - 1) / 16) : 1000 + exit
    const withError = [8, 10, 11, 12, 13, 14, 17].includes(vector)
    // From the top of the stack: SS, RSP, RFLAGS, CS, RIP, error code.
    const frame = RAM_OFFSET + STACK_TOP - 40
    record.set(this.#bytes.subarray(this.#state + S.S_GPR, this.#state + S.S_GPR + 128), 0)
    view.setUint32(TRAP, vector, true)
    view.setUint32(ERROR, withError ? this.#view.getUint32(frame - 8, true) : 0, true)
    view.setBigUint64(RIP, this.#view.getBigUint64(frame, true), true)
    view.setBigUint64(RFLAGS, this.#view.getBigUint64(frame + 16, true), true)
    view.setBigUint64(4 * 8, this.#view.getBigUint64(frame + 24, true), true)
    view.setBigUint64(CR2, vector === 14 ? this.#view.getBigUint64(this.#state + S.S_CR2, true) : 0n, true)
    this.#saveFpu(record, view)
    record.set(window, WINDOW)
    view.setBigUint64(OUTSIDE, this.#changedElsewhere(window), true)
  }

  /** The hash that native.c makes of the data pages when anything outside the window changed, or 0. */
  #changedElsewhere(window: Uint8Array): bigint {
    const from = layout.WINDOW_BASE - layout.DATA_BASE
    window.set(this.#pattern.subarray(from, from + layout.WINDOW_SIZE))
    const data = this.#ram(DATA).subarray(0, this.#pattern.length)
    if (Buffer.compare(data, this.#pattern) === 0) return 0n
    let hash = 0xcbf29ce484222325n
    for (const byte of data) hash = ((hash ^ BigInt(byte)) * 0x100000001b3n) & 0xffff_ffff_ffff_ffffn
    data.set(this.#pattern)
    return hash | 1n
  }

  #loadFpu(record: Uint8Array, view: DataView): void {
    const fx = layout.FX
    const top = (view.getUint16(fx + 2, true) >> 11) & 7
    this.#u32(S.S_FCW, view.getUint16(fx, true) | ((view.getUint16(fx + 2, true) & ~0x3800) << 16))
    this.#u32(S.S_FTOP, top)
    this.#u32(S.S_FTAG, view.getUint8(fx + 4))
    this.#u32(S.S_FOP, 0)
    this.#u64(S.S_FIP, 0n)
    this.#u64(S.S_FDP, 0n)
    this.#u32(S.S_FCS, 0)
    this.#u32(S.S_MXCSR, view.getUint32(fx + 24, true))
    for (let i = 0; i < 8; i++) {
      const at = this.#state + S.S_FPR + ((top + i) & 7) * S.FPR_STRIDE
      this.#bytes.set(record.subarray(fx + 32 + i * 16, fx + 48 + i * 16), at)
    }
    for (let i = 0; i < 16; i++)
      this.#bytes.set(record.subarray(fx + 160 + i * 16, fx + 176 + i * 16), this.#state + S.S_XMM + i * S.XMM_STRIDE)
  }

  #saveFpu(record: Uint8Array, view: DataView): void {
    const fx = layout.FX
    const top = this.#view.getUint32(this.#state + S.S_FTOP, true)
    view.setUint16(fx, this.#view.getUint16(this.#state + S.S_FCW, true), true)
    view.setUint16(fx + 2, (this.#view.getUint16(this.#state + S.S_FSW, true) & ~0x3800) | (top << 11), true)
    view.setUint8(fx + 4, this.#view.getUint32(this.#state + S.S_FTAG, true))
    view.setUint32(fx + 24, this.#view.getUint32(this.#state + S.S_MXCSR, true), true)
    for (let i = 0; i < 8; i++) {
      const at = this.#state + S.S_FPR + ((top + i) & 7) * S.FPR_STRIDE
      record.set(this.#bytes.subarray(at, at + 10), fx + 32 + i * 16)
    }
    for (let i = 0; i < 16; i++) {
      const at = this.#state + S.S_XMM + i * S.XMM_STRIDE
      record.set(this.#bytes.subarray(at, at + 16), fx + 160 + i * 16)
    }
  }
}
