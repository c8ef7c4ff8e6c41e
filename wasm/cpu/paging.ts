/** Page-table walks: 4-level, PAE and 32-bit paging (Intel SDM vol. 3 chapter 4), with accessed and dirty bits. */
import { cpu } from './cpu'
import { markCodeWritten } from './code-pages'
import { raiseNotCanonical, raisePageFault } from './fault'
import { markDirty } from './dirty'
import { ramAddress } from './ram'
import { S_CR0, S_CR3, S_CR4, S_EFER } from './state'

export const CR0_PE: u64 = 1
export const CR0_WP: u64 = 1 << 16
export const CR0_PG: u64 = 1 << 31
export const CR4_PSE: u64 = 1 << 4
export const CR4_PAE: u64 = 1 << 5
export const CR4_PGE: u64 = 1 << 7
export const CR4_SMEP: u64 = 1 << 20
export const EFER_LMA: u64 = 1 << 10
export const EFER_NXE: u64 = 1 << 11

export const ACCESS_READ: u32 = 0
export const ACCESS_WRITE: u32 = 1
export const ACCESS_EXEC: u32 = 2
export const NO_TRANSLATION: u64 = 0xffff_ffff_ffff_ffff

const PTE_P: u64 = 1
const PTE_W: u64 = 2
const PTE_U: u64 = 4
const PTE_A: u64 = 0x20
const PTE_D: u64 = 0x40
const PTE_PS: u64 = 0x80
const PTE_G: u64 = 0x100
const PTE_NX: u64 = 1 << 63
/** Physical addresses have 40 bits (CPUID 0x80000008). */
const PTE_ADDRESS: u64 = 0x0000_00ff_ffff_f000
const PTE_RESERVED: u64 = 0x000f_ff00_0000_0000

// What the last successful walk found out besides the address.
/** Writable at the walk's privilege, and the dirty bit is set. */
export let walkWritable: bool = false
export let walkExecutable: bool = false
export let walkGlobal: bool = false
/** 0: 4 KiB page; 1: 2 or 4 MiB; 2: 1 GiB. */
export let walkLarge: u32 = 0

/** Reads a paging-structure entry; outside RAM there is none. */
@inline
function readEntry(address: u64): u64 {
  const host = ramAddress(address)
  return host ? atomic.load<u64>(host) : 0
}

function setEntryBits(address: u64, bits: u64): void {
  const host = ramAddress(address)
  if (!host) return
  atomic.or<u64>(host, bits)
  markDirty(host)
  markCodeWritten(host, 8)
}

function fault(address: u64, access: u32, user: bool, present: bool, reserved: bool): u64 {
  let error: u32 = present ? 1 : 0
  if (access == ACCESS_WRITE) error |= 2
  if (user) error |= 4
  if (reserved) error |= 8
  if (access == ACCESS_EXEC && (load<u64>(cpu, S_EFER) & EFER_NXE || load<u64>(cpu, S_CR4) & CR4_SMEP)) error |= 16
  raisePageFault(address, error)
  return NO_TRANSLATION
}

