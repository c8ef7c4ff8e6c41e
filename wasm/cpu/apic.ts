/** The local APIC: xAPIC registers, x2APIC MSRs, timer, inter-processor interrupts (SDM vol. 3 chapter 10). */
import { ioapicEoi } from './ioapic'
import { cpu } from './cpu'
import { raiseGp } from './fault'
import { hostWake } from './host'
import { picPending } from './pic'
import {
  ATTN_INTERRUPT,
  S_APIC,
  S_APIC_BASE,
  S_ATTENTION,
  S_CPUS,
  S_INDEX,
  S_INIT_PENDING,
  S_NMI_PENDING,
  S_SIPI_PENDING,
  S_SIPI_VECTOR,
  S_TIMER_DUE,
  S_TIMER_PERIOD,
  S_TIMER_START,
  S_TSC_DEADLINE,
  S_TSC_OFFSET,
  VCPU_STATE_SIZE,
} from './state'
import { nowNs } from './time'

const ID: u32 = 0x20
const TPR: u32 = 0x80
const EOI: u32 = 0xb0
const LDR: u32 = 0xd0
const DFR: u32 = 0xe0
const SVR: u32 = 0xf0
const ISR: u32 = 0x100
const TMR: u32 = 0x180
const IRR: u32 = 0x200
const ESR: u32 = 0x280
const ICR_LOW: u32 = 0x300
const ICR_HIGH: u32 = 0x310
const LVT_TIMER: u32 = 0x320
const LVT_LINT0: u32 = 0x350
const LVT_LINT1: u32 = 0x360
const LVT_ERROR: u32 = 0x370
const INITIAL_COUNT: u32 = 0x380
const CURRENT_COUNT: u32 = 0x390
const DIVIDE: u32 = 0x3e0

const MASKED: u32 = 0x1_0000
/** The timer counts at 100 MHz (CPUID 0x15): nanoseconds a tick. */
const TICK_NS: f64 = 10

@inline
export function vcpuState(index: u32): usize {
  return cpu - <usize>load<u32>(cpu, S_INDEX) * VCPU_STATE_SIZE + <usize>index * VCPU_STATE_SIZE
}

@inline
function reg(state: usize, offset: u32): usize {
  return state + S_APIC + (offset >> 2)
}
@inline
function get(offset: u32): u32 {
  return load<u32>(reg(cpu, offset))
}
@inline
function put(offset: u32, value: u32): void {
  store<u32>(reg(cpu, offset), value)
}

export function isX2apic(): bool {
  return (load<u64>(cpu, S_APIC_BASE) & 0xc00) == 0xc00
}

/** Power-on and INIT state. */
export function resetApic(): void {
  memory.fill(cpu + S_APIC, 0, 0x100)
  put(ID, load<u32>(cpu, S_INDEX) << 24)
  put(DFR, 0xffff_ffff)
  put(SVR, 0xff)
  put(LVT_TIMER, MASKED)
  put(0x2f0, MASKED)
  put(0x330, MASKED)
  put(0x340, MASKED)
  put(LVT_LINT0, MASKED)
  put(LVT_LINT1, MASKED)
  put(LVT_ERROR, MASKED)
  store<f64>(cpu, Infinity, S_TIMER_DUE)
  store<u64>(cpu, 0, S_TSC_DEADLINE)
}

/** What firmware leaves for the boot processor: LINT0 takes the PIC's interrupts, LINT1 is NMI. */
export function wireApic(): void {
  put(LVT_LINT0, 0x700)
  put(LVT_LINT1, 0x400)
}

/** Highest vector set in one of the 256-bit registers, or -1. */
function highest(offset: u32): i32 {
  for (let i: i32 = 7; i >= 0; i--) {
    const bits = atomic.load<u32>(reg(cpu, offset + (<u32>i << 4)))
    if (bits) return (i << 5) + (31 - clz<i32>(bits))
  }
  return -1
}

