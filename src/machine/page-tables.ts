/** A linear address as the guest's page tables translate it: Intel SDM volume 3A, chapter 4. Read from memory, not from any TLB. */
import type { SystemRegisters } from '../accel/contract.ts'
import type { GuestMemory } from '../memory/guest-memory.ts'

/** One step of a walk through the page tables. */
export interface PageTableEntry {
  /** 4 is the PML4, 1 the last. */
  readonly level: number
  /** Its own guest-physical address: `memory.writeU64` there changes it (and `Machine.memoryChanged` says so). */
  readonly address: number
  readonly value: bigint
  readonly present: boolean
  readonly writable: boolean
  readonly user: boolean
  readonly accessed: boolean
  readonly dirty: boolean
  /** It maps a page itself, of 4 MiB, 2 MiB or 1 GiB. */
  readonly large: boolean
  readonly noExecute: boolean
}

/** The way from a linear address to memory. */
export interface Translation {
  readonly linear: bigint
  /** From the top; the last is the one that maps the page or is not present. None without paging. */
  readonly entries: readonly PageTableEntry[]
  /** Where it is in guest-physical memory; undefined when it is mapped nowhere. */
  readonly physical: number | undefined
  readonly pageSize: number
  /** What all levels together allow. */
  readonly writable: boolean
  readonly user: boolean
  readonly executable: boolean
}

/** How one way of paging cuts an address up. */
interface Format {
  /** The lowest bit that each level looks at, from the top. */
  readonly shifts: readonly number[]
  readonly indexBits: number
  readonly entryBytes: 4 | 8
  /** Levels whose entries may map a page. */
  readonly large: readonly number[]
  readonly tableMask: bigint
}

const PAGE_BITS = 12n
const LONG_MODE: Format = {
  ...{ shifts: [39, 30, 21, 12], indexBits: 9, entryBytes: 8, large: [3, 2], tableMask: 0xf_ffff_ffff_f000n },
}
const PAE: Format = {
  ...{ shifts: [30, 21, 12], indexBits: 9, entryBytes: 8, large: [2], tableMask: 0xf_ffff_ffff_f000n },
}
const PLAIN: Format = { shifts: [22, 12], indexBits: 10, entryBytes: 4, large: [2], tableMask: 0xffff_f000n }

const [CR0_PG, CR4_PSE, CR4_PAE, EFER_LMA] = [1n << 31n, 1n << 4n, 1n << 5n, 1n << 10n]

function formatOf({ cr4, efer }: SystemRegisters): Format {
  if ((efer & EFER_LMA) !== 0n) return LONG_MODE
  return (cr4 & CR4_PAE) !== 0n ? PAE : PLAIN
}

function entryAt(
  memory: GuestMemory,
  address: number,
  bytes: 4 | 8,
  level: number,
  mayBeLarge: boolean,
): PageTableEntry {
  // A table outside RAM reads as if it were empty.
  const there = memory.offsetOf(address, bytes) >= 0
  const value = !there ? 0n : bytes === 8 ? memory.readU64(address) : BigInt(memory.readU32(address))
  const has = (bit: bigint): boolean => ((value >> bit) & 1n) !== 0n
  return {
    level,
    address,
    value,
    present: has(0n),
    writable: has(1n),
    user: has(2n),
    accessed: has(5n),
    dirty: has(6n),
    large: mayBeLarge && has(7n),
    noExecute: bytes === 8 && has(63n),
  }
}

/** Walks the tables that CR3 points to. Nothing is changed, accessed bits included. */
export function walkPageTables(memory: GuestMemory, system: SystemRegisters, linear: bigint): Translation {
  const address = BigInt.asUintN(64, linear)
  if ((system.cr0 & CR0_PG) === 0n) {
    const all = { writable: true, user: true, executable: true }
    return { linear: address, entries: [], physical: Number(address), pageSize: 4096, ...all }
  }
  const { shifts, indexBits, entryBytes, large, tableMask } = formatOf(system)
  const entries: PageTableEntry[] = []
  let table = system.cr3 & tableMask
  let shift = 0n
  for (const [depth, low] of shifts.entries()) {
    shift = BigInt(low)
    const level = shifts.length - depth
    // The top level of PAE has four entries, and those have no rights.
    const index =
      Number((address >> shift) & ((1n << BigInt(indexBits)) - 1n)) & (shifts === PAE.shifts && depth === 0 ? 3 : -1)
    const mayBeLarge = large.includes(level) && (entryBytes === 8 || (system.cr4 & CR4_PSE) !== 0n)
    const entry = entryAt(memory, Number(table) + index * entryBytes, entryBytes, level, mayBeLarge)
    entries.push(entry)
    if (!entry.present || entry.large) break
    table = entry.value & tableMask
  }
  const last = entries.at(-1)!
  const rights = shifts === PAE.shifts ? entries.slice(1) : entries
  const inPage = (1n << shift) - 1n
  const physical = (last.value & tableMask & ~inPage) | (address & inPage)
  return {
    linear: address,
    entries,
    physical: last.present ? Number(physical) : undefined,
    pageSize: Number(shift < PAGE_BITS ? 0n : 1n << shift),
    writable: rights.every(entry => entry.present && entry.writable),
    user: rights.every(entry => entry.present && entry.user),
    executable: entries.every(entry => entry.present && !entry.noExecute),
  }
}
