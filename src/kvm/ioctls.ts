/** KVM's ioctl numbers, capabilities and exit reasons. ioctls.test.ts compares each with <linux/kvm.h>. */
import * as structs from './structs.ts'

const KVMIO = 0xae
const NONE = 0
const WRITE = 1
const READ = 2

/** <asm-generic/ioctl.h>: direction in bits 30-31, size in 16-29, type in 8-15, number in 0-7. */
const request = (direction: number, number: number, size: number): number =>
  ((direction << 30) | (size << 16) | (KVMIO << 8) | number) >>> 0
const io = (number: number) => request(NONE, number, 0)
const ior = (number: number, { size }: { size: number }) => request(READ, number, size)
const iow = (number: number, { size }: { size: number }) => request(WRITE, number, size)
const iowr = (number: number, { size }: { size: number }) => request(READ | WRITE, number, size)

export const IOCTL = {
  // On /dev/kvm.
  KVM_GET_API_VERSION: io(0x00),
  KVM_CREATE_VM: io(0x01),
  KVM_GET_MSR_INDEX_LIST: iowr(0x02, structs.MSR_LIST),
  KVM_CHECK_EXTENSION: io(0x03),
  KVM_GET_VCPU_MMAP_SIZE: io(0x04),
  KVM_GET_SUPPORTED_CPUID: iowr(0x05, structs.CPUID2),
  // On a VM.
  KVM_CREATE_VCPU: io(0x41),
  KVM_GET_DIRTY_LOG: iow(0x42, structs.DIRTY_LOG),
  KVM_SET_USER_MEMORY_REGION: iow(0x46, structs.USERSPACE_MEMORY_REGION),
  KVM_SET_TSS_ADDR: io(0x47),
  KVM_SET_IDENTITY_MAP_ADDR: iow(0x48, { size: 8 }),
  KVM_CREATE_IRQCHIP: io(0x60),
  KVM_GET_IRQCHIP: iowr(0x62, structs.IRQCHIP),
  KVM_SET_IRQCHIP: ior(0x63, structs.IRQCHIP),
  KVM_IRQFD: iow(0x76, structs.IRQFD),
  KVM_CREATE_PIT2: iow(0x77, structs.PIT_CONFIG),
  KVM_IOEVENTFD: iow(0x79, structs.IOEVENTFD),
  KVM_SET_CLOCK: iow(0x7b, structs.CLOCK_DATA),
  KVM_GET_CLOCK: ior(0x7c, structs.CLOCK_DATA),
  KVM_GET_PIT2: ior(0x9f, structs.PIT_STATE2),
  KVM_SET_PIT2: iow(0xa0, structs.PIT_STATE2),
  // On a vCPU.
  KVM_RUN: io(0x80),
  KVM_GET_REGS: ior(0x81, structs.REGS),
  KVM_SET_REGS: iow(0x82, structs.REGS),
  KVM_GET_SREGS: ior(0x83, structs.SREGS),
  KVM_SET_SREGS: iow(0x84, structs.SREGS),
  KVM_TRANSLATE: iowr(0x85, structs.TRANSLATION),
  KVM_GET_MSRS: iowr(0x88, structs.MSRS),
  KVM_SET_MSRS: iow(0x89, structs.MSRS),
  KVM_GET_FPU: ior(0x8c, structs.FPU),
  KVM_SET_FPU: iow(0x8d, structs.FPU),
  KVM_GET_LAPIC: ior(0x8e, structs.LAPIC),
  KVM_SET_LAPIC: iow(0x8f, structs.LAPIC),
  KVM_SET_CPUID2: iow(0x90, structs.CPUID2),
  KVM_GET_CPUID2: iowr(0x91, structs.CPUID2),
  KVM_GET_MP_STATE: ior(0x98, structs.MP_STATE),
  KVM_SET_MP_STATE: iow(0x99, structs.MP_STATE),
  KVM_GET_VCPU_EVENTS: ior(0x9f, structs.VCPU_EVENTS),
  KVM_SET_VCPU_EVENTS: iow(0xa0, structs.VCPU_EVENTS),
  KVM_GET_DEBUGREGS: ior(0xa1, structs.DEBUGREGS),
  KVM_SET_DEBUGREGS: iow(0xa2, structs.DEBUGREGS),
  KVM_SET_TSC_KHZ: io(0xa2),
  KVM_GET_TSC_KHZ: io(0xa3),
  KVM_GET_XSAVE: ior(0xa4, structs.XSAVE),
  KVM_SET_XSAVE: iow(0xa5, structs.XSAVE),
  KVM_GET_XCRS: ior(0xa6, structs.XCRS),
  KVM_SET_XCRS: iow(0xa7, structs.XCRS),
  KVM_KVMCLOCK_CTRL: io(0xad),
  KVM_GET_XSAVE2: ior(0xcf, structs.XSAVE),
} as const