/** Sets a vector pending in the APIC of vCPU `index` and wakes it. */
export function postVector(index: u32, vector: u32, level: bool): void {
  const state = vcpuState(index)
  const word = (vector >> 5) << 4
  const bit: u32 = 1 << (vector & 31)
  if (level) atomic.or<u32>(reg(state, TMR + word), bit)
  else atomic.and<u32>(reg(state, TMR + word), ~bit)
  atomic.or<u32>(reg(state, IRR + word), bit)
  signal(index)
}

/** Makes a vCPU look at its interrupts, waking it if it sleeps. */
export function signal(index: u32): void {
  const state = vcpuState(index)
  atomic.or<u32>(state + S_ATTENTION, ATTN_INTERRUPT)
  if (index != load<u32>(cpu, S_INDEX)) hostWake(index)
}

function enabled(): bool {
  return (get(SVR) & 0x100) != 0 && (load<u64>(cpu, S_APIC_BASE) & 0x800) != 0
}

function priority(): u32 {
  const serving = highest(ISR)
  const class_: u32 = serving < 0 ? 0 : <u32>serving & 0xf0
  const task = get(TPR)
  return (task & 0xf0) >= class_ ? task & 0xff : class_
}

/** The vector to deliver now, or -1. */
export function pendingVector(): i32 {
  if (!enabled()) return -1
  const vector = highest(IRR)
  if (vector < 0 || (<u32>vector & 0xf0) <= (priority() & 0xf0)) return -1
  return vector
}

/** The CPU takes `vector`: requested becomes in service. */
export function acceptVector(vector: u32): void {
  const word = (vector >> 5) << 4
  const bit: u32 = 1 << (vector & 31)
  atomic.and<u32>(reg(cpu, IRR + word), ~bit)
  atomic.or<u32>(reg(cpu, ISR + word), bit)
}

/** Whether the PIC's output reaches this vCPU: through LINT0 as ExtINT, or past a disabled APIC. */
export function takesExtInt(): bool {
  if (load<u32>(cpu, S_INDEX) != 0) return false
  if (!(load<u64>(cpu, S_APIC_BASE) & 0x800)) return true
  const lint = get(LVT_LINT0)
  return (lint & (MASKED | 0x700)) == 0x700
}

/** Called when interrupts may have become deliverable: looks at them at the next block head, if there are any. */
export function noteDeliverable(): void {
  if (pendingVector() >= 0 || (takesExtInt() && picPending())) atomic.or<u32>(cpu + S_ATTENTION, ATTN_INTERRUPT)
}

function endOfInterrupt(): void {
  const vector = highest(ISR)
  if (vector < 0) return
  const word = (<u32>vector >> 5) << 4
  const bit: u32 = 1 << (<u32>vector & 31)
  atomic.and<u32>(reg(cpu, ISR + word), ~bit)
  if (atomic.load<u32>(reg(cpu, TMR + word)) & bit) ioapicEoi(<u32>vector)
  noteDeliverable()
}

// ---- timer ----------------------------------------------------------------------------------------------------------
function timerMode(): u32 {
  return (get(LVT_TIMER) >> 17) & 3
}

function divisor(): f64 {
  const bits = (get(DIVIDE) & 3) | ((get(DIVIDE) >> 1) & 4)
  return bits == 7 ? 1 : <f64>(2 << bits)
}

function startTimer(count: u32): void {
  put(INITIAL_COUNT, count)
  if (timerMode() == 2) return
  if (count == 0) {
    store<f64>(cpu, Infinity, S_TIMER_DUE)
    return
  }
  const now = nowNs()
  const period = <f64>count * divisor() * TICK_NS
  store<f64>(cpu, now, S_TIMER_START)
  store<f64>(cpu, period, S_TIMER_PERIOD)
  store<f64>(cpu, now + period, S_TIMER_DUE)
}

function currentCount(): u32 {
  const due = load<f64>(cpu, S_TIMER_DUE)
  if (timerMode() == 2 || due == Infinity) return 0
  const left = (due - nowNs()) / (divisor() * TICK_NS)
  return left > 0 ? <u32>left : 0
}

