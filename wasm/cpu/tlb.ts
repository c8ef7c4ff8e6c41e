/** Filling and emptying the software TLBs (memory.ts describes an entry). */
import { cpu } from './cpu'
import { PAGE_MASK, TLB_ADDEND, TLB_BYTES, TLB_EXEC, TLB_INDEX_MASK, TLB_META, TLB_READ, TLB_WRITE } from './memory'
import {
  PROOF_KEY,
  PROOFS,
  REGION_CACHE_ENTRIES,
  S_CODE_FILTER,
  S_COUNT_FLUSHES,
  S_EPOCH,
  S_EPOCH_HIGH,
  S_HIGH_LOCAL,
  S_JUMP_CACHE,
  S_JUMP_KEY,
  S_LARGE_FILTER,
  S_PROOFS,
  S_REGION_CACHE,
  S_TLB_HUGE,
  S_TLB_KERNEL,
  S_TLB_LIST,
  S_TLB_USED,
  S_TLB_USER,
  TLB_LIST_LENGTH,
} from './state'

export const NO_PAGE: u64 = 0xffff_ffff_ffff_ffff
/** The page is global: survives a CR3 write. */
export const TLBM_GLOBAL: u32 = 1
/** The page is part of a 2 or 4 MiB page: INVLPG of any address in it must drop it. */
export const TLBM_LARGE: u32 = 2

@inline
function clearEntry(entry: usize): void {
  store<u64>(entry, NO_PAGE, TLB_READ)
  store<u64>(entry, NO_PAGE, TLB_WRITE)
  store<u64>(entry, NO_PAGE, TLB_EXEC)
}

/** Remembers that `entry` holds a page that a CR3 write must drop. */
export function noteTlbFill(entry: usize): void {
  const used = load<u32>(cpu, S_TLB_USED)
  if (used < <u32>TLB_LIST_LENGTH) store<u32>(cpu + (used << 2), <u32>entry, S_TLB_LIST)
  store<u32>(cpu, used + 1, S_TLB_USED)
}

/** Bumps an epoch, which takes the entries of that half (0 lower, 1 upper) out of the jump cache and the region cache. */
function bumpHalf(half: u32): void {
  const c = cpu
  const at = c + (half ? S_EPOCH_HIGH : S_EPOCH)
  const key = c + S_JUMP_KEY + (half << 2)
  let epoch = (load<u32>(at) + 1) & 0x1ff_ffff
  // Zero is what was never filled.
  const comesRound = epoch == 0
  if (comesRound) epoch = 1
  store<u32>(at, epoch)
  store<u32>(key, (epoch << 7) | (load<u32>(key) & 127))
  memory.fill(c + S_CODE_FILTER + (half << 8), 0, 256)
  if (!comesRound) return
  // Epochs come round once in 33 million: entries of that long ago must not match.
  memory.fill(load<u32>(c, S_JUMP_CACHE), 0xff, 4096 * 16)
  memory.fill(load<u32>(c, S_REGION_CACHE), 0, REGION_CACHE_ENTRIES * 16)
  const proofs: usize = load<u32>(c, S_PROOFS)
  for (let i: usize = 0; i < <usize>PROOFS; i++) store<u32>(proofs + (i << 4), 0, PROOF_KEY)
}

export function bumpEpoch(): void {
  bumpHalf(0)
  bumpHalf(1)
  store<u32>(cpu, 0, S_HIGH_LOCAL)
}

/** For a CR3 write: code on global pages stays. */
function bumpEpochLocal(): void {
  if (load<u32>(cpu, S_HIGH_LOCAL)) bumpEpoch()
  else bumpHalf(0)
}

@inline
function codeFilter(address: u64): usize {
  return cpu + S_CODE_FILTER + (<u32>(address >> 63) << 8) + (<u32>(address >> 15) & 255)
}

/** The jump cache is about to hold code at linear `address`, of a global page or not. */
export function noteCode(address: u64, global: bool): void {
  const at = codeFilter(address)
  store<u8>(at, load<u8>(at) | (<u8>1 << (<u8>(address >> 12) & 7)))
  if (!global && <i64>address < 0) store<u32>(cpu, 1, S_HIGH_LOCAL)
}

/** Everything, global pages too: CR0, CR4, EFER changes and INVPCID of all. */
export function flushTlbAll(): void {
  const c = cpu
  memory.fill(load<u32>(c, S_TLB_KERNEL), 0xff, TLB_BYTES)
  memory.fill(load<u32>(c, S_TLB_USER), 0xff, TLB_BYTES)
  memory.fill(c + S_LARGE_FILTER, 0, 128)
  store<u32>(c, 0, S_TLB_HUGE)
  store<u32>(c, 0, S_TLB_USED)
  store<u64>(c, load<u64>(c, S_COUNT_FLUSHES) + 1, S_COUNT_FLUSHES)
  bumpEpoch()
}