export const CAP = {
  KVM_CAP_IRQCHIP: 0,
  KVM_CAP_USER_MEMORY: 3,
  KVM_CAP_SET_TSS_ADDR: 4,
  KVM_CAP_EXT_CPUID: 7,
  KVM_CAP_NR_VCPUS: 9,
  KVM_CAP_MP_STATE: 14,
  KVM_CAP_IRQFD: 32,
  KVM_CAP_PIT2: 33,
  KVM_CAP_PIT_STATE2: 35,
  KVM_CAP_IOEVENTFD: 36,
  KVM_CAP_SET_IDENTITY_MAP_ADDR: 37,
  KVM_CAP_ADJUST_CLOCK: 39,
  KVM_CAP_VCPU_EVENTS: 41,
  KVM_CAP_DEBUGREGS: 50,
  KVM_CAP_XSAVE: 55,
  KVM_CAP_XCRS: 56,
  KVM_CAP_TSC_CONTROL: 60,
  KVM_CAP_GET_TSC_KHZ: 61,
  KVM_CAP_MAX_VCPUS: 66,
  KVM_CAP_TSC_DEADLINE_TIMER: 72,
  KVM_CAP_KVMCLOCK_CTRL: 76,
  KVM_CAP_READONLY_MEM: 81,
  KVM_CAP_IMMEDIATE_EXIT: 136,
  KVM_CAP_XSAVE2: 208,
} as const

export const EXIT = {
  KVM_EXIT_UNKNOWN: 0,
  KVM_EXIT_EXCEPTION: 1,
  KVM_EXIT_IO: 2,
  KVM_EXIT_HYPERCALL: 3,
  KVM_EXIT_DEBUG: 4,
  KVM_EXIT_HLT: 5,
  KVM_EXIT_MMIO: 6,
  KVM_EXIT_IRQ_WINDOW_OPEN: 7,
  KVM_EXIT_SHUTDOWN: 8,
  KVM_EXIT_FAIL_ENTRY: 9,
  KVM_EXIT_INTR: 10,
  KVM_EXIT_INTERNAL_ERROR: 17,
  KVM_EXIT_SYSTEM_EVENT: 24,
} as const

export const KVM = {
  KVM_API_VERSION: 12,
  KVM_EXIT_IO_IN: 0,
  KVM_EXIT_IO_OUT: 1,
  KVM_MEM_LOG_DIRTY_PAGES: 1,
  KVM_MEM_READONLY: 2,
  KVM_IRQFD_FLAG_DEASSIGN: 1,
  KVM_IOEVENTFD_FLAG_DATAMATCH: 1,
  KVM_IOEVENTFD_FLAG_DEASSIGN: 4,
  KVM_PIT_SPEAKER_DUMMY: 1,
  KVM_MP_STATE_RUNNABLE: 0,
  KVM_MP_STATE_UNINITIALIZED: 1,
  KVM_CPUID_FLAG_SIGNIFCANT_INDEX: 1,
  KVM_IRQCHIP_PIC_MASTER: 0,
  KVM_IRQCHIP_PIC_SLAVE: 1,
  KVM_IRQCHIP_IOAPIC: 2,
  KVM_INTERNAL_ERROR_EMULATION: 1,
  KVM_INTERNAL_ERROR_SIMUL_EX: 2,
  KVM_INTERNAL_ERROR_DELIVERY_EV: 3,
  KVM_INTERNAL_ERROR_UNEXPECTED_EXIT_REASON: 4,
  KVM_SYSTEM_EVENT_SHUTDOWN: 1,
  KVM_SYSTEM_EVENT_RESET: 2,
  KVM_SYSTEM_EVENT_CRASH: 3,
} as const
