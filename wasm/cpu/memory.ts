/**
 * Guest-virtual loads and stores. The fast path is a direct-mapped software TLB, in line; everything else (miss, page
 * crossing, MMIO, code pages, faults) is a call.
 *
 * A TLB entry is 32 bytes: a tag a kind of access, and the distance from linear to shared-memory addresses.
 *     +0 u64 page readable | +8 u64 page writable | +16 u64 page executable | +24 u32 addend | +28 u32 TLBM_* bits
 * Tags are page addresses, or NO_PAGE. An access of n bytes compares the tag at addr's slot with the page of its LAST byte,
 * so a crossing access misses by itself. There are two TLBs, for CPL 3 and for the rest; S_TLB points to the one in use.
 *
 * Faults: see fault.ts. A load that faulted returns 0; a store that faulted stored nothing (both pages of a crossing
 * store are checked first).
 */
import { cpu } from './cpu'
import { endsOutside, probeSlow, readSlow, writeSlow } from './memory-slow'
import { S_TEMP, S_TLB } from './state'

export const TLB_ENTRIES: u32 = 4096
export const TLB_BYTES: u32 = TLB_ENTRIES * 32
export const TLB_INDEX_MASK: u32 = (TLB_ENTRIES - 1) << 5
export const PAGE_MASK: u64 = 0xffff_ffff_ffff_f000
export const TLB_READ: usize = 0
export const TLB_WRITE: usize = 8
export const TLB_EXEC: usize = 16
export const TLB_ADDEND: usize = 24
export const TLB_META: usize = 28

/** The slot where `address` would be. */
@inline
export function tlbSlot(address: u64): usize {
  return <usize>load<u32>(cpu, S_TLB) + (<u32>(address >> 7) & TLB_INDEX_MASK)
}

/** The same with the state's address at hand: a local is cheaper than the global. */
@inline
export function tlbSlotIn(c: usize, address: u64): usize {
  return <usize>load<u32>(c, S_TLB) + (<u32>(address >> 7) & TLB_INDEX_MASK)
}

@inline
export function read8(address: u64): u32 {
  const entry = tlbSlot(address)
  if (load<u64>(entry, TLB_READ) == (address & PAGE_MASK)) return load<u8>(load<u32>(entry, TLB_ADDEND) + <u32>address)
  return <u32>readSlow(address, 0)
}

@inline
export function read16(address: u64): u32 {
  const entry = tlbSlot(address)
  if (load<u64>(entry, TLB_READ) == ((address + 1) & PAGE_MASK))
    return load<u16>(load<u32>(entry, TLB_ADDEND) + <u32>address)
  return <u32>readSlow(address, 1)
}

@inline
export function read32(address: u64): u32 {
  const entry = tlbSlot(address)
  if (load<u64>(entry, TLB_READ) == ((address + 3) & PAGE_MASK))
    return load<u32>(load<u32>(entry, TLB_ADDEND) + <u32>address)
  return <u32>readSlow(address, 2)
}

@inline
export function read64(address: u64): u64 {
  const entry = tlbSlot(address)
  if (load<u64>(entry, TLB_READ) == ((address + 7) & PAGE_MASK))
    return load<u64>(load<u32>(entry, TLB_ADDEND) + <u32>address)
  return readSlow(address, 3)
}

/** 16 bytes; alignment is the caller's business (#GP for most SSE forms). */
export function read128(address: u64): v128 {
  const entry = tlbSlot(address)
  if (load<u64>(entry, TLB_READ) == ((address + 15) & PAGE_MASK))
    return v128.load(load<u32>(entry, TLB_ADDEND) + <u32>address)
  store<u64>(cpu, readSlow(address, 3), S_TEMP)
  store<u64>(cpu, readSlow(address + 8, 3), S_TEMP + 8)
  return v128.load(cpu + S_TEMP)
}

@inline
export function write8(address: u64, value: u32): void {
  const entry = tlbSlot(address)
  if (load<u64>(entry, TLB_WRITE) == (address & PAGE_MASK)) store<u8>(load<u32>(entry, TLB_ADDEND) + <u32>address, <u8>value)
  else writeSlow(address, value, 0)
}

@inline
export function write16(address: u64, value: u32): void {
  const entry = tlbSlot(address)
  if (load<u64>(entry, TLB_WRITE) == ((address + 1) & PAGE_MASK))
    store<u16>(load<u32>(entry, TLB_ADDEND) + <u32>address, <u16>value)
  else writeSlow(address, value, 1)
}

@inline
export function write32(address: u64, value: u32): void {
  const entry = tlbSlot(address)
  if (load<u64>(entry, TLB_WRITE) == ((address + 3) & PAGE_MASK))
    store<u32>(load<u32>(entry, TLB_ADDEND) + <u32>address, value)
  else writeSlow(address, value, 2)
}

@inline
export function write64(address: u64, value: u64): void {
  const entry = tlbSlot(address)
  if (load<u64>(entry, TLB_WRITE) == ((address + 7) & PAGE_MASK))
    store<u64>(load<u32>(entry, TLB_ADDEND) + <u32>address, value)
  else writeSlow(address, value, 3)
}

export function write128(address: u64, value: v128): void {
  const entry = tlbSlot(address)
  if (load<u64>(entry, TLB_WRITE) == ((address + 15) & PAGE_MASK)) {
    v128.store(load<u32>(entry, TLB_ADDEND) + <u32>address, value)
    return
  }
  // Probe the last byte first, so that nothing is stored when either half would fault.
  if (!probeWrite(address, 16)) return
  writeSlow(address, v128.extract_lane<u64>(value, 0), 3)
  writeSlow(address + 8, v128.extract_lane<u64>(value, 1), 3)
}

/** The 80-bit memory format: mantissa, then sign and exponent. */
export function read80Mantissa(address: u64): u64 {
  return read64(address)
}
export function read80Exponent(address: u64): u32 {
  return read16(address + 8)
}
export function write80(address: u64, mantissa: u64, exponent: u32): void {
  if (!probeWrite(address, 10)) return
  write64(address, mantissa)
  write16(address + 8, exponent)
}

/** True when `bytes` (1 to 4096) at `address` can be written; otherwise the fault has been raised. Changes nothing but A/D bits. */
export function probeWrite(address: u64, bytes: u32): bool {
  const last = address + <u64>(bytes - 1)
  const entry = tlbSlot(address)
  if (load<u64>(entry, TLB_WRITE) == (last & PAGE_MASK)) return true
  return !endsOutside(last) && probeSlow(address, true) && ((address ^ last) & PAGE_MASK ? probeSlow(last & PAGE_MASK, true) : true)
}

export function probeRead(address: u64, bytes: u32): bool {
  const last = address + <u64>(bytes - 1)
  const entry = tlbSlot(address)
  if (load<u64>(entry, TLB_READ) == (last & PAGE_MASK)) return true
  return !endsOutside(last) && probeSlow(address, false) && ((address ^ last) & PAGE_MASK ? probeSlow(last & PAGE_MASK, false) : true)
}
