/** Power-on, INIT and SIPI states (SDM vol. 3 table 10-1). */
import { resetApic, wireApic } from './apic'
import { resetBlocks } from './blocks'
import { resetChips } from './chips'
import { cpu } from './cpu'
import { setArithmeticFlags } from './flags'
import { updateMode } from './mode'
import { putSegment } from './segmentation'
import {
  CS,
  ES,
  GS,
  LDTR,
  S_APIC_BASE,
  S_ATTENTION,
  S_CPL,
  S_CR0,
  S_CR2,
  S_CR3,
  S_CR4,
  S_DR0,
  S_DR6,
  S_DR7,
  S_EFER,
  S_FAULT,
  S_GDT_BASE,
  S_GDT_LIMIT,
  S_GPR,
  S_IDT_BASE,
  S_IDT_LIMIT,
  S_INDEX,
  S_MISC_ENABLE,
  S_MP_STATE,
  S_MTRR_DEF,
  S_MXCSR,
  S_NMI_MASKED,
  S_PAT,
  S_RDX,
  S_RFLAGS,
  S_RIP,
  S_SHADOW,
  S_TF_ARMED,
  S_XCR0,
  S_XMM,
  TR,
  ATTN_HALT,
} from './state'
import { flushTlbAll } from './tlb'
import { initX87 } from './xsave'

/** Registers of a vCPU after reset (or INIT, which keeps MSRs, x87 and SSE). */
export function resetRegisters(init: bool): void {
  const c = cpu
  memory.fill(c + S_GPR, 0, 0x98)
  store<u64>(c, 0x806f8, S_RDX)
  store<u32>(c, 2, S_RFLAGS)
  setArithmeticFlags(0)
  store<u64>(c, 0xfff0, S_RIP)
  for (let segment: u32 = ES; segment <= <u32>GS; segment++) putSegment(segment, 0, 0, 0xffff, 0x93)
  putSegment(CS, 0xf000, 0xffff_0000, 0xffff, 0x9b)
  putSegment(LDTR, 0, 0, 0xffff, 0x82)
  putSegment(TR, 0, 0, 0xffff, 0x8b)
  store<u64>(c, 0, S_GDT_BASE)
  store<u32>(c, 0xffff, S_GDT_LIMIT)
  store<u64>(c, 0, S_IDT_BASE)
  store<u32>(c, 0xffff, S_IDT_LIMIT)
  store<u64>(c, 0x6000_0010, S_CR0)
  store<u64>(c, 0, S_CR2)
  store<u64>(c, 0, S_CR3)
  store<u64>(c, 0, S_CR4)
  store<u64>(c, 0, S_EFER)
  memory.fill(c + S_DR0, 0, 32)
  store<u64>(c, 0xffff_0ff0, S_DR6)
  store<u64>(c, 0x400, S_DR7)
  store<u32>(c, 0, S_CPL)
  store<u32>(c, 0, S_FAULT)
  store<u32>(c, 0, S_SHADOW)
  store<u32>(c, 0, S_TF_ARMED)
  store<u32>(c, 0, S_NMI_MASKED)
  resetApic()
  if (!init) {
    store<u64>(c, 1, S_XCR0)
    store<u64>(c, 0x0007_0406_0007_0406, S_PAT)
    store<u64>(c, 1, S_MISC_ENABLE)
    store<u64>(c, 0x806, S_MTRR_DEF)
    store<u32>(c, 0x1f80, S_MXCSR)
    initX87()
    memory.fill(c + S_XMM, 0, 16 * 32)
    store<u64>(c, 0xfee0_0000 | 0x800 | (load<u32>(c, S_INDEX) == 0 ? 0x100 : 0), S_APIC_BASE)
  }
  flushTlbAll()
  updateMode()
}

/** A start-up IPI: real mode at vector << 12. */
export function startAt(vector: u32): void {
  const c = cpu
  putSegment(CS, (vector & 0xff) << 8, <u64>(vector & 0xff) << 12, 0xffff, 0x9b)
  store<u64>(c, 0, S_RIP)
  flushTlbAll()
  updateMode()
}

/** The vCPU's boot state: the first runs, the others wait for a start-up IPI. Chips are reset by the first. */
export function resetVcpu(): void {
  const c = cpu
  resetBlocks()
  resetRegisters(false)
  const first = load<u32>(c, S_INDEX) == 0
  if (first) {
    resetChips()
    wireApic()
  }
  store<u32>(c, first ? 0 : 2, S_MP_STATE)
  atomic.store<u32>(c + S_ATTENTION, first ? 0 : ATTN_HALT)
}