export function setTscDeadline(value: u64): void {
  if (timerMode() != 2) return
  store<u64>(cpu, value, S_TSC_DEADLINE)
  if (!value) {
    store<f64>(cpu, Infinity, S_TIMER_DUE)
    return
  }
  // Unsigned: a deadline beyond 2^63 is far away, not past.
  const now = nowNs()
  const tsc = <u64>(<i64>now + load<i64>(cpu, S_TSC_OFFSET))
  store<f64>(cpu, value > tsc ? now + <f64>(value - tsc) : now, S_TIMER_DUE)
}

export function tscDeadline(): u64 {
  return timerMode() == 2 ? load<u64>(cpu, S_TSC_DEADLINE) : 0
}

/** Fires the timer if it is due. */
export function pollTimer(now: f64): void {
  const due = load<f64>(cpu, S_TIMER_DUE)
  if (now < due) return
  const lvt = get(LVT_TIMER)
  if (timerMode() == 1) {
    const period = max<f64>(load<f64>(cpu, S_TIMER_PERIOD), 1000)
    let next = due + period
    // Ticks that nobody could take are lost, as on hardware with interrupts off.
    if (next <= now) next = now + period
    store<f64>(cpu, next, S_TIMER_DUE)
  } else {
    store<f64>(cpu, Infinity, S_TIMER_DUE)
    store<u64>(cpu, 0, S_TSC_DEADLINE)
  }
  if (!(lvt & MASKED) && enabled()) postVector(load<u32>(cpu, S_INDEX), lvt & 0xff, false)
}

// ---- inter-processor interrupts --------------------------------------------------------------------------------------
/** Whether vCPU `index` is addressed by `destination` in this APIC's mode. */
export function isAddressed(index: u32, destination: u32, logical: bool): bool {
  const state = vcpuState(index)
  const x2 = (load<u64>(state, S_APIC_BASE) & 0xc00) == 0xc00
  if (x2) {
    if (destination == 0xffff_ffff) return true
    if (!logical) return destination == index
    return destination >> 16 == index >> 4 && (destination & (1 << (index & 15))) != 0
  }
  const short = destination & 0xff
  if (!logical) return short == 0xff || short == load<u32>(reg(state, ID)) >> 24
  const ldr = load<u32>(reg(state, LDR)) >> 24
  if (load<u32>(reg(state, DFR)) >> 28 == 15) return (ldr & short) != 0
  return ldr >> 4 == short >> 4 && (ldr & short & 15) != 0
}

/** Delivers an interrupt message: from the ICR, or the IOAPIC. */
export function deliverMessage(index: u32, mode: u32, vector: u32, level: bool): void {
  const state = vcpuState(index)
  switch (mode) {
    case 0:
    case 1:
      if (vector >= 16) postVector(index, vector, level)
      return
    case 4:
      atomic.store<u32>(state + S_NMI_PENDING, 1)
      signal(index)
      return
    case 5:
      atomic.store<u32>(state + S_INIT_PENDING, 1)
      signal(index)
      return
    case 6:
      atomic.store<u32>(state + S_SIPI_VECTOR, vector)
      atomic.store<u32>(state + S_SIPI_PENDING, 1)
      signal(index)
      return
  }
}

function sendIpi(low: u32, destination: u32): void {
  const mode = (low >> 8) & 7
  const vector = low & 0xff
  const logical = (low & 0x800) != 0
  const shorthand = (low >> 18) & 3
  const own = load<u32>(cpu, S_INDEX)
  const cpus = load<u32>(cpu, S_CPUS)
  // INIT level de-assert does nothing on modern processors.
  if (mode == 5 && !(low & 0x4000)) return
  for (let i: u32 = 0; i < cpus; i++) {
    let hit: bool
    if (shorthand == 1) hit = i == own
    else if (shorthand == 2) hit = true
    else if (shorthand == 3) hit = i != own
    else hit = isAddressed(i, destination, logical)
    if (!hit) continue
    deliverMessage(i, mode, vector, false)
    if (mode == 1) return
  }
}

