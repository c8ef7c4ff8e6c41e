/** Segments and general registers at a kernel's entry, shared by both protocols. */
import type { CpuRegisters, DescriptorTable, Segment, SystemRegisters } from '../../accel/contract.ts'
import type { GuestMemory } from '../../memory/guest-memory.ts'
import { GDT_ADDRESS, IDT_ADDRESS } from '../address-map.ts'

/** What the boot CPU starts with: `system` replaces part of the state that a reset left. Structured-cloneable. */
export interface EntryState {
  readonly registers: CpuRegisters
  readonly system: Partial<SystemRegisters>
}

/** Attributes as in `Segment.attributes`. Flat 32-bit code and data, a busy 32-bit TSS. */
export const CODE_32 = 0xc09b
export const DATA_32 = 0xc093
export const TSS_32 = 0x008b
/** 64-bit code and a TSS for long mode. */
export const CODE_64 = 0xa09b
export const TSS_64 = 0x808b

const TSS_LIMIT = 0x67
const GRANULAR = 0x8000

const CODE_SELECTOR = 8
const DATA_SELECTOR = 16
const TSS_SELECTOR = 24

type Tables = Pick<SystemRegisters, 'cs' | 'ds' | 'es' | 'fs' | 'gs' | 'ss' | 'tr' | 'ldt' | 'gdt' | 'idt'>

/** Writes null, code, data and TSS descriptors to guest memory, and gives the registers that have them loaded. */
export function writeGdt(memory: GuestMemory, code: number, data: number, tss: number): Tables {
  memory.writeU64(GDT_ADDRESS, 0n)
  memory.writeU64(GDT_ADDRESS + CODE_SELECTOR, descriptor(code, 0xf_ffff))
  memory.writeU64(GDT_ADDRESS + DATA_SELECTOR, descriptor(data, 0xf_ffff))
  memory.writeU64(GDT_ADDRESS + TSS_SELECTOR, descriptor(tss, tss & GRANULAR ? 0 : TSS_LIMIT))
  memory.writeU64(IDT_ADDRESS, 0n)
  const cs = segment(CODE_SELECTOR, code, 0xffff_ffff)
  const ds = segment(DATA_SELECTOR, data, 0xffff_ffff)
  const tr = segment(TSS_SELECTOR, tss, tss & GRANULAR ? 0xfff : TSS_LIMIT)
  const ldt: Segment = { selector: 0, base: 0n, limit: 0xffff, attributes: 0x0082 }
  const gdt: DescriptorTable = { base: BigInt(GDT_ADDRESS), limit: 31 }
  const idt: DescriptorTable = { base: BigInt(IDT_ADDRESS), limit: 7 }
  return { cs, ds, es: ds, fs: ds, gs: ds, ss: ds, tr, ldt, gdt, idt }
}

const segment = (selector: number, attributes: number, limit: number): Segment => ({
  selector,
  base: 0n,
  limit,
  attributes,
})

/** Intel SDM vol. 3, 3.4.5: base 0. */
function descriptor(attributes: number, limit: number): bigint {
  const low = BigInt(limit & 0xffff)
  const high = BigInt((attributes & 0xff) << 8) | BigInt(limit & 0xf_0000) | (BigInt(attributes >> 12) << 20n)
  return (high << 32n) | low
}

const NAMES = ['rax', 'rcx', 'rdx', 'rbx', 'rsp', 'rbp', 'rsi', 'rdi'] as const

/** All sixteen general registers, zero but for those named. */
export function general(values: Partial<Record<(typeof NAMES)[number], number>>): bigint[] {
  const registers = new Array<bigint>(16).fill(0n)
  NAMES.forEach((name, i) => {
    registers[i] = BigInt(values[name] ?? 0)
  })
  return registers
}
