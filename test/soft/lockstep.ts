/**
 * Both tiers of the software CPU in lockstep: two deterministic machines with the same guest, one interpreted and one
 * compiled, run slice by slice in this thread. In deterministic mode compiled code stops at exactly the instructions where the interpreter
 * does, so after every slice their registers, flags, FPU and counters must be equal; their memory is compared from time to time.
 */

import type { IoHandler } from '../../src/accel/contract.ts'
import type { EntryState } from '../../src/machine/boot/cpu-state.ts'
import { GuestMemory } from '../../src/memory/guest-memory.ts'
import { RAM_OFFSET } from '../../src/memory/layout.ts'
import type { TierSettings } from '../../src/soft/jit/tier.ts'
import { vcpuStateBase } from '../../src/soft/layout.ts'
import { openSoftVcpu, type SoftVcpu } from '../../src/soft/vcpu.ts'
import { SoftVm } from '../../src/soft/vm.ts'
import * as S from '../../wasm/cpu/state.ts'

export interface Side {
  readonly name: string
  readonly memory: GuestMemory
  readonly vm: SoftVm
  readonly vcpu: SoftVcpu
  io: IoHandler
}

export interface LockstepOptions {
  readonly mib: number
  readonly settings: TierSettings
  /** Puts the guest in memory and says how it starts. */
  readonly load: (memory: GuestMemory) => EntryState
  readonly open: (side: { name: string; memory: GuestMemory; vm: SoftVm }) => Promise<IoHandler>
}

export interface Difference {
  readonly what: string
  /** Instructions retired when both were equal last. */
  readonly since: number
  readonly at: string
}

const BASE = vcpuStateBase(0)
/** Ranges of the state that must be equal: registers; segments, control and model-specific registers, FPU, vectors. */
const RANGES = [
  [S.S_GPR, S.S_ZERO],
  [S.S_RIP, S.S_FLAG_KIND],
  [S.S_RFLAGS, S.S_RFLAGS + 4],
  [S.S_RETIRED, S.S_CPL + 4],
  [S.S_SEG, S.S_TEMP],
] as const

async function side(name: string, options: LockstepOptions, settings: TierSettings | undefined): Promise<Side> {
  const memory = GuestMemory.create(options.mib)
  const vm = new SoftVm({ memory, cpus: 1, soft: { deterministic: true, tier: 'interpreter' } })
  const entry = options.load(memory)
  const vcpu = openSoftVcpu(vm.vcpuTicket(0), settings)
  vcpu.reset()
  vcpu.writeSystemRegisters({ ...vcpu.readSystemRegisters(), ...entry.system })
  vcpu.writeRegisters(entry.registers)
  return { name, memory, vm, vcpu, io: await options.open({ name, memory, vm }) }
}

export class Lockstep {
  readonly sides: readonly [Side, Side]
  readonly #words: readonly [Int32Array, Int32Array]
  #since = 0

  private constructor(sides: readonly [Side, Side]) {
    this.sides = sides
    this.#words = [words(sides[0]), words(sides[1])]
  }

  static async create(options: LockstepOptions): Promise<Lockstep> {
    return new Lockstep([
      await side('interpreter', options, undefined),
      await side('compiler', options, { ...options.settings, everyEdge: true }),
    ])
  }

  get retired(): number {
    return Number(this.sides[0].memory.view.getBigUint64(BASE + S.S_RETIRED, true))
  }

  /** Runs both for a slice: the exit's number, or how they differ. */
  step(count: number): number | Difference {
    const [a, b] = this.sides
    this.#since = this.retired
    const exit = a.vcpu.step(a.io, count)
    const other = b.vcpu.step(b.io, count)
    // Code that overwrites its own page leaves compiled code in the middle of a block, where the interpreter would go on.
    for (let tries = 0; tries < 8 && this.#retiredOf(0) !== this.#retiredOf(1); tries++) {
      const behind = this.sides[this.#retiredOf(0) < this.#retiredOf(1) ? 0 : 1]
      behind.vcpu.step(behind.io, 1)
    }
    const what = this.#differs() ?? (exit === other ? undefined : `exit ${exit} and ${other}`)
    return what === undefined ? exit : this.#report(what)
  }

  #retiredOf(index: 0 | 1): number {
    return Number(this.sides[index].memory.view.getBigUint64(BASE + S.S_RETIRED, true))
  }

  #differs(): string | undefined {
    const [a, b] = this.#words
    for (const [start, end] of RANGES) {
      for (let index = start >> 2; index < end >> 2; index++)
        if (a[index] !== b[index]) return `state + 0x${(index * 4).toString(16)}`
    }
    for (let index = S.S_FLAG_KIND >> 2; index < S.S_FLAG_B >> 2; index++) {
      if (a[index] === b[index]) continue
      const [left, right] = this.sides
      if (left.vcpu.readRegisters().rflags !== right.vcpu.readRegisters().rflags) return 'flags'
      break
    }
    return undefined
  }

  /** Compares all of RAM. */
  compareMemory(): Difference | undefined {
    const [a, b] = this.sides.map(({ memory }) => Buffer.from(memory.wasm.buffer, RAM_OFFSET, memory.size)) as [
      Buffer,
      Buffer,
    ]
    if (a.equals(b)) return undefined
    for (let page = 0; page < a.length; page += 4096) {
      if (a.subarray(page, page + 4096).equals(b.subarray(page, page + 4096))) continue
      for (let at = page; at < page + 4096; at++)
        if (a[at] !== b[at]) return this.#report(`memory at 0x${at.toString(16)}: ${a[at]} and ${b[at]}`)
    }
    return undefined
  }

  #report(what: string): Difference {
    const lines = this.sides.map(({ name, vcpu }) => {
      const { general, rip, rflags } = vcpu.readRegisters()
      const hex = (value: bigint): string => value.toString(16)
      return `${name}: rip ${hex(rip)} flags ${hex(rflags)} gpr ${general.map(hex).join(' ')}`
    })
    return { what, since: this.#since, at: lines.join('\n') }
  }

  close(): void {
    for (const { vcpu, vm } of this.sides) {
      vcpu.close()
      vm.close()
    }
  }
}

const words = ({ memory }: Side): Int32Array => new Int32Array(memory.wasm.buffer, BASE, S.VCPU_STATE_SIZE >> 2)
