/** A vCPU of the software CPU, in its worker: slices of the interpreter, halting, and the host's side of its imports. */
import * as S from '../../wasm/cpu/state.ts'
import type {
  CpuDump,
  CpuRegisters,
  IoHandler,
  SoftOptions,
  StepExit,
  SystemRegisters,
  Vcpu,
  VcpuExit,
  VcpuTicket,
} from '../accel/contract.ts'
import { ringBell } from '../host/bell.ts'
import { addressOf } from '../host/libc.ts'
import { preferHugePages } from '../host/memory-advice.ts'
import { GuestMemory } from '../memory/guest-memory.ts'
import { SOFT_CPU_BASE } from '../memory/layout.ts'
import { adoptWasmModule, instantiateOnMemory, prepareOnMemory } from '../wasm/loader.ts'
import { type Clock, openClock } from './clock.ts'
import { type DoorbellTable, openDoorbells } from './doorbells.ts'
import { AUTOMATIC, EAGER, JitTier, type TierExports, type TierSettings } from './jit/tier.ts'
import { attentionIndex, vcpuStateBase } from './layout.ts'
import { seedRandom } from './random.ts'
import { readGeneral, readSystem, writeGeneral, writeSystem } from './registers.ts'
import { packVcpu, unpackVcpu } from './state-blob.ts'
import { instructionLine, TraceOutput, tracedIo } from './trace.ts'

/** What the ticket carries. */
export interface SoftVcpuDetail {
  readonly module: WebAssembly.Module
  /** The monotonic clock when the machine was created. */
  readonly origin: number
  readonly cpus: number
  readonly bare: boolean
  readonly deterministic: boolean
  readonly trace?: 'instructions' | 'exits'
  readonly tier: NonNullable<SoftOptions['tier']>
}

/** The exports of wasm/cpu/index.ts. */
interface CpuExports extends TierExports {
  setCpu(base: number): void
  resetVcpu(): void
  run(budget: number): void
  pollTimers(): void
  nextDeadline(): number
  currentTime(): number
  updateMode(): void
  flushTlbAll(): void
  dropAllWriters(): void
  settleCode(): void
  getRflags(): number
  putRflags(value: number): void
  readSlow(address: bigint, size: number): bigint
}

/** What the CPU's imports work on. */
interface HostSide {
  readonly words: Int32Array
  readonly temp: DataView
  readonly doorbells: DoorbellTable
  readonly clock: Clock
  /** The same always, in deterministic mode. */
  readonly wallSeconds: number | undefined
  io: IoHandler | undefined
}

const FIXED_WALL_SECONDS = 1_600_000_000

function importsOf(host: HostSide): Record<string, (...args: number[]) => number | undefined> {
  const { words, temp, doorbells, clock, wallSeconds } = host
  return {
    mmioRead: (address, size) => {
      host.io!.mmioRead(address!, size!, temp)
      return undefined
    },
    mmioWrite: (address, size) => {
      const fd = size === 4 ? doorbells.find(address!, temp.getUint32(0, true)) : -1
      if (fd >= 0) {
        ringBell(fd)
        return 0
      }
      host.io!.mmioWrite(address!, size!, temp)
      return host.io!.stopRequested ? 1 : 0
    },
    portRead: (port, size) => host.io!.portRead(port!, size!) | 0,
    portWrite: (port, size, value) => {
      const unsigned = size === 4 ? value! >>> 0 : value! & (size === 2 ? 0xffff : 0xff)
      host.io!.portWrite(port!, size!, unsigned)
      return host.io!.stopRequested ? 1 : 0
    },
    now: clock,
    wallSeconds: () => wallSeconds ?? Math.floor(Date.now() / 1000),
    wake: index => {
      Atomics.notify(words, attentionIndex(index!))
      return undefined
    },
  }
}

