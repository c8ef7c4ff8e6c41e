/**
 * A 64-bit micro-guest that runs at privilege level 3, where every KVM is at native speed (also one that emulates level
 * 0), with the tables under it that faults need:
 *
 *   0x000000  supervisor only
 *     0x0500    GDT: null, kernel code, kernel data, user data, user code, TSS
 *     0x0600    TSS: the stack for faults
 *     0x1000    256 entry points, one HLT each: RIP at the HLT exit tells the vector
 *     0x2000    IDT: 256 gates to them
 *     0x4000    PML4, PDPT, four PDs (4 GiB, so that the MMIO hole is mapped too)
 *     0xf000    top of the fault stack
 *   0x200000  user: code, data and stack, up to the end of RAM
 *   0xc0000000  user: MMIO, mapped but not RAM
 *
 * All mappings are identity mappings of 2 MiB pages; what is neither RAM nor the MMIO hole is not mapped.
 */
import type { CpuRegisters, Segment, SystemRegisters, Vcpu } from '../accel/contract.ts'
import type { GuestMemory } from '../memory/guest-memory.ts'
import { MMIO_HOLE_START } from '../memory/layout.ts'

export const USER_BASE = 0x20_0000
/** The smallest RAM for such a guest, in MiB. */
export const USER_MODE_MIB = 4

const GDT = 0x500
const TSS = 0x600
const ENTRY_POINTS = 0x1000
const IDT = 0x2000
const PML4 = 0x4000
const PDPT = 0x5000
const PD = 0x6000
const FAULT_STACK = 0xf000
const LARGE_PAGE = 0x20_0000

const SELECTOR = { kernelCode: 0x08, kernelData: 0x10, userData: 0x1b, userCode: 0x23, tss: 0x28 } as const
const ATTRIBUTES = { kernelCode: 0xa09b, kernelData: 0xc093, userData: 0xc0f3, userCode: 0xa0fb, tss: 0x008b } as const

const PRESENT = 1n
const WRITABLE = 2n
const USER = 4n
const LARGE = 0x80n

/** PE, MP, ET, NE, WP, AM, PG: as Linux has it. */
const CR0 = 0x8005_0033n
/** PAE, OSFXSR, OSXMMEXCPT. */
const CR4 = 0x620n
const CR4_OSXSAVE = 0x4_0000n
/** LME, LMA, NXE. */
const EFER = 0xd00n

/** A descriptor from the contract's attributes; base 0 and limit 4 GiB unless given. */
const descriptor = (attributes: number, base = 0, limit = 0xf_ffff): bigint =>
  BigInt(limit & 0xffff) |
  (BigInt(base & 0xff_ffff) << 16n) |
  (BigInt(attributes & 0xff) << 40n) |
  (BigInt((limit >> 16) & 0xf) << 48n) |
  (BigInt(attributes >> 12) << 52n) |
  (BigInt(base >>> 24) << 56n)

/**
 * Writes the tables into `memory`, which must be at least `USER_MODE_MIB` large and below the MMIO hole. `handlers` gives
 * vectors addresses of their own, in supervisor memory, instead of the HLTs.
 */
export function writeUserModeTables(memory: GuestMemory, handlers: Readonly<Record<number, number>> = {}): void {
  const gdt = [0n, descriptor(ATTRIBUTES.kernelCode), descriptor(ATTRIBUTES.kernelData)]
  gdt.push(descriptor(ATTRIBUTES.userData), descriptor(ATTRIBUTES.userCode), descriptor(0x89, TSS, 0x67), 0n)
  gdt.forEach((entry, i) => void memory.writeU64(GDT + i * 8, entry))
  // RSP0, at 4 in a 64-bit TSS (SDM volume 3, 8.7); no I/O permission bitmap.
  memory.writeU64(TSS + 4, BigInt(FAULT_STACK))
  memory.writeU16(TSS + 102, 0x68)
  for (let vector = 0; vector < 256; vector++) {
    memory.writeU8(ENTRY_POINTS + vector, 0xf4)
    const target = handlers[vector] ?? ENTRY_POINTS + vector
    // An interrupt gate (type 14) that level 3 may also call with INT: 0xEE.
    memory.writeU64(IDT + vector * 16, BigInt(target) | (BigInt(SELECTOR.kernelCode) << 16n) | (0xeen << 40n))
    memory.writeU64(IDT + vector * 16 + 8, 0n)
  }
  const table = PRESENT | WRITABLE | USER
  memory.writeU64(PML4, BigInt(PDPT) | table)
  for (let gib = 0; gib < 4; gib++) {
    memory.writeU64(PDPT + gib * 8, BigInt(PD + gib * 0x1000) | table)
    for (let i = 0; i < 512; i++) {
      const address = gib * 0x4000_0000 + i * LARGE_PAGE
      const mapped = address < memory.size || address >= MMIO_HOLE_START
      const user = address >= USER_BASE ? USER : 0n
      memory.writeU64(PD + gib * 0x1000 + i * 8, mapped ? BigInt(address) | PRESENT | WRITABLE | LARGE | user : 0n)
    }
  }
}

const segment = (selector: number, attributes: number, base = 0n, limit = 0xffff_ffff): Segment => ({
  selector,
  base,
  limit,
  attributes,
})

/** System registers at privilege level 3 over those tables. `xsave` sets CR4.OSXSAVE, for XCR0 and AVX. */
export function userModeSystemRegisters(base: SystemRegisters, xsave = false): SystemRegisters {
  const data = segment(SELECTOR.userData, ATTRIBUTES.userData)
  return {
    ...base,
    cs: segment(SELECTOR.userCode, ATTRIBUTES.userCode),
    ds: data,
    es: data,
    fs: data,
    gs: data,
    ss: data,
    tr: segment(SELECTOR.tss, ATTRIBUTES.tss, BigInt(TSS), 0x67),
    ldt: { selector: 0, base: 0n, limit: 0, attributes: 0 },
    gdt: { base: BigInt(GDT), limit: 7 * 8 - 1 },
    idt: { base: BigInt(IDT), limit: 256 * 16 - 1 },
    cr0: CR0,
    cr2: 0n,
    cr3: BigInt(PML4),
    cr4: xsave ? CR4 | CR4_OSXSAVE : CR4,
    efer: EFER,
  }
}

/** Makes `vcpu` start at privilege level 3 with these registers. The tables must be in its memory. */
export function startUserMode(vcpu: Vcpu, registers: CpuRegisters): void {
  vcpu.writeSystemRegisters(userModeSystemRegisters(vcpu.readSystemRegisters()))
  vcpu.writeRegisters(registers)
}

/** What brought a user-mode guest into the supervisor's HLT: the vector, and the frame that the CPU pushed. */
export interface UserModeTrap {
  readonly vector: number
  readonly errorCode: number | undefined
  readonly rip: bigint
  readonly rflags: bigint
  readonly rsp: bigint
}

/** After the run ended as 'halted'; undefined when it was halted anywhere else. */
export function userModeTrap(memory: GuestMemory, registers: CpuRegisters): UserModeTrap | undefined {
  const vector = Number(registers.rip) - ENTRY_POINTS - 1
  const frame = Number(registers.general[4]!)
  const size = FAULT_STACK - frame
  if (!(vector >= 0 && vector < 256) || (size !== 40 && size !== 48)) return undefined
  const at = size === 48 ? frame + 8 : frame
  return {
    vector,
    errorCode: size === 48 ? memory.readU32(frame) : undefined,
    rip: memory.readU64(at),
    rflags: memory.readU64(at + 16),
    rsp: memory.readU64(at + 24),
  }
}
