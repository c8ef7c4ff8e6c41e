/** What a vCPU and the chips are when they are saved: their bytes, without addresses of this process, with times made relative. */
import * as S from '../../wasm/cpu/state.ts'
import type { GuestMemory } from '../memory/guest-memory.ts'
import { SoftError } from './errors.ts'
import { CHIPS_BASE } from './layout.ts'

const MAGIC = 0x56435331 // "VCS1"
const HEADER = 8
/** The registers, and the part with pending events and timers; between them lie addresses of this machine. */
const PARTS: readonly (readonly [start: number, end: number])[] = [
  [0, S.S_TEMP],
  [S.S_SHADOW, S.S_TSC_KHZ],
  [S.S_TF_ARMED, S.S_BUS_LOCK],
  [S.S_SPEC_CTRL, S.S_SIPI_PENDING + 4],
  [S.S_APIC, S.S_APIC + 0x100],
]
/** f64 times, in nanoseconds of the machine's clock: stored as distances from now. */
const TIMES = [S.S_TIMER_DUE, S.S_TIMER_START]
/** Words of this process that must survive a restore. */
const KEPT = [S.S_TLB, S.S_BUDGET, S.S_BLOCK]

const SIZE = PARTS.reduce((total, [start, end]) => total + end - start, HEADER)

export function packVcpu(memory: GuestMemory, base: number, now: number): Uint8Array {
  const out = new Uint8Array(SIZE + 8)
  const view = new DataView(out.buffer)
  view.setUint32(0, MAGIC, true)
  view.setUint32(4, SIZE, true)
  let at = HEADER
  for (const [start, end] of PARTS) {
    out.set(memory.bytes.subarray(base + start, base + end), at)
    for (const time of TIMES) {
      if (time >= start && time < end) {
        const place = at + time - start
        view.setFloat64(place, view.getFloat64(place, true) - now, true)
      }
    }
    at += end - start
  }
  view.setFloat64(at, now, true)
  return out
}

/** `clock`, what it says now, is undefined for a clock that is part of the state, as retired instructions are: it goes on from where it was by itself. */
export function unpackVcpu(memory: GuestMemory, base: number, state: Uint8Array, clock: number | undefined): void {
  const view = new DataView(state.buffer, state.byteOffset, state.byteLength)
  if (state.length !== SIZE + 8 || view.getUint32(0, true) !== MAGIC || view.getUint32(4, true) !== SIZE) {
    throw new SoftError('BAD_STATE', `${state.length} bytes are not a saved vCPU of this version (${SIZE + 8} bytes)`)
  }
  const savedNow = view.getFloat64(SIZE, true)
  const now = clock ?? savedNow
  const kept = KEPT.map(offset => memory.view.getUint32(base + offset, true))
  let at = HEADER
  for (const [start, end] of PARTS) {
    memory.bytes.set(state.subarray(at, at + end - start), base + start)
    for (const time of TIMES) {
      if (time >= start && time < end) {
        memory.view.setFloat64(base + time, view.getFloat64(at + time - start, true) + now, true)
      }
    }
    at += end - start
  }
  // The time-stamp counter goes on from where it was: the clock has moved by now - saved.
  const offset = memory.view.getBigInt64(base + S.S_TSC_OFFSET, true)
  const moved = BigInt(Math.round(savedNow - now))
  memory.view.setBigInt64(base + S.S_TSC_OFFSET, offset + moved, true)
  KEPT.forEach((offset, index) => {
    memory.view.setUint32(base + offset, kept[index]!, true)
  })
  memory.view.setUint32(base + S.S_FAULT, 0, true)
  // Look at everything once when it runs again.
  const attention = memory.view.getUint32(base + S.S_ATTENTION, true)
  memory.view.setUint32(base + S.S_ATTENTION, (attention & ~S.ATTN_KICK) | S.ATTN_INTERRUPT, true)
}

const CHIPS_MAGIC = 0x56434831 // "VCH1"
/** f64 times among the chips: the PIT's next interrupt and its channels' starts. */
const CHIP_TIMES = [S.C_PIT_DUE, S.C_PIT, S.C_PIT + 32, S.C_PIT + 64]

export function packChips(memory: GuestMemory, now: number): Uint8Array {
  const out = new Uint8Array(HEADER + S.CHIPS_SIZE)
  const view = new DataView(out.buffer)
  view.setUint32(0, CHIPS_MAGIC, true)
  out.set(memory.bytes.subarray(CHIPS_BASE, CHIPS_BASE + S.CHIPS_SIZE), HEADER)
  for (const time of CHIP_TIMES) view.setFloat64(HEADER + time, view.getFloat64(HEADER + time, true) - now, true)
  return out
}

export function unpackChips(memory: GuestMemory, state: Uint8Array, now: number): void {
  const view = new DataView(state.buffer, state.byteOffset, state.byteLength)
  if (state.length !== HEADER + S.CHIPS_SIZE || view.getUint32(0, true) !== CHIPS_MAGIC) {
    throw new SoftError('BAD_STATE', `${state.length} bytes are not the saved interrupt controllers of this version`)
  }
  memory.bytes.set(state.subarray(HEADER), CHIPS_BASE)
  for (const time of CHIP_TIMES) {
    memory.view.setFloat64(CHIPS_BASE + time, view.getFloat64(HEADER + time, true) + now, true)
  }
}