/** What a first vCPU would wait for, before there is a machine. */
export function prepareCpu(): void {
  const temp = new DataView(new ArrayBuffer(8))
  const clock = (): number => 0
  const host = { words: new Int32Array(temp.buffer), temp, doorbells: openDoorbells(temp), clock }
  prepareOnMemory('cpu', { host: importsOf({ ...host, wallSeconds: undefined, io: undefined }) })
}

/** Instructions between two looks at the clock: some tenths of a millisecond. */
const SLICE = 50_000
/** With tier 'compiler' hot blocks are looked for more often. */
const EAGER_SLICE = 2_000

/** Whether tier 'auto' compiles, or leaves everything to the interpreter. */
export const AUTO_COMPILES = true

export class SoftVcpu implements Vcpu {
  readonly index: number
  readonly #memory: GuestMemory
  readonly #view: DataView
  readonly #words: Int32Array
  readonly #base: number
  readonly #wasm: CpuExports
  readonly #detail: SoftVcpuDetail
  readonly #host: HostSide
  readonly #jit: JitTier | undefined
  readonly #slice: number

  /** `settings` replaces how tier 1 is set up: for tests. */
  constructor(ticket: VcpuTicket, settings?: TierSettings) {
    const detail = ticket.detail as SoftVcpuDetail
    this.index = ticket.index
    this.#detail = detail
    this.#memory = GuestMemory.attach(ticket.wasm)
    this.#view = this.#memory.view
    this.#words = new Int32Array(ticket.wasm.buffer)
    this.#base = vcpuStateBase(ticket.index)
    adoptWasmModule('cpu', detail.module)
    this.#host = {
      words: this.#words,
      temp: new DataView(ticket.wasm.buffer, this.#base + S.S_TEMP, 8),
      doorbells: openDoorbells(this.#view),
      clock: openClock(detail.origin, detail.cpus > 1),
      wallSeconds: detail.deterministic ? FIXED_WALL_SECONDS : undefined,
      io: undefined,
    }
    this.#wasm = instantiateOnMemory<CpuExports>('cpu', ticket.wasm, { host: importsOf(this.#host) })
    this.#wasm.setCpu(this.#base)
    const eager = detail.tier === 'compiler'
    this.#slice = eager ? EAGER_SLICE : SLICE
    this.#view.setUint32(this.#base + S.S_JIT_THRESHOLD, 0, true)
    // In deterministic mode both tiers stop at the same instructions, so that it does not matter what was compiled when.
    const automatic = { ...AUTOMATIC, everyEdge: detail.deterministic, background: !detail.deterministic }
    const chosen = settings ?? (eager ? EAGER : detail.tier === 'auto' && AUTO_COMPILES ? automatic : undefined)
    if (chosen) this.#jit = new JitTier(ticket.wasm, this.#base, this.#wasm, chosen, () => this.#preferHugePages())
  }

  /**
   * For a guest that has something to do: tables and RAM are touched all over, and with small pages the host's own translation misses cost more
   * than ours. One that has not would only have more memory cleared for it.
   */
  #preferHugePages(): void {
    const { bytes } = this.#memory
    preferHugePages(addressOf(bytes) + SOFT_CPU_BASE, bytes.length - SOFT_CPU_BASE)
  }

