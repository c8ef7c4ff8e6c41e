/**
 * The x87 register stack, its tags, and how exceptions are recorded (SDM volume 1, 8.1 and 8.5).
 *
 * Registers are physical: ST(i) is R[(TOP + i) & 7]. An exception is recorded in the status word by the instruction that
 * met it and raised as #MF by the next waiting one. Masked, an instruction delivers its default result; unmasked, an
 * invalid, denormal or zero-divide exception leaves the destination as it was.
 */
import { cpu } from './cpu'
import { begin, DE, extMan, extTop, flags, IE, packExt, roundedUp, unpackAExt, unpackBExt, ZE } from './softfloat'
import { FPR_EXPONENT, S_FCW, S_FPR, S_FSW, S_FTAG, S_FTOP } from './state'

/** Stack fault, recorded together with IE. */
export const SF: u32 = 0x40
const SUMMARY_AND_BUSY: u32 = 0x8080
export const C0: u32 = 0x100
export const C1: u32 = 0x200
export const C2: u32 = 0x400
export const C3: u32 = 0x4000

export const INDEFINITE_MAN: u64 = 0xc000000000000000
export const INDEFINITE_TOP: u32 = 0xffff

@inline
export function fcw(): u32 {
  return load<u16>(cpu, S_FCW)
}

@inline
export function fsw(): u32 {
  return load<u16>(cpu, S_FSW)
}

export function setFsw(value: u32): void {
  store<u16>(cpu, value, S_FSW)
}

/** The status word as the guest sees it. */
export function statusWord(): u32 {
  return (fsw() & ~0x3800) | (load<u32>(cpu, S_FTOP) << 11)
}

/** Recomputes the summary bit after the masks or the flags changed. */
export function updateSummary(): void {
  const status = fsw()
  setFsw(status & ~fcw() & 0x3f ? status | SUMMARY_AND_BUSY : status & ~SUMMARY_AND_BUSY)
}

export function setConditions(bits: u32): void {
  setFsw((fsw() & ~(C0 | C1 | C2 | C3)) | bits)
}

export function setC1(on: bool): void {
  setFsw(on ? fsw() | C1 : fsw() & ~C1)
}

@inline
export function physical(index: u32): u32 {
  return (load<u32>(cpu, S_FTOP) + index) & 7
}

@inline
function slot(index: u32): usize {
  return cpu + (physical(index) << 4)
}

export function stMan(index: u32): u64 {
  return load<u64>(slot(index), S_FPR)
}

export function stTop(index: u32): u32 {
  return load<u16>(slot(index), S_FPR + FPR_EXPONENT)
}

/** Writes ST(index) and marks it as in use. */
export function setSt(index: u32, man: u64, top: u32): void {
  const at = slot(index)
  store<u64>(at, man, S_FPR)
  store<u16>(at, top, S_FPR + FPR_EXPONENT)
  store<u32>(cpu, load<u32>(cpu, S_FTAG) | (1 << physical(index)), S_FTAG)
}

export function isEmpty(index: u32): bool {
  return !((load<u32>(cpu, S_FTAG) >> physical(index)) & 1)
}

export function setEmpty(index: u32): void {
  store<u32>(cpu, load<u32>(cpu, S_FTAG) & ~(1 << physical(index)), S_FTAG)
}

export function moveTop(by: i32): void {
  store<u32>(cpu, (load<u32>(cpu, S_FTOP) + by) & 7, S_FTOP)
}

export function pop(): void {
  setEmpty(0)
  moveTop(1)
}

/** Starts an operation in the rounding mode and with the masks of the control word. */
export function beginX87(): void {
  begin((fcw() >> 10) & 3, fcw() & 0x3f, false)
}

/** Bits of significand that precision control asks for. */
export function precision(): u32 {
  const pc = (fcw() >> 8) & 3
  return pc == 0 ? 24 : pc == 2 ? 53 : 64
}

/** Records exceptions. True when an unmasked one forbids writing the destination. */
export function post(exceptions: u32): bool {
  const unmasked = exceptions & ~fcw() & 0x3f
  setFsw(fsw() | exceptions | (unmasked ? SUMMARY_AND_BUSY : 0))
  return (unmasked & (IE | DE | ZE)) != 0
}

/** What an operation reports: an unmasked exception found before computing keeps later ones from being found. */
export function reported(): u32 {
  return flags & ~fcw() & (IE | DE | ZE) ? flags & (IE | DE | ZE) : flags
}

/** Records what the soft-float operation since `beginX87` raised, and C1. */
export function postOperation(): bool {
  const exceptions = reported()
  setC1(roundedUp && exceptions == flags)
  return post(exceptions)
}

/** A stack fault. True when it is masked, so that the default result is to be delivered. */
export function stackFault(overflow: bool): bool {
  setC1(overflow)
  return !post(IE | SF)
}

/** Underflow of an instruction whose destination is ST(index). */
export function underflowInto(index: u32): bool {
  if (!stackFault(false)) return false
  setSt(index, INDEFINITE_MAN, INDEFINITE_TOP)
  return true
}

/** Makes room for a value; when there is none, the stack fault has been dealt with and false is the answer. */
export function canPush(): bool {
  if (isEmpty(7)) return true
  if (stackFault(true)) {
    moveTop(-1)
    setSt(0, INDEFINITE_MAN, INDEFINITE_TOP)
  }
  return false
}

export function push(man: u64, top: u32): void {
  moveTop(-1)
  setSt(0, man, top)
}

export function loadA(index: u32): void {
  unpackAExt(stMan(index), stTop(index))
}

export function loadB(index: u32): void {
  unpackBExt(stMan(index), stTop(index))
}

/** Rounds the result to `bits`, records exceptions, and writes ST(index) unless forbidden. True when written. */
export function storeResult(index: u32, bits: u32): bool {
  packExt(bits)
  if (postOperation()) return false
  setSt(index, extMan, extTop)
  return true
}
