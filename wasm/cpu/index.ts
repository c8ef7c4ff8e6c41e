/** The exports of the CPU module. */
import { pollTimer } from './apic'
import { resetBlocks } from './blocks'
import { serveMailbox } from './code-pages'
import { cpu } from './cpu'
import { pollPit } from './pit'
import { C_PIT_DUE, S_CHIPS, S_INDEX, S_TIMER_DUE } from './state'
import { nowNs } from './time'

export { resetBlocks } from './blocks'
export { setCpu } from './cpu'
export { getRflags, putRflags } from './flags'
export {
  jitCarry,
  jitCondition,
  jitCross,
  jitEnd,
  jitOp,
  jitRotateFlags,
  // For nobody outside: what is exported stays a function of its own, which V8 compiles better than as a part of run().
  runRegions,
} from './jit'
export { readSlow, writeSlow } from './memory-slow'
export { updateMode } from './mode'
export { walk } from './paging'
export { resetVcpu } from './reset'
export { mulHighSigned } from './exec-integer'
export { run } from './run'
export { dropAllWriters, flushTlbAll } from './tlb'

/** Fires the timers that are due. To be called before each slice. */
export function pollTimers(): void {
  const now = nowNs()
  pollTimer(now)
  if (load<u32>(cpu, S_INDEX) == 0) pollPit(now)
}

/** When the next timer of this vCPU fires, in nanoseconds of `nowNs`; infinity when none is set. */
export function nextDeadline(): f64 {
  let due = load<f64>(cpu, S_TIMER_DUE)
  if (load<u32>(cpu, S_INDEX) == 0) due = min<f64>(due, load<f64>(load<u32>(cpu, S_CHIPS), C_PIT_DUE))
  return due
}

/** Drops the code that devices have overwritten, for a vCPU that stands still. */
export function settleCode(): void {
  if (serveMailbox()) resetBlocks()
}

export function currentTime(): f64 {
  return nowNs()
}
