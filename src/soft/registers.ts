/** A vCPU's registers between the contract's form and its state in shared memory (wasm/cpu/state.ts). */
import * as S from '../../wasm/cpu/state.ts'
import type { CpuRegisters, DescriptorTable, Segment, SystemRegisters } from '../accel/contract.ts'

export function readGeneral(view: DataView, base: number): bigint[] {
  return Array.from({ length: 16 }, (_, index) => view.getBigUint64(base + S.S_GPR + index * 8, true))
}

export function writeGeneral(view: DataView, base: number, registers: CpuRegisters): void {
  registers.general.forEach((value, index) => {
    view.setBigUint64(base + S.S_GPR + index * 8, BigInt.asUintN(64, value), true)
  })
  view.setBigUint64(base + S.S_RIP, BigInt.asUintN(64, registers.rip), true)
}

function readSegment(view: DataView, base: number, index: number): Segment {
  const at = base + S.S_SEG + index * S.SEG_STRIDE
  return {
    selector: view.getUint32(at + S.SEG_SELECTOR, true),
    base: view.getBigUint64(at + S.SEG_BASE, true),
    limit: view.getUint32(at + S.SEG_LIMIT, true),
    attributes: view.getUint32(at + S.SEG_ATTR, true),
  }
}

function writeSegment(view: DataView, base: number, index: number, segment: Segment): void {
  const at = base + S.S_SEG + index * S.SEG_STRIDE
  view.setBigUint64(at + S.SEG_BASE, segment.base, true)
  view.setUint32(at + S.SEG_LIMIT, segment.limit, true)
  view.setUint32(at + S.SEG_ATTR, segment.attributes, true)
  view.setUint32(at + S.SEG_SELECTOR, segment.selector, true)
  // Without the present bit a segment register cannot be used.
  view.setUint32(at + S.SEG_NULL, segment.attributes & 0x80 ? 0 : 1, true)
}

const readTable = (view: DataView, base: number, limit: number): DescriptorTable => ({
  base: view.getBigUint64(base, true),
  limit: view.getUint32(limit, true),
})

/** CR8 is in the local APIC's task priority: bits 4-7 of the register at offset 0x80. */
const TPR = S.S_APIC + (0x80 >> 2)

export function readSystem(view: DataView, base: number): SystemRegisters {
  const u64 = (offset: number): bigint => view.getBigUint64(base + offset, true)
  const segment = (index: number): Segment => readSegment(view, base, index)
  return {
    cs: segment(S.CS),
    ds: segment(S.DS),
    es: segment(S.ES),
    fs: segment(S.FS),
    gs: segment(S.GS),
    ss: segment(S.SS),
    tr: segment(S.TR),
    ldt: segment(S.LDTR),
    gdt: readTable(view, base + S.S_GDT_BASE, base + S.S_GDT_LIMIT),
    idt: readTable(view, base + S.S_IDT_BASE, base + S.S_IDT_LIMIT),
    cr0: u64(S.S_CR0),
    cr2: u64(S.S_CR2),
    cr3: u64(S.S_CR3),
    cr4: u64(S.S_CR4),
    cr8: BigInt(view.getUint32(base + TPR, true) >> 4),
    efer: u64(S.S_EFER),
    apicBase: u64(S.S_APIC_BASE),
  }
}

/** Stores system registers; the caller then has the CPU re-derive what follows from them. */
export function writeSystem(view: DataView, base: number, system: SystemRegisters): void {
  const u64 = (offset: number, value: bigint): void => view.setBigUint64(base + offset, value, true)
  writeSegment(view, base, S.CS, system.cs)
  writeSegment(view, base, S.DS, system.ds)
  writeSegment(view, base, S.ES, system.es)
  writeSegment(view, base, S.FS, system.fs)
  writeSegment(view, base, S.GS, system.gs)
  writeSegment(view, base, S.SS, system.ss)
  writeSegment(view, base, S.TR, system.tr)
  writeSegment(view, base, S.LDTR, system.ldt)
  u64(S.S_GDT_BASE, system.gdt.base)
  view.setUint32(base + S.S_GDT_LIMIT, system.gdt.limit, true)
  u64(S.S_IDT_BASE, system.idt.base)
  view.setUint32(base + S.S_IDT_LIMIT, system.idt.limit, true)
  u64(S.S_CR0, system.cr0)
  u64(S.S_CR2, system.cr2)
  u64(S.S_CR3, system.cr3)
  u64(S.S_CR4, system.cr4)
  // Long mode is active when it is enabled and paging is on, whatever the caller says.
  const active = (system.efer & 0x100n) !== 0n && (system.cr0 & 0x8000_0000n) !== 0n
  u64(S.S_EFER, (system.efer & ~0x400n) | (active ? 0x400n : 0n))
  u64(S.S_APIC_BASE, system.apicBase)
  view.setUint32(base + TPR, Number(system.cr8 & 15n) << 4, true)
  // The privilege level is SS's, except in real mode.
  view.setUint32(base + S.S_CPL, system.cr0 & 1n ? (system.ss.attributes >> 5) & 3 : 0, true)
}
