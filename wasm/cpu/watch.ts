/**
 * Data breakpoints (SDM vol. 3, 17.2). While one is enabled, its page is in no read or write TLB, so every access to it comes through the
 * slow path and is compared here; blocks are of one instruction then (MODE_SINGLE), so the trap follows the instruction.
 */
import { cpu } from './cpu'
import { ATTN_SHADOW, S_ATTENTION, S_DR0, S_DR7, S_DR_PENDING } from './state'

/** Length of breakpoint `index`: DR7's LEN field. */
@inline
function lengthOf(dr7: u64, index: u32): u64 {
  const bits = <u32>(dr7 >> (18 + (index << 2))) & 3
  return bits == 0 ? 1 : bits == 1 ? 2 : bits == 3 ? 4 : 8
}

@inline
function isData(dr7: u64, index: u32): bool {
  return ((dr7 >> (index << 1)) & 3) != 0 && ((dr7 >> (16 + (index << 2))) & 1) != 0
}

/** True when the page at linear `page` must not be in a TLB for data. */
export function isWatched(page: u64): bool {
  const dr7 = load<u64>(cpu, S_DR7)
  if (!(dr7 & 0xff)) return false
  for (let i: u32 = 0; i < 4; i++) {
    if (!isData(dr7, i)) continue
    const address = load<u64>(cpu + (i << 3), S_DR0)
    if (address >> 12 == page >> 12 || (address + lengthOf(dr7, i) - 1) >> 12 == page >> 12) return true
  }
  return false
}

/** An access happened: notes the breakpoints that it hit. */
export function watch(address: u64, bytes: u32, write: bool): void {
  const dr7 = load<u64>(cpu, S_DR7)
  if (!(dr7 & 0xff)) return
  for (let i: u32 = 0; i < 4; i++) {
    // R/W 1: writes; 3: reads and writes.
    if (!isData(dr7, i) || (!write && ((dr7 >> (16 + (i << 2))) & 3) != 3)) continue
    const length = lengthOf(dr7, i)
    const start = load<u64>(cpu + (i << 3), S_DR0) & ~(length - 1)
    if (address < start + length && start < address + bytes) {
      store<u32>(cpu, load<u32>(cpu, S_DR_PENDING) | (1 << i), S_DR_PENDING)
      atomic.or<u32>(cpu + S_ATTENTION, ATTN_SHADOW)
    }
  }
}