// ---- registers ------------------------------------------------------------------------------------------------------
export function apicRead(offset: u32): u32 {
  offset &= 0xff0
  switch (offset) {
    case ID:
      return isX2apic() ? load<u32>(cpu, S_INDEX) : get(ID)
    case 0x30:
      return 0x0005_0014
    case 0xa0:
      return priority()
    case LDR: {
      if (!isX2apic()) return get(LDR)
      const index = load<u32>(cpu, S_INDEX)
      return ((index >> 4) << 16) | (1 << (index & 15))
    }
    case CURRENT_COUNT:
      return currentCount()
    default:
      return offset < 0x400 ? get(offset) : 0
  }
}

export function apicWrite(offset: u32, value: u32): void {
  offset &= 0xff0
  switch (offset) {
    case ID:
      put(ID, value & 0xff00_0000)
      return
    case TPR:
      put(TPR, value & 0xff)
      atomic.or<u32>(cpu + S_ATTENTION, ATTN_INTERRUPT)
      return
    case EOI:
      endOfInterrupt()
      return
    case LDR:
      put(LDR, value & 0xff00_0000)
      return
    case DFR:
      put(DFR, value | 0x0fff_ffff)
      return
    case SVR:
      put(SVR, value & 0x1ff)
      atomic.or<u32>(cpu + S_ATTENTION, ATTN_INTERRUPT)
      return
    case ESR:
      put(ESR, 0)
      return
    case ICR_LOW:
      put(ICR_LOW, value & ~0x1000)
      sendIpi(value, get(ICR_HIGH) >> 24)
      return
    case ICR_HIGH:
      put(ICR_HIGH, value)
      return
    case LVT_TIMER: {
      const mode = timerMode()
      put(LVT_TIMER, value & 0x7_10ff)
      if (timerMode() != mode) {
        store<f64>(cpu, Infinity, S_TIMER_DUE)
        store<u64>(cpu, 0, S_TSC_DEADLINE)
      }
      return
    }
    case 0x2f0:
    case 0x330:
    case 0x340:
    case LVT_LINT0:
    case LVT_LINT1:
    case LVT_ERROR:
      put(offset, value & 0x1_f7ff)
      atomic.or<u32>(cpu + S_ATTENTION, ATTN_INTERRUPT)
      return
    case INITIAL_COUNT:
      startTimer(value)
      return
    case DIVIDE:
      put(DIVIDE, value & 0xb)
      return
  }
}

export function apicReadMsr(msr: u32): u64 {
  if (!isX2apic()) {
    raiseGp()
    return 0
  }
  const offset = (msr & 0xff) << 4
  if (offset == ICR_LOW) return <u64>get(ICR_LOW) | (<u64>get(ICR_HIGH) << 32)
  return apicRead(offset)
}

export function apicWriteMsr(msr: u32, value: u64): void {
  if (!isX2apic()) {
    raiseGp()
    return
  }
  const offset = (msr & 0xff) << 4
  if (offset == ICR_LOW) {
    put(ICR_LOW, <u32>value)
    put(ICR_HIGH, <u32>(value >> 32))
    sendIpi(<u32>value, <u32>(value >> 32))
  } else if (msr == 0x83f) postVector(load<u32>(cpu, S_INDEX), <u32>value & 0xff, false)
  else if (offset == ID || offset == LDR || offset == 0x30) raiseGp()
  else apicWrite(offset, <u32>value)
}

export function setApicBase(value: u64): void {
  const before = load<u64>(cpu, S_APIC_BASE)
  // x2APIC without the enable bit, and x2APIC back to xAPIC, are refused.
  if ((value & 0xc00) == 0x400 || ((before & 0xc00) == 0xc00 && (value & 0xc00) == 0x800)) {
    raiseGp()
    return
  }
  store<u64>(cpu, (value & 0xff_ffff_fc00) | (before & 0x100), S_APIC_BASE)
}

/** CR8 is bits 4-7 of the task priority. */
export function readCr8(): u64 {
  return <u64>(get(TPR) >> 4)
}
export function writeCr8(value: u64): void {
  apicWrite(TPR, <u32>value << 4)
}
