/**
 * Tier 'lockstep': the guest runs twice, interpreted on the machine's own memory and compiled on a copy of it, slice by slice on one thread.
 * Time comes from retired instructions, and compiled code stops at exactly the instructions where the interpreter does, so after every
 * slice registers, flags, FPU and counters must be equal, and from time to time all of RAM. What comes from outside, interrupt lines and
 * kicks, waits in an inbox (layout.ts) until a slice has ended, and then reaches both.
 */
import * as S from '../../wasm/cpu/state.ts'
import {
  type CpuRegisters,
  GENERAL_REGISTERS,
  type IoHandler,
  type StepExit,
  type SystemRegisters,
  type Vcpu,
  type VcpuExit,
  type VcpuTicket,
} from '../accel/contract.ts'
import { GuestMemory } from '../memory/guest-memory.ts'
import { RAM_OFFSET, SOFT_CPU_BASE } from '../memory/layout.ts'
import { SoftError } from './errors.ts'
import type { TierSettings } from './jit/tier.ts'
import { attentionIndex, CHIPS_BASE, INBOX_KICK, INBOX_LINES, vcpuStateBase } from './layout.ts'
import { AccessLog } from './lockstep-io.ts'
import { SoftVcpu, type SoftVcpuDetail } from './vcpu.ts'

const BASE = vcpuStateBase(0)
const LINES = (CHIPS_BASE + S.C_LINES) >> 2
/** Long enough for compiled code to go through several blocks, short enough to read what ran. */
const SLICE = 500
/** Instructions between two comparisons of RAM. */
const MEMORY_EVERY = 20_000_000
const PIECE = 1 << 16
const ZEROS = Buffer.alloc(PIECE)
const SETTINGS: TierSettings = { threshold: 50, batch: 16, patience: 50, everyEdge: true, background: false }

/** Ranges of the state that must be equal, and what they are. Flags are lazy: they are compared by their meaning. */
const RANGES: readonly (readonly [what: string, start: number, end: number])[] = [
  ['a general register', S.S_GPR, S.S_ZERO],
  ['rip', S.S_RIP, S.S_FLAG_KIND],
  ['rflags', S.S_RFLAGS, S.S_RFLAGS + 4],
  ['the instructions retired', S.S_RETIRED, S.S_RETIRED + 8],
  ['the mode', S.S_MODE, S.S_CPL + 4],
  ['a segment', S.S_SEG, S.S_GDT_BASE],
  ['a descriptor table', S.S_GDT_BASE, S.S_CR0],
  ['a control or model-specific register', S.S_CR0, S.S_FPR],
  ['the FPU', S.S_FPR, S.S_XMM],
  ['a vector register', S.S_XMM, S.S_TEMP],
]

class Side {
  readonly name: string
  readonly memory: GuestMemory
  readonly vcpu: SoftVcpu
  readonly words: Int32Array
  readonly ram: Buffer

  constructor(name: string, ticket: VcpuTicket, settings: TierSettings | undefined) {
    this.name = name
    this.memory = GuestMemory.attach(ticket.wasm)
    this.vcpu = new SoftVcpu(ticket, settings)
    this.words = new Int32Array(ticket.wasm.buffer)
    this.ram = Buffer.from(ticket.wasm.buffer, RAM_OFFSET, this.memory.size)
  }

  get retired(): number {
    return Number(this.memory.view.getBigUint64(BASE + S.S_RETIRED, true))
  }

  /** What came from outside. */
  raise(lines: number): void {
    Atomics.or(this.words, LINES, lines)
    Atomics.or(this.words, attentionIndex(0), S.ATTN_INTERRUPT)
  }

  describe(): string {
    const { general, rip, rflags } = this.vcpu.readRegisters()
    const { cs, cr2, cr3 } = this.vcpu.readSystemRegisters()
    const names = [...GENERAL_REGISTERS, 'rip', 'rflags', 'cr2', 'cr3']
    const values = [...general, rip, rflags, cr2, cr3]
    const hex = values.map((value, index) => `${names[index]!.padStart(6)} ${value.toString(16).padStart(16, '0')}`)
    const lines = [`${this.name}, ${this.retired} instructions:`]
    for (let at = 0; at < hex.length; at += 4) lines.push(` ${hex.slice(at, at + 4).join(' ')}`)
    const code = Buffer.from(this.vcpu.readVirtual(cs.base + rip, 16)).toString('hex')
    return [...lines, `   code ${code || '(cannot be read)'}`].join('\n')
  }
}