  #get(offset: number): number {
    return this.#view.getUint32(this.#base + offset, true)
  }

  run(io: IoHandler): VcpuExit {
    const { trace } = this.#detail
    const output = trace ? new TraceOutput() : undefined
    this.#host.io = output && trace === 'exits' ? tracedIo(io, this.index, output) : io
    if (trace === 'instructions') this.setStepping(true)
    try {
      return this.#slices(trace === 'instructions' ? output : undefined)
    } finally {
      output?.flush()
    }
  }

  #slices(output: TraceOutput | undefined): VcpuExit {
    for (;;) {
      const next = this.#oneSlice(output)
      if (typeof next !== 'number') return next
      if (next > 0) Atomics.wait(this.#words, attentionIndex(this.index), S.ATTN_HALT, next)
    }
  }

  turn(io: IoHandler): number | VcpuExit {
    this.#host.io = io
    return this.#oneSlice(undefined)
  }

  /** As `turn`. */
  #oneSlice(output: TraceOutput | undefined): number | VcpuExit {
    const wasm = this.#wasm
    wasm.pollTimers()
    if (output) this.#traced(output)
    else wasm.run(this.#slice)
    this.#jit?.poll()
    switch (this.#get(S.S_EXIT)) {
      case S.EXIT_BUDGET:
        return 0
      case S.EXIT_HALT:
        return this.#detail.bare ? { reason: 'halted' } : this.#idleTime()
      case S.EXIT_KICK:
        return { reason: 'kicked' }
      default:
        return this.#end()
    }
  }

  /** Why the CPU cannot go on. */
  #end(): Exclude<VcpuExit, { reason: 'kicked' }> {
    switch (this.#get(S.S_EXIT)) {
      case S.EXIT_STOPPED:
        return { reason: 'stopped' }
      case S.EXIT_SHUTDOWN:
        return { reason: 'shutdown', dump: this.dump() }
      default:
        return { reason: 'internal-error', message: 'the CPU gave up', dump: this.dump() }
    }
  }

  /** One instruction, with a line about it. */
  #traced(output: TraceOutput): void {
    const before = this.readRegisters()
    const privilege = this.#get(S.S_CPL)
    const code = this.readVirtual(this.readSystemRegisters().cs.base + before.rip, 15)
    this.#wasm.run(1)
    output.line(instructionLine(this.index, privilege, before, this.readRegisters(), code))
  }

  /** Milliseconds until a timer is due; Infinity when none is set. */
  #idleTime(): number {
    const due = this.#wasm.nextDeadline()
    const now = this.#wasm.currentTime()
    if (due <= now || (this.#detail.deterministic && this.skipIdle())) return 0
    return (due - now) / 1e6
  }

  /** Deterministic time goes on to the next timer; false when none is set. */
  skipIdle(): boolean {
    const due = this.#wasm.nextDeadline()
    if (due === Number.POSITIVE_INFINITY) return false
    const at = this.#base + S.S_IDLE_SKIPPED
    const skipped = Math.max(0, due - this.#wasm.currentTime())
    this.#view.setFloat64(at, this.#view.getFloat64(at, true) + skipped, true)
    return true
  }

  /** Runs about `count` instructions, whole blocks: EXIT_* of wasm/cpu/state.ts. A halted CPU is left so. */
  slice(io: IoHandler, count: number): number {
    this.#host.io = io
    this.#wasm.pollTimers()
    this.#wasm.run(count)
    this.#jit?.poll()
    return this.#get(S.S_EXIT)
  }

  step(io: IoHandler, count: number): StepExit {
    const before = this.#retired()
    this.setStepping(true)
    try {
      for (let done = 0; done < count; done++) {
        switch (this.slice(io, 1)) {
          case S.EXIT_BUDGET:
          case S.EXIT_KICK:
            break
          case S.EXIT_HALT:
            if (this.#detail.bare) return { reason: 'halted' }
            return { reason: 'stepped', retired: this.#retired() - before, waits: true }
          default:
            return this.#end()
        }
      }
    } finally {
      this.setStepping(false)
    }
    return { reason: 'stepped', retired: this.#retired() - before, waits: false }
  }

  #retired(): number {
    return Number(this.#view.getBigUint64(this.#base + S.S_RETIRED, true))
  }

  /** Makes blocks of one instruction. */
  setStepping(on: boolean): void {
    const at = this.#base + S.S_OPTIONS
    const options = this.#view.getUint32(at, true)
    this.#view.setUint32(at, on ? options | 2 : options & ~2, true)
    this.#wasm.updateMode()
  }

  readRegisters(): CpuRegisters {
    return {
      general: readGeneral(this.#view, this.#base),
      rip: this.#view.getBigUint64(this.#base + S.S_RIP, true),
      rflags: BigInt(this.#wasm.getRflags() >>> 0),
    }
  }

  writeRegisters(registers: CpuRegisters): void {
    writeGeneral(this.#view, this.#base, registers)
    this.#wasm.putRflags(Number(registers.rflags & 0xffff_ffffn) | 0)
    this.#wasm.updateMode()
  }

  readSystemRegisters(): SystemRegisters {
    return readSystem(this.#view, this.#base)
  }

  writeSystemRegisters(system: SystemRegisters): void {
    writeSystem(this.#view, this.#base, system)
    this.#wasm.flushTlbAll()
    this.#wasm.updateMode()
  }

  reset(): void {
    this.#wasm.resetVcpu()
  }

  save(): Uint8Array {
    // What it has decoded may be saved next, and then has to be true.
    this.#wasm.settleCode()
    return packVcpu(this.#memory, this.#base, this.#wasm.currentTime())
  }

  restore(state: Uint8Array): void {
    const now = this.#detail.deterministic ? undefined : this.#wasm.currentTime()
    unpackVcpu(this.#memory, this.#base, state, now)
    // A clone must not repeat the original's random numbers.
    if (!this.#detail.deterministic) seedRandom(this.#view, this.#base, false)
    this.forgetTranslations()
    this.#jit?.rest()
  }

  /** Memory was changed from outside: nothing that was decoded or translated holds any more. */
  forgetTranslations(): void {
    this.#wasm.resetBlocks()
    this.#jit?.forget()
    this.#wasm.flushTlbAll()
    this.#wasm.updateMode()
  }

  counters(): Record<string, number> {
    const count = (offset: number): number => Number(this.#view.getBigUint64(this.#base + offset, true))
    return {
      instructions: count(S.S_RETIRED),
      blocksDecoded: count(S.S_COUNT_BLOCKS_DECODED),
      tlbFills: count(S.S_COUNT_TLB_FILLS),
      tlbFlushes: count(S.S_COUNT_FLUSHES),
      exceptions: count(S.S_COUNT_EXCEPTIONS),
      interrupts: count(S.S_COUNT_INTERRUPTS),
      mmio: count(S.S_COUNT_MMIO),
      port: count(S.S_COUNT_PORT),
      codeWrites: count(S.S_COUNT_SMC),
      cacheResets: count(S.S_COUNT_CACHE_RESETS),
      halts: count(S.S_COUNT_HALTS),
      compiledEntries: count(S.S_JIT_ENTRIES),
      compiledInstructions: count(S.S_JIT_RETIRED),
      compiledMisses: count(S.S_COUNT_RESUMES),
      compiledRegions: this.#jit?.counters.regions ?? 0,
      compiledBytes: this.#jit?.counters.bytes ?? 0,
      lostCompilers: this.#jit?.counters.lostThreads ?? 0,
      compiledEvictions: this.#jit?.counters.evictions ?? 0,
    }
  }

  dump(): CpuDump {
    const registers = this.readRegisters()
    const system = this.readSystemRegisters()
    return { registers, system, code: this.readVirtual(system.cs.base + registers.rip, 16) }
  }

  /** Bytes at a linear address as the kernel would read them; stops at the first that cannot be read. */
  readVirtual(address: bigint, length: number): Uint8Array {
    const bytes: number[] = []
    const fault = this.#base + S.S_FAULT
    for (let at = 0; at < length; at++) {
      this.#view.setUint32(fault, 0, true)
      const value = this.#wasm.readSlow(BigInt.asIntN(64, address + BigInt(at)), 0)
      const failed = this.#view.getUint32(fault, true) !== 0
      this.#view.setUint32(fault, 0, true)
      if (failed) break
      bytes.push(Number(value & 0xffn))
    }
    return Uint8Array.from(bytes)
  }

  close(): void {
    this.#jit?.close()
    this.#host.io = undefined
  }
}
