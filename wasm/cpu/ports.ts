/** Port input and output: permission, the chips in here, then the host. */
import { chipPortRead, chipPortWrite, isChipPort } from './chips'
import { cpu } from './cpu'
import { raiseGp } from './fault'
import { IOPL_MASK, VM } from './flags'
import { hostPortRead, hostPortWrite } from './host'
import { read16 } from './memory'
import { enterSystem, isProtected, leaveSystem, segmentAt } from './mode'
import { S_COUNT_PORT, S_CPL, S_FAULT, S_RFLAGS, S_STOP, SEG_BASE, SEG_LIMIT, TR } from './state'

/** True when the current privilege may use `bytes` ports from `port`; else #GP is raised. */
export function portAllowed(port: u32, bytes: u32): bool {
  const c = cpu
  if (!isProtected()) return true
  const flags = load<u32>(c, S_RFLAGS)
  if (load<u32>(c, S_CPL) <= (flags & IOPL_MASK) >> 12 && !(flags & VM)) return true
  // The bitmap of the task state segment (SDM vol. 1, 19.5.2).
  const task = segmentAt(TR)
  const limit = load<u32>(task, SEG_LIMIT)
  if (limit >= 103) {
    const before = enterSystem()
    const base = load<u64>(task, SEG_BASE)
    const offset = read16(base + 102) + (port >> 3)
    let denied = true
    if (!load<u32>(c, S_FAULT) && offset + 1 <= limit)
      denied = ((read16(base + offset) >> (port & 7)) & ((1 << bytes) - 1)) != 0
    leaveSystem(before)
    if (load<u32>(c, S_FAULT)) return false
    if (!denied) return true
  }
  raiseGp()
  return false
}

export function readPort(port: u32, bytes: u32): u32 {
  const c = cpu
  store<u64>(c, load<u64>(c, S_COUNT_PORT) + 1, S_COUNT_PORT)
  if (isChipPort(port)) return chipPortRead(port)
  return hostPortRead(port, bytes)
}

export function writePort(port: u32, bytes: u32, value: u32): void {
  const c = cpu
  store<u64>(c, load<u64>(c, S_COUNT_PORT) + 1, S_COUNT_PORT)
  if (isChipPort(port)) chipPortWrite(port, value & 0xff)
  else if (hostPortWrite(port, bytes, value)) store<u32>(c, 1, S_STOP)
}