export class LockstepVcpu implements Vcpu {
  readonly index = 0
  readonly #ticket: VcpuTicket
  readonly #settings: TierSettings
  readonly #slice: number
  readonly #leader: Side
  readonly #log = new AccessLog()
  #follower: Side | undefined
  /** Of compiled code, also when its side has been made anew. */
  #compiled: Record<string, number> = {}
  #compareAt = 0

  constructor(ticket: VcpuTicket, settings: TierSettings = SETTINGS, slice = SLICE) {
    this.#ticket = ticket
    this.#settings = { ...settings, everyEdge: true }
    this.#slice = slice
    this.#leader = new Side('interpreted', ticket, undefined)
  }

  /** The compiled side, once it has run. */
  get compiled(): SoftVcpu | undefined {
    return this.#follower?.vcpu
  }

  /** The guest again, on a copy of all that the first has: memory may have been written while it stood still. */
  #copy(): Side {
    const wasm = new WebAssembly.Memory({
      initial: this.#ticket.wasm.buffer.byteLength / PIECE,
      maximum: this.#ticket.wasm.buffer.byteLength / PIECE,
      shared: true,
    })
    const from = Buffer.from(this.#ticket.wasm.buffer)
    const to = Buffer.from(wasm.buffer)
    // Pages that nobody has written stay unwritten in the copy.
    for (let at = SOFT_CPU_BASE; at < from.length; at += PIECE) {
      const piece = from.subarray(at, at + PIECE)
      if (!piece.equals(ZEROS)) to.set(piece, at)
    }
    const side = new Side('compiled', { ...this.#ticket, wasm }, this.#settings)
    this.#leader.vcpu.forgetTranslations()
    side.vcpu.forgetTranslations()
    return side
  }

  run(io: IoHandler): VcpuExit {
    const leader = this.#leader
    const follower = this.#copy()
    this.#follower = follower
    this.#log.clear()
    this.#compareAt = leader.retired + MEMORY_EVERY
    const [first, second] = [this.#log.leader(io), this.#log.follower()]
    for (;;) {
      if (Atomics.exchange(leader.words, INBOX_KICK, 0) !== 0) return this.#ended({ reason: 'kicked' })
      const lines = Atomics.exchange(leader.words, INBOX_LINES, 0)
      if (lines !== 0) for (const side of [leader, follower]) side.raise(lines)
      const since = leader.retired
      const exit = leader.vcpu.slice(first, this.#slice)
      const other = follower.vcpu.slice(second, this.#slice)
      this.#catchUp(first, second)
      const what = this.#difference() ?? (exit === other ? undefined : `why they stopped: ${exit} and ${other}`)
      if (what !== undefined) return this.#report(what, since)
      const end = this.#meaning(exit)
      if (end !== undefined) return this.#ended(end)
    }
  }

  /** Code that overwrites its own page leaves compiled code in the middle of a block, where the interpreter would go on. */
  #catchUp(first: IoHandler, second: IoHandler): void {
    const [leader, follower] = [this.#leader, this.#follower!]
    for (let tries = 0; tries < 8 && leader.retired !== follower.retired; tries++) {
      if (leader.retired < follower.retired) leader.vcpu.slice(first, 1)
      else follower.vcpu.slice(second, 1)
    }
  }

  /** Undefined: it goes on. */
  #meaning(exit: number): VcpuExit | undefined {
    switch (exit) {
      case S.EXIT_BUDGET:
        return undefined
      case S.EXIT_HALT:
        if ((this.#ticket.detail as SoftVcpuDetail).bare) return { reason: 'halted' }
        this.#idle()
        return undefined
      case S.EXIT_STOPPED:
        return { reason: 'stopped' }
      case S.EXIT_SHUTDOWN:
        return { reason: 'shutdown', dump: this.#leader.vcpu.dump() }
      default:
        return { reason: 'internal-error', message: 'the CPU gave up', dump: this.#leader.vcpu.dump() }
    }
  }

  /** To the next timer; without one, until something comes from outside. */
  #idle(): void {
    const skipped = this.#leader.vcpu.skipIdle()
    this.#follower!.vcpu.skipIdle()
    if (skipped) return
    const { words } = this.#leader
    // A kick sets both, so that one word is enough to wait for.
    if (Atomics.load(words, INBOX_KICK) === 0) Atomics.wait(words, INBOX_LINES, 0)
  }

  #ended(exit: VcpuExit): VcpuExit {
    const memory = this.#memoryDifference()
    this.#compiled = this.#follower!.vcpu.counters()
    return memory === undefined ? exit : this.#report(memory, this.#leader.retired)
  }

  #difference(): string | undefined {
    const [leader, follower] = [this.#leader, this.#follower!]
    if (this.#log.difference !== undefined) return this.#log.difference
    const start = BASE >> 2
    for (const [what, from, to] of RANGES) {
      for (let word = from >> 2; word < to >> 2; word++) {
        if (leader.words[start + word] !== follower.words[start + word])
          return `${what} (state + 0x${(word * 4).toString(16)})`
      }
    }
    for (let word = S.S_FLAG_KIND >> 2; word < S.S_FLAG_B >> 2; word++) {
      if (leader.words[start + word] === follower.words[start + word]) continue
      if (leader.vcpu.readRegisters().rflags !== follower.vcpu.readRegisters().rflags) return 'rflags'
      break
    }
    if (leader.retired < this.#compareAt) return undefined
    this.#compareAt = leader.retired + MEMORY_EVERY
    return this.#memoryDifference()
  }

  #memoryDifference(): string | undefined {
    const [a, b] = [this.#leader.ram, this.#follower!.ram]
    for (let at = 0; at < a.length; at += PIECE) {
      const [left, right] = [a.subarray(at, at + PIECE), b.subarray(at, at + PIECE)]
      if (left.equals(right)) continue
      const place = left.findIndex((byte, index) => byte !== right[index])
      return `memory at RAM + 0x${(at + place).toString(16)}: ${left[place]} and ${right[place]}`
    }
    return undefined
  }

  #report(what: string, since: number): VcpuExit {
    const states = [this.#leader, this.#follower!].map(side => side.describe()).join('\n')
    const message = `the tiers differ in ${what}; they were equal after ${since} instructions\n${states}`
    return { reason: 'internal-error', message, dump: this.#leader.vcpu.dump() }
  }

  /** Steps are the interpreter's: both run again when the machine goes on. */
  step(io: IoHandler, count: number): StepExit {
    return this.#leader.vcpu.step(io, count)
  }

  readRegisters(): CpuRegisters {
    return this.#leader.vcpu.readRegisters()
  }

  writeRegisters(registers: CpuRegisters): void {
    this.#leader.vcpu.writeRegisters(registers)
  }

  readSystemRegisters(): SystemRegisters {
    return this.#leader.vcpu.readSystemRegisters()
  }

  writeSystemRegisters(system: SystemRegisters): void {
    this.#leader.vcpu.writeSystemRegisters(system)
  }

  forgetTranslations(): void {
    this.#leader.vcpu.forgetTranslations()
  }

  reset(): void {
    this.#leader.vcpu.reset()
  }

  save(): Uint8Array {
    return this.#leader.vcpu.save()
  }

  restore(state: Uint8Array): void {
    this.#leader.vcpu.restore(state)
  }

  /** The interpreter's, and what the other side compiled. */
  counters(): Record<string, number> {
    const known = Object.entries(this.#compiled).filter(([name]) => name.startsWith('compiled'))
    return { ...this.#leader.vcpu.counters(), ...Object.fromEntries(known) }
  }

  close(): void {
    this.#leader.vcpu.close()
    this.#follower?.vcpu.close()
    this.#follower = undefined
  }
}

/** The vCPU that a ticket of the software CPU stands for. */
export function openSoftVcpu(ticket: VcpuTicket): Vcpu {
  if (ticket.accelerator !== 'soft') {
    throw new SoftError('BAD_TICKET', `a ticket of the accelerator '${ticket.accelerator}' came to the software CPU`)
  }
  return (ticket.detail as SoftVcpuDetail).tier === 'lockstep' ? new LockstepVcpu(ticket) : new SoftVcpu(ticket)
}
