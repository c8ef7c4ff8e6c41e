/** What follows from control registers, segments and privilege: the mode word, the TLB in use, FPU traps. */
import { cpu } from './cpu'
import { TF, VM } from './flags'
import {
  ATTN_SHADOW,
  CS,
  DS,
  ES,
  MODE_16,
  MODE_32,
  MODE_64,
  MODE_FLAT,
  MODE_REAL,
  MODE_SINGLE,
  MODE_STACK32,
  MODE_USER,
  S_ATTENTION,
  S_CPL,
  S_CR0,
  S_CR4,
  S_DR7,
  S_EFER,
  S_EPOCH,
  S_EPOCH_HIGH,
  S_FPU_TRAP,
  S_JUMP_KEY,
  S_JUMP_KEY_HIGH,
  S_MODE,
  S_OPTIONS,
  S_RFLAGS,
  S_SEG,
  S_TLB,
  S_TLB_KERNEL,
  S_TLB_USER,
  SEG_ATTR,
  SEG_BASE,
  SEG_LIMIT,
  SEG_NULL,
  SEG_STRIDE,
  SS,
} from './state'
import { EFER_LMA } from './paging'

export const OPTION_DETERMINISTIC: u32 = 1
/** One instruction a block: the host steps. */
export const OPTION_STEP: u32 = 2

@inline
export function segmentAt(segment: u32): usize {
  return cpu + segment * SEG_STRIDE + S_SEG
}

export function isLongMode(): bool {
  return (load<u64>(cpu, S_EFER) & EFER_LMA) != 0
}
export function isProtected(): bool {
  return (load<u64>(cpu, S_CR0) & 1) != 0
}
export function isVirtual8086(): bool {
  return (load<u32>(cpu, S_RFLAGS) & VM) != 0
}

function isFlat(segment: u32): bool {
  const at = segmentAt(segment)
  return (
    load<u64>(at, SEG_BASE) == 0 &&
    load<u32>(at, SEG_LIMIT) == 0xffff_ffff &&
    load<u32>(at, SEG_NULL) == 0 &&
    (load<u32>(at, SEG_ATTR) & 0xe) == 2
  )
}

/** To be called after any change of CS, SS, DS, ES, CR0, CR4, EFER, CPL, TF, DR7 or options. */
export function updateMode(): void {
  const c = cpu
  const code = load<u32>(segmentAt(CS), SEG_ATTR)
  let mode: u32
  if (isLongMode() && code & 0x2000) mode = MODE_64
  else {
    mode = code & 0x4000 ? MODE_32 : MODE_16
    if (load<u32>(segmentAt(SS), SEG_ATTR) & 0x4000) mode |= MODE_STACK32
    if (isFlat(DS) && isFlat(ES) && isFlat(SS)) mode |= MODE_FLAT
    if (!isProtected() || isVirtual8086()) mode |= MODE_REAL
  }
  const stepping = (load<u32>(c, S_RFLAGS) & TF) != 0 || (load<u64>(c, S_DR7) & 0xff) != 0
  if (stepping) atomic.or<u32>(c + S_ATTENTION, ATTN_SHADOW)
  if (stepping || load<u32>(c, S_OPTIONS) & OPTION_STEP) mode |= MODE_SINGLE
  setMode(mode)
  const user = load<u32>(c, S_CPL) == 3
  store<u32>(c, user ? load<u32>(c, S_TLB_USER) : load<u32>(c, S_TLB_KERNEL), S_TLB)
  const trap = (load<u64>(c, S_CR0) & 12) != 0 || (load<u64>(c, S_CR4) & 0x200) == 0
  store<u32>(c, trap ? 1 : 0, S_FPU_TRAP)
}

/** Sets the mode word and the jump-cache key that goes with it. */
export function setMode(mode: u32): void {
  const c = cpu
  mode = load<u32>(c, S_CPL) == 3 ? mode | MODE_USER : mode & ~MODE_USER
  store<u32>(c, mode, S_MODE)
  store<u32>(c, (load<u32>(c, S_EPOCH) << 7) | mode, S_JUMP_KEY)
  store<u32>(c, (load<u32>(c, S_EPOCH_HIGH) << 7) | mode, S_JUMP_KEY_HIGH)
}

/** The kernel's view of memory, for descriptor tables and stacks of inner rings; returns what to give back to `leaveSystem`. */
@inline
export function enterSystem(): u32 {
  const before = load<u32>(cpu, S_TLB)
  store<u32>(cpu, load<u32>(cpu, S_TLB_KERNEL), S_TLB)
  return before
}

@inline
export function leaveSystem(before: u32): void {
  store<u32>(cpu, before, S_TLB)
}
