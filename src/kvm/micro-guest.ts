/**
 * Micro-guests: a few bytes of machine code with no kernel under them. They probe, measure and test, on any /dev/kvm.
 *
 *   0x1000  code, where execution starts
 *   0x8000  top of the stack
 *
 * They start in flat 32-bit protected mode without paging or interrupts, at privilege level 0. user-mode.ts has those
 * that run at level 3, with tables for faults and interrupts.
 */
import {
  type CpuRegisters,
  GENERAL_REGISTERS,
  type GeneralRegister,
  type Segment,
  type SystemRegisters,
  type Vcpu,
} from '../accel/contract.ts'

export const CODE_ADDRESS = 0x1000
export const STACK_TOP = 0x8000

const segment = (selector: number, attributes: number, limit = 0xffff_ffff): Segment => ({
  selector,
  base: 0n,
  limit,
  attributes,
})

/** Present, S: code 0x9b (execute, read, accessed), data 0x93 (read, write, accessed); G and D/B or L above. */
const CODE32 = 0xc09b
const DATA32 = 0xc093
const TSS_BUSY = 0x008b
/** Not present. */
const LDT_NONE: Segment = { selector: 0, base: 0n, limit: 0, attributes: 0 }

const CR0_PE = 0x01n
const CR0_ET = 0x10n

/** System registers of a flat 32-bit guest at privilege level 0; the rest is as the CPU has it. */
export function flatSystemRegisters(base: SystemRegisters): SystemRegisters {
  const data = segment(0x10, DATA32)
  return {
    ...base,
    cs: segment(0x08, CODE32),
    ds: data,
    es: data,
    fs: data,
    gs: data,
    ss: data,
    tr: segment(0x18, TSS_BUSY, 0x67),
    ldt: LDT_NONE,
    cr0: CR0_PE | CR0_ET,
    cr3: 0n,
    cr4: 0n,
    efer: 0n,
  }
}

/** Registers that are zero but for the ones named, by their number in the instruction set. */
export function registersAt(
  rip: number,
  values: Readonly<Partial<Record<GeneralRegister, bigint>>> = {},
): CpuRegisters {
  return {
    general: GENERAL_REGISTERS.map(name => values[name] ?? (name === 'rsp' ? BigInt(STACK_TOP) : 0n)),
    rip: BigInt(rip),
    rflags: 2n,
  }
}

/** Makes `vcpu` start at `rip` in flat 32-bit mode. */
export function startFlat(
  vcpu: Vcpu,
  rip: number,
  values: Readonly<Partial<Record<GeneralRegister, bigint>>> = {},
): void {
  vcpu.writeSystemRegisters(flatSystemRegisters(vcpu.readSystemRegisters()))
  vcpu.writeRegisters(registersAt(rip, values))
}