/** Everything but global pages: a CR3 write. */
export function flushTlbLocal(): void {
  const c = cpu
  const used = load<u32>(c, S_TLB_USED)
  if (used <= <u32>TLB_LIST_LENGTH) {
    for (let i: u32 = 0; i < used; i++) clearEntry(load<u32>(c + (i << 2), S_TLB_LIST))
  } else {
    memory.fill(load<u32>(c, S_TLB_USER), 0xff, TLB_BYTES)
    let entry: usize = load<u32>(c, S_TLB_KERNEL)
    const end = entry + TLB_BYTES
    for (; entry < end; entry += 32) if (!(load<u32>(entry, TLB_META) & TLBM_GLOBAL)) clearEntry(entry)
  }
  store<u32>(c, 0, S_TLB_USED)
  store<u64>(c, load<u64>(c, S_COUNT_FLUSHES) + 1, S_COUNT_FLUSHES)
  bumpEpochLocal()
}

/** A bit of the filter of 2 MiB regions that have pages of large mappings in the TLBs. */
@inline
function filterByte(address: u64): usize {
  return cpu + S_LARGE_FILTER + (<u32>(address >> 24) & 127)
}

export function noteLarge(address: u64): void {
  const at = filterByte(address)
  store<u8>(at, load<u8>(at) | (<u8>1 << (<u8>(address >> 21) & 7)))
}

/** INVLPG. */
export function flushTlbPage(address: u64): void {
  const c = cpu
  if (load<u32>(c, S_TLB_HUGE)) {
    flushTlbAll()
    return
  }
  if (load<u8>(codeFilter(address)) & (<u8>1 << (<u8>(address >> 12) & 7))) bumpHalf(<u32>(address >> 63))
  const slot = <u32>(address >> 7) & TLB_INDEX_MASK
  clearEntry(load<u32>(c, S_TLB_KERNEL) + slot)
  clearEntry(load<u32>(c, S_TLB_USER) + slot)
  if (load<u8>(filterByte(address)) & (<u8>1 << (<u8>(address >> 21) & 7))) {
    bumpEpoch()
    dropLarge(load<u32>(c, S_TLB_KERNEL), address)
    dropLarge(load<u32>(c, S_TLB_USER), address)
  }
}

/** Drops the pages of large mappings in the 4 MiB around `address` (the largest that is not huge). */
function dropLarge(tlb: usize, address: u64): void {
  const region = address >> 22
  for (let entry = tlb; entry < tlb + TLB_BYTES; entry += 32) {
    if (!(load<u32>(entry, TLB_META) & TLBM_LARGE)) continue
    if (
      load<u64>(entry, TLB_READ) >> 22 == region ||
      load<u64>(entry, TLB_WRITE) >> 22 == region ||
      load<u64>(entry, TLB_EXEC) >> 22 == region
    )
      clearEntry(entry)
  }
}

/** Takes away write access to the RAM page at shared-memory address `page` under every linear address; true if there was any. */
export function dropWriters(page: usize): bool {
  const kernel = dropWritersIn(load<u32>(cpu, S_TLB_KERNEL), page)
  const user = dropWritersIn(load<u32>(cpu, S_TLB_USER), page)
  return kernel || user
}

function dropWritersIn(tlb: usize, page: usize): bool {
  let found = false
  for (let entry = tlb; entry < tlb + TLB_BYTES; entry += 32) {
    const tag = load<u64>(entry, TLB_WRITE)
    if (tag != NO_PAGE && <u32>tag + load<u32>(entry, TLB_ADDEND) == <u32>page) {
      store<u64>(entry, NO_PAGE, TLB_WRITE)
      found = true
    }
  }
  return found
}

/** Takes away write access to every page: the dirty log was read. */
export function dropAllWriters(): void {
  const kernel: usize = load<u32>(cpu, S_TLB_KERNEL)
  const user: usize = load<u32>(cpu, S_TLB_USER)
  for (let at: usize = 0; at < TLB_BYTES; at += 32) {
    store<u64>(kernel + at, NO_PAGE, TLB_WRITE)
    store<u64>(user + at, NO_PAGE, TLB_WRITE)
  }
}

/** Puts a page in the TLB. `host` is the shared-memory address of the page that holds linear `address`. */
export function fillTlb(
  tlb: usize,
  address: u64,
  host: usize,
  writable: bool,
  executable: bool,
  readable: bool,
  meta: u32,
): void {
  const page = address & PAGE_MASK
  const entry = tlb + (<u32>(address >> 7) & TLB_INDEX_MASK)
  store<u64>(entry, readable ? page : NO_PAGE, TLB_READ)
  store<u64>(entry, writable ? page : NO_PAGE, TLB_WRITE)
  store<u64>(entry, executable ? page : NO_PAGE, TLB_EXEC)
  store<u32>(entry, <u32>host - <u32>page, TLB_ADDEND)
  store<u32>(entry, meta, TLB_META)
  if (!(meta & TLBM_GLOBAL)) noteTlbFill(entry)
  if (meta & TLBM_LARGE) noteLarge(address)
}
