/** Loads and stores that the TLB does not serve: misses, page crossings, code pages, MMIO. */
import { chipRead, chipWrite } from './mmio'
import { markCodeWritten, pageIsPlain } from './code-pages'
import { cpu } from './cpu'
import { markDirty } from './dirty'
import {
  ACCESS_READ,
  ACCESS_WRITE,
  EFER_LMA,
  NO_TRANSLATION,
  walk,
  walkExecutable,
  walkGlobal,
  walkLarge,
  walkWritable,
} from './paging'
import { ramAddress } from './ram'
import { raiseNotCanonical } from './fault'
import { S_COUNT_TLB_FILLS, S_EFER, S_FAULT, S_TLB, S_TLB_HUGE, S_TLB_USER } from './state'
import { isWatched, watch } from './watch'
import { fillTlb, TLBM_GLOBAL, TLBM_LARGE } from './tlb'

const PAGE_MASK: u64 = 0xffff_ffff_ffff_f000

/** Guest-physical address of the last MMIO page that `translate` met, when it returned 0. */
let outside: u64 = 0

/**
 * Shared-memory address of linear `address`, filling the TLB; 0 when it faulted (S_FAULT is set) or when it is not RAM
 * (then `outside` is its guest-physical address).
 */
export function translate(address: u64, access: u32): usize {
  const c = cpu
  const tlb = load<u32>(c, S_TLB)
  const user = tlb == load<u32>(c, S_TLB_USER)
  const physical = walk(address, access, user)
  if (physical == NO_TRANSLATION) return 0
  const host = ramAddress(physical)
  if (!host) {
    outside = physical
    return 0
  }
  store<u64>(c, load<u64>(c, S_COUNT_TLB_FILLS) + 1, S_COUNT_TLB_FILLS)
  // A page may be written without coming here only if its dirty bit is set already and nobody has code in it.
  let writable = walkWritable && pageIsPlain(host)
  if (writable) markDirty(host)
  const meta = (walkGlobal ? TLBM_GLOBAL : 0) | (walkLarge ? TLBM_LARGE : 0)
  if (walkLarge > 1) store<u32>(c, 1, S_TLB_HUGE)
  const watched = isWatched(address)
  fillTlb(tlb, address, host & ~0xfff, writable && !watched, walkExecutable, !watched, meta)
  return host
}

/** An access that runs into addresses that are not canonical faults for that, before any page is looked at. */
export function endsOutside(last: u64): bool {
  if (!(load<u64>(cpu, S_EFER) & EFER_LMA) || <u64>((<i64>(last << 16)) >> 16) == last) return false
  raiseNotCanonical()
  return true
}

/** A load of 1 << `size` bytes. */
export function readSlow(address: u64, size: u32): u64 {
  if (load<u32>(cpu, S_FAULT)) return 0
  const bytes: u32 = 1 << size
  if ((<u32>address & 0xfff) + bytes > 4096) {
    if (endsOutside(address + bytes - 1)) return 0
    let value: u64 = 0
    for (let i: u32 = 0; i < bytes; i++) {
      value |= readSlow(address + i, 0) << (<u64>i << 3)
      if (load<u32>(cpu, S_FAULT)) return 0
    }
    return value
  }
  const host = translate(address, ACCESS_READ)
  if (!host) return load<u32>(cpu, S_FAULT) ? 0 : chipRead(outside, bytes)
  watch(address, bytes, false)
  switch (size) {
    case 0:
      return load<u8>(host)
    case 1:
      return load<u16>(host)
    case 2:
      return load<u32>(host)
    default:
      return load<u64>(host)
  }
}

/** A store of 1 << `size` bytes. */
export function writeSlow(address: u64, value: u64, size: u32): void {
  if (load<u32>(cpu, S_FAULT)) return
  const bytes: u32 = 1 << size
  if ((<u32>address & 0xfff) + bytes > 4096) {
    // Both pages are checked before the first byte is stored.
    if (endsOutside(address + bytes - 1)) return
    if (!probeSlow(address, true) || !probeSlow((address + bytes - 1) & PAGE_MASK, true)) return
    for (let i: u32 = 0; i < bytes; i++) writeSlow(address + i, (value >> (<u64>i << 3)) & 0xff, 0)
    return
  }
  const host = translate(address, ACCESS_WRITE)
  if (!host) {
    if (!load<u32>(cpu, S_FAULT)) chipWrite(outside, bytes, value)
    return
  }
  switch (size) {
    case 0:
      store<u8>(host, <u8>value)
      break
    case 1:
      store<u16>(host, <u16>value)
      break
    case 2:
      store<u32>(host, <u32>value)
      break
    default:
      store<u64>(host, value)
  }
  watch(address, bytes, true)
  markDirty(host)
  markCodeWritten(host, bytes)
}

/** Makes sure that the byte at `address` can be read or written, or raises the fault. */
export function probeSlow(address: u64, write: bool): bool {
  if (load<u32>(cpu, S_FAULT)) return false
  translate(address, write ? ACCESS_WRITE : ACCESS_READ)
  return !load<u32>(cpu, S_FAULT)
}

/**
 * Shared-memory address of `bytes` bytes at `address` that lie in one RAM page and may be written (and were, as far as dirty log and
 * code pages go: call `wroteAt` after storing), or 0: crossing, MMIO, or a fault.
 */
export function writeAddress(address: u64, bytes: u32): usize {
  if (load<u32>(cpu, S_FAULT) || (<u32>address & 0xfff) + bytes > 4096) return 0
  return translate(address, ACCESS_WRITE)
}

export function readAddress(address: u64, bytes: u32): usize {
  if (load<u32>(cpu, S_FAULT) || (<u32>address & 0xfff) + bytes > 4096) return 0
  return translate(address, ACCESS_READ)
}

export function wroteAt(host: usize, bytes: u32): void {
  markDirty(host)
  markCodeWritten(host, bytes)
}
