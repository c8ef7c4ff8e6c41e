/** The structures of <linux/kvm.h> and <asm/kvm.h> (x86) that we exchange with the kernel, in the order of their use. */
import { Struct, u8, u16, u32, u64 } from './layout.ts'

/** The page that a vCPU shares with us. Its union starts at 32. */
export const RUN = new Struct('kvm_run', 2352, {
  immediate_exit: u8(1),
  exit_reason: u32(8),
  if_flag: u8(13),
  flags: u16(14),
  'hw.hardware_exit_reason': u64(32),
  'fail_entry.hardware_entry_failure_reason': u64(32),
  'fail_entry.cpu': u32(40),
  'ex.exception': u32(32),
  'ex.error_code': u32(36),
  'io.direction': u8(32),
  'io.size': u8(33),
  'io.port': u16(34),
  'io.count': u32(36),
  'io.data_offset': u64(40),
  'mmio.phys_addr': u64(32),
  'mmio.data': u8(40, 8),
  'mmio.len': u32(48),
  'mmio.is_write': u8(52),
  'internal.suberror': u32(32),
  'internal.ndata': u32(36),
  'internal.data': u64(40, 16),
  'emulation_failure.flags': u64(40),
  'emulation_failure.insn_size': u8(48),
  'emulation_failure.insn_bytes': u8(49, 15),
  'system_event.type': u32(32),
  'system_event.ndata': u32(36),
  'system_event.data': u64(40, 16),
})

export const USERSPACE_MEMORY_REGION = new Struct('kvm_userspace_memory_region', 32, {
  slot: u32(0),
  flags: u32(4),
  guest_phys_addr: u64(8),
  memory_size: u64(16),
  userspace_addr: u64(24),
})

export const DIRTY_LOG = new Struct('kvm_dirty_log', 16, { slot: u32(0), dirty_bitmap: u64(8) })

export const REGS = new Struct('kvm_regs', 144, {
  rax: u64(0),
  rbx: u64(8),
  rcx: u64(16),
  rdx: u64(24),
  rsi: u64(32),
  rdi: u64(40),
  rsp: u64(48),
  rbp: u64(56),
  r8: u64(64),
  r9: u64(72),
  r10: u64(80),
  r11: u64(88),
  r12: u64(96),
  r13: u64(104),
  r14: u64(112),
  r15: u64(120),
  rip: u64(128),
  rflags: u64(136),
})

export const SEGMENT = new Struct('kvm_segment', 24, {
  base: u64(0),
  limit: u32(8),
  selector: u16(12),
  type: u8(14),
  present: u8(15),
  dpl: u8(16),
  db: u8(17),
  s: u8(18),
  l: u8(19),
  g: u8(20),
  avl: u8(21),
  unusable: u8(22),
})

export const DTABLE = new Struct('kvm_dtable', 16, { base: u64(0), limit: u16(8) })

export const SREGS = new Struct('kvm_sregs', 312, {
  cs: u8(0, 24),
  ds: u8(24, 24),
  es: u8(48, 24),
  fs: u8(72, 24),
  gs: u8(96, 24),
  ss: u8(120, 24),
  tr: u8(144, 24),
  ldt: u8(168, 24),
  gdt: u8(192, 16),
  idt: u8(208, 16),
  cr0: u64(224),
  cr2: u64(232),
  cr3: u64(240),
  cr4: u64(248),
  cr8: u64(256),
  efer: u64(264),
  apic_base: u64(272),
  interrupt_bitmap: u64(280, 4),
})

export const TRANSLATION = new Struct('kvm_translation', 24, {
  linear_address: u64(0),
  physical_address: u64(8),
  valid: u8(16),
})

/** Ends in `struct kvm_cpuid_entry2 entries[]`. */
export const CPUID2 = new Struct('kvm_cpuid2', 8, { nent: u32(0) })
export const CPUID_ENTRY2 = new Struct('kvm_cpuid_entry2', 40, {
  function: u32(0),
  index: u32(4),
  flags: u32(8),
  eax: u32(12),
  ebx: u32(16),
  ecx: u32(20),
  edx: u32(24),
})

/** Ends in `__u32 indices[]`. */
export const MSR_LIST = new Struct('kvm_msr_list', 4, { nmsrs: u32(0) })
/** Ends in `struct kvm_msr_entry entries[]`. */
export const MSRS = new Struct('kvm_msrs', 8, { nmsrs: u32(0) })
export const MSR_ENTRY = new Struct('kvm_msr_entry', 16, { index: u32(0), data: u64(8) })

export const FPU = new Struct('kvm_fpu', 416, {
  fpr: u8(0, 128),
  fcw: u16(128),
  fsw: u16(130),
  ftwx: u8(132),
  last_opcode: u16(134),
  last_ip: u64(136),
  last_dp: u64(144),
  xmm: u8(152, 256),
  mxcsr: u32(408),
})
export const XSAVE = new Struct('kvm_xsave', 4096, { region: u32(0, 1024) })
export const XCRS = new Struct('kvm_xcrs', 392, { nr_xcrs: u32(0), flags: u32(4), xcrs: u8(8, 256) })
export const XCR = new Struct('kvm_xcr', 16, { xcr: u32(0), value: u64(8) })
export const DEBUGREGS = new Struct('kvm_debugregs', 128, { db: u64(0, 4), dr6: u64(32), dr7: u64(40), flags: u64(48) })
export const LAPIC = new Struct('kvm_lapic_state', 1024, { regs: u8(0, 1024) })
export const MP_STATE = new Struct('kvm_mp_state', 4, { mp_state: u32(0) })
export const VCPU_EVENTS = new Struct('kvm_vcpu_events', 64, {
  'exception.injected': u8(0),
  'exception.nr': u8(1),
  'exception.has_error_code': u8(2),
  'exception.pending': u8(3),
  'exception.error_code': u32(4),
  'interrupt.injected': u8(8),
  'interrupt.nr': u8(9),
  'interrupt.shadow': u8(11),
  'nmi.injected': u8(12),
  'nmi.pending': u8(13),
  'nmi.masked': u8(14),
  sipi_vector: u32(16),
  flags: u32(20),
})

export const IRQFD = new Struct('kvm_irqfd', 32, { fd: u32(0), gsi: u32(4), flags: u32(8), resamplefd: u32(12) })
export const IOEVENTFD = new Struct('kvm_ioeventfd', 64, {
  datamatch: u64(0),
  addr: u64(8),
  len: u32(16),
  fd: u32(20),
  flags: u32(24),
})
export const PIT_CONFIG = new Struct('kvm_pit_config', 64, { flags: u32(0) })
export const IRQCHIP = new Struct('kvm_irqchip', 520, { chip_id: u32(0), chip: u8(8, 512) })
export const PIT_STATE2 = new Struct('kvm_pit_state2', 112, { channels: u8(0, 72), flags: u32(72) })
export const CLOCK_DATA = new Struct('kvm_clock_data', 48, {
  clock: u64(0),
  flags: u32(8),
  realtime: u64(16),
  host_tsc: u64(24),
})