/** Guest-physical address of linear `address` for this access, or NO_TRANSLATION with the fault raised. */
export function walk(address: u64, access: u32, user: bool): u64 {
  const c = cpu
  const cr0 = load<u64>(c, S_CR0)
  walkLarge = 0
  walkGlobal = false
  if (!(cr0 & CR0_PG)) {
    walkWritable = true
    walkExecutable = true
    return address & 0xffff_ffff
  }
  const cr4 = load<u64>(c, S_CR4)
  const efer = load<u64>(c, S_EFER)
  if (efer & EFER_LMA) {
    if (<u64>((<i64>(address << 16)) >> 16) != address) {
      raiseNotCanonical()
      return NO_TRANSLATION
    }
  } else {
    address &= 0xffff_ffff
    if (!(cr4 & CR4_PAE)) return walk32(address, access, user)
  }
  const reserved = PTE_RESERVED | (efer & EFER_NXE ? 0 : PTE_NX)
  let table = load<u64>(c, S_CR3)
  let level: u32
  let rights: u64 = PTE_W | PTE_U
  let nx: u64 = 0
  let entryAddress: u64 = 0
  let entry: u64 = 0
  if (efer & EFER_LMA) {
    table &= PTE_ADDRESS
    level = 3
  } else {
    // PAE: four 8-byte pointers, aligned to 32, that have only a present bit.
    entry = readEntry((table & 0xffff_ffe0) + ((address >> 30) << 3))
    if (!(entry & PTE_P)) return fault(address, access, user, false, false)
    if (entry & (PTE_RESERVED | PTE_NX | 0x1e6)) return fault(address, access, user, true, true)
    table = entry & PTE_ADDRESS
    level = 1
  }
  let offsetBits: u32 = 12
  for (;;) {
    offsetBits = 12 + level * 9
    entryAddress = table + (((address >> offsetBits) & 511) << 3)
    entry = readEntry(entryAddress)
    if (!(entry & PTE_P)) return fault(address, access, user, false, false)
    if (entry & reserved) return fault(address, access, user, true, true)
    rights &= entry
    nx |= entry & PTE_NX
    if (level == 0) break
    if (entry & PTE_PS) {
      if (level == 3) return fault(address, access, user, true, true)
      if (entry & (((<u64>1 << offsetBits) - 1) & 0x0000_00ff_ffff_e000)) return fault(address, access, user, true, true)
      walkLarge = level
      break
    }
    if (!(entry & PTE_A)) setEntryBits(entryAddress, PTE_A)
    table = entry & PTE_ADDRESS
    level--
  }
  const smep = !user && (cr4 & CR4_SMEP) != 0 && (rights & PTE_U) != 0
  const canWrite = (rights & PTE_W) != 0 || (!user && !(cr0 & CR0_WP))
  walkExecutable = nx == 0 && !smep
  if (user && !(rights & PTE_U)) return fault(address, access, user, true, false)
  if (access == ACCESS_WRITE && !canWrite) return fault(address, access, user, true, false)
  if (access == ACCESS_EXEC && !walkExecutable) return fault(address, access, user, true, false)
  const wanted = access == ACCESS_WRITE ? PTE_A | PTE_D : PTE_A
  if ((entry & wanted) != wanted) setEntryBits(entryAddress, wanted)
  walkWritable = canWrite && ((entry | wanted) & PTE_D) != 0
  walkGlobal = (entry & PTE_G) != 0 && (cr4 & CR4_PGE) != 0
  const offsetMask = (<u64>1 << offsetBits) - 1
  return (entry & PTE_ADDRESS & ~offsetMask) | (address & offsetMask)
}

/** Two levels of 32-bit entries, 4 MiB pages with CR4.PSE. */
function walk32(address: u64, access: u32, user: bool): u64 {
  const c = cpu
  const cr0 = load<u64>(c, S_CR0)
  const cr4 = load<u64>(c, S_CR4)
  const directory = (load<u64>(c, S_CR3) & 0xffff_f000) + ((address >> 22) << 2)
  let at = ramAddress(directory)
  let entry: u32 = at ? atomic.load<u32>(at) : 0
  if (!(entry & 1)) return fault(address, access, user, false, false)
  let rights = entry
  let offsetMask: u64 = 0x3f_ffff
  let frame: u64
  if (entry & 0x80 && cr4 & CR4_PSE) {
    if (entry & 0x20_0000) return fault(address, access, user, true, true)
    frame = <u64>(entry & 0xffc0_0000) | (<u64>((entry >> 13) & 0xff) << 32)
    walkLarge = 1
  } else {
    if (!(entry & 0x20)) {
      atomic.or<u32>(at, 0x20)
      markDirty(at)
      markCodeWritten(at, 4)
    }
    at = ramAddress(<u64>(entry & 0xffff_f000) + (((address >> 12) & 1023) << 2))
    entry = at ? atomic.load<u32>(at) : 0
    if (!(entry & 1)) return fault(address, access, user, false, false)
    rights &= entry
    frame = <u64>(entry & 0xffff_f000)
    offsetMask = 0xfff
  }
  const canWrite = (rights & 2) != 0 || (!user && !(cr0 & CR0_WP))
  walkExecutable = user || !(cr4 & CR4_SMEP) || !(rights & 4)
  if (user && !(rights & 4)) return fault(address, access, user, true, false)
  if (access == ACCESS_WRITE && !canWrite) return fault(address, access, user, true, false)
  if (access == ACCESS_EXEC && !walkExecutable) return fault(address, access, user, true, false)
  const wanted: u32 = access == ACCESS_WRITE ? 0x60 : 0x20
  if ((entry & wanted) != wanted) {
    atomic.or<u32>(at, wanted)
    markDirty(at)
    markCodeWritten(at, 4)
  }
  walkWritable = canWrite && ((entry | wanted) & 0x40) != 0
  walkGlobal = (entry & 0x100) != 0 && (cr4 & CR4_PGE) != 0
  return frame | (address & offsetMask)
}
