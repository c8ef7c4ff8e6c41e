/**
 * Hostile code: random bytes, rich in privileged and far instructions, in real, protected and long mode at CPL 0 and 3, with damaged page
 * tables and descriptor tables. Whatever it does ends in a fault, a triple fault or a running guest, and leaves our own memory alone.
 */
import { parseArgs } from 'node:util'
import type { GuestMemory } from '../../src/memory/guest-memory.ts'
import { DEVICES_BASE, DEVICES_END } from '../../src/memory/layout.ts'
import type { SoftVcpu } from '../../src/soft/vcpu.ts'
import { EXIT_BUDGET, EXIT_HALT } from '../../wasm/cpu/state.ts'
import { allowUser, microMachine } from './micro-machine.ts'

type Random = () => number

/** Where the program is. */
const CODE = 0x10_0000n
const UNTOUCHED = new Uint8Array(DEVICES_END - DEVICES_BASE)

/** xorshift32, so that a seed is a case. */
function random(seed: number): Random {
  let x = Math.imul(seed, 2654435761) >>> 0 || 1
  return () => {
    x ^= x << 13
    x ^= x >>> 17
    x ^= x << 5
    return x >>> 0
  }
}

/** Beginnings of instructions that change how the CPU works: control registers, MSRs, tables, far transfers, strings, prefixes. */
const BEGINNINGS: readonly (readonly number[])[] = [
  ...[[0x0f, 0x22], [0x0f, 0x20], [0x0f, 0x23], [0x0f, 0x30], [0x0f, 0x01], [0x0f, 0x00], [0x8e], [0x0f, 0xb2]],
  ...[[0xcf], [0x48, 0xcf], [0xcb], [0xea], [0x9a], [0xff], [0xcd], [0x9d], [0x0f, 0x05], [0x0f, 0x07], [0xf4], [0xfb]],
  ...[[0xf3, 0xa4], [0xf3, 0x48, 0xa5], [0xf3, 0xaa], [0xc8], [0x62], [0x0f, 0xae], [0x0f, 0xc7], [0xd9], [0xdf]],
  ...[[0xf0], [0x66], [0x67], [0x48], [0x0f, 0x38], [0x0f, 0x3a]],
]

function hostileCode(next: Random): Uint8Array {
  const program = new Uint8Array(4096)
  for (let at = 0; at < program.length; ) {
    if (next() % 3 === 0) for (const byte of BEGINNINGS[next() % BEGINNINGS.length]!) program[at++] = byte
    else program[at++] = next()
  }
  return program
}

const word = (next: Random): bigint => (BigInt(next()) << 32n) | BigInt(next())

function damageTables(memory: GuestMemory, next: Random): void {
  // Page tables lie at 0x9000 to 0xbfff.
  if (next() % 3 === 0) {
    for (let n = 0; n < 20; n++) {
      memory.writeU64(0x9000 + (next() % 0x600) * 8, (word(next) & (next() & 1 ? 0xff_ffff_ffffn : 0x3f_ffffn)) | 3n)
    }
  }
  // Descriptor tables are somewhere below 32 KiB.
  for (let n = 0; n < 60; n++) memory.writeU64((next() % 0x8000) & ~7, word(next))
}

function hostileState(vcpu: SoftVcpu, memory: GuestMemory, next: Random): void {
  const level = next() & 1 ? 3 : 0
  const mode = next() % 4
  const registers = vcpu.readRegisters()
  const value = (): bigint => (next() & 1 ? BigInt(next() % 0x40_0000) : BigInt.asUintN(64, word(next)))
  const rip = mode === 2 ? 0n : CODE
  vcpu.writeRegisters({ general: registers.general.map(value), rip, rflags: BigInt((next() & 0x3f_7fd5) | 2) })
  const system = vcpu.readSystemRegisters()
  const cs = { ...system.cs, selector: 0x30 | level, attributes: (mode === 1 ? 0xc09b : 0xa09b) | (level << 5) }
  const ss = { ...system.ss, selector: 0x28 | level, attributes: 0xc093 | (level << 5) }
  const idt = { base: BigInt(next() % 0x8000), limit: 0xfff }
  if (level === 3) allowUser(memory)
  if (mode === 1) vcpu.writeSystemRegisters({ ...system, cr0: 0x11n, efer: 0n, cs, ss, idt })
  else if (mode === 2) {
    const code = { selector: 0x1000, base: 0x10_0000n, limit: 0xffff, attributes: 0x9b }
    const stack = { selector: 0, base: 0n, limit: 0xffff, attributes: 0x93 }
    vcpu.writeSystemRegisters({ ...system, cr0: 0x10n, cr4: 0n, efer: 0n, cs: code, ss: stack })
  } else vcpu.writeSystemRegisters({ ...system, cs, ss, idt })
}

export interface HostileRun {
  /** Nothing outside of RAM was written. */
  readonly contained: boolean
  readonly instructions: number
  /** Times that compiled code was entered. */
  readonly compiled: number
}

/**
 * Runs one case: on the compiler when the seed is odd, so that compiled nonsense is tried too. Where code ends in a triple fault it is
 * entered again, in one of 16 places, so that it comes to be compiled.
 */
export function hostileCase(seed: number, instructions = 18_000): HostileRun {
  const next = random(seed)
  const { vcpu, vm, io, memory } = microMachine(hostileCode(next), { tier: seed & 1 ? 'compiler' : 'interpreter' })
  damageTables(memory, next)
  const slice = 1500
  hostileState(vcpu, memory, next)
  for (let done = 0; done < instructions; done += slice) {
    const exit = vcpu.slice(io, slice)
    if (exit === EXIT_BUDGET || exit === EXIT_HALT) continue
    hostileState(vcpu, memory, next)
    const registers = vcpu.readRegisters()
    vcpu.writeRegisters({ ...registers, rip: registers.rip + BigInt((next() & 15) << 8) })
  }
  const counters = vcpu.counters()
  vcpu.close()
  vm.close()
  // The devices' part lies next to ours and was never used here.
  const contained = Buffer.compare(memory.bytes.subarray(DEVICES_BASE, DEVICES_END), UNTOUCHED) === 0
  return { contained, instructions: counters.instructions!, compiled: counters.compiledEntries! }
}

export async function fuzz(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({
    args: [...args],
    options: { seed: { type: 'string', default: '1' }, seconds: { type: 'string', default: '60' } },
  })
  const until = Date.now() + Number(values.seconds) * 1000
  let seed = Number(values.seed)
  const first = seed
  let [instructions, compiled] = [0, 0]
  for (; Date.now() < until; seed++) {
    const run = hostileCase(seed)
    instructions += run.instructions
    compiled += run.compiled
    if (run.contained) continue
    console.error(`seed ${seed}: memory outside of RAM was written`)
    return false
  }
  console.log(
    `${seed - first} cases from seed ${first}, ${instructions} instructions, compiled code entered ${compiled} times: nothing crashed, nothing was written outside of RAM`,
  )
  return true
}
