/** Where things are in the guest's physical address space, in address order. The README of this folder draws it. */
import { MMIO_HOLE_END, MMIO_HOLE_START } from '../memory/layout.ts'

/** The null, code, data and TSS descriptors of the boot CPU. */
export const GDT_ADDRESS = 0x500
export const IDT_ADDRESS = 0x520
/** PVH: `struct hvm_start_info`, then its module list and its memory map. */
export const PVH_START_INFO = 0x6000
export const PVH_MODULE_LIST = 0x6040
export const PVH_MEMORY_MAP = 0x6080
/** 64-bit protocol: `struct boot_params`, a page. */
export const ZERO_PAGE = 0x7000
export const BOOT_STACK = 0x8ff0
/** Identity page tables of the first GiB: one page a level. */
export const PML4_ADDRESS = 0x9000
export const PDPT_ADDRESS = 0xa000
export const PD_ADDRESS = 0xb000
export const COMMAND_LINE = 0x2_0000
/** With its final NUL; x86's COMMAND_LINE_SIZE. */
export const COMMAND_LINE_MAX = 2048
/** Conventional memory ends here; the extended BIOS data area holds the MP table, where kernels look for it. */
export const EBDA_START = 0x9_fc00
export const MP_TABLE = EBDA_START
/** ACPI: the RSDP is searched for from here to 1 MiB, on 16-byte boundaries. */
export const ACPI_START = 0xe_0000
/** 16 bytes of VM generation id, 8-aligned, in reserved memory. */
export const VM_GENERATION_ID = 0xf_f000
export const ACPI_END = VM_GENERATION_ID
/** Where real mode restarts a machine: F000:FFF0. */
export const RESET_VECTOR = 0xf_fff0
/** Extended memory: kernels are loaded from here up. */
export const HIGH_MEMORY = 0x10_0000

/** The MMIO hole: virtio-mmio windows, then the interrupt controllers. */
export const MMIO_START = MMIO_HOLE_START
export const VIRTIO_MMIO_START = 0xc000_1000
export const VIRTIO_MMIO_SIZE = 0x1000
export const IOAPIC_ADDRESS = 0xfec0_0000
export const LOCAL_APIC_ADDRESS = 0xfee0_0000
export const MMIO_END = MMIO_HOLE_END

/** Ports. */
export const PORT_CMOS = 0x70
export const PORT_I8042_DATA = 0x60
export const PORT_I8042_COMMAND = 0x64
export const PORT_COM1 = 0x3f8
/** Hardware-reduced ACPI: sleep control, sleep status, reset; a byte each. */
export const PORT_ACPI_SLEEP_CONTROL = 0x600
export const PORT_ACPI_SLEEP_STATUS = 0x601
export const PORT_ACPI_RESET = 0x602
/** What to write there: SLP_EN | SLP_TYP << 2 of \_S5, and the reset value. */
export const ACPI_S5_TYPE = 5
export const ACPI_RESET_VALUE = 0x01

/** Interrupts, by global system interrupt. */
export const GSI_COM1 = 4
/** The generic event device: the VM generation changed; the power button was pressed. */
export const GSI_VM_GENERATION = 22
export const GSI_POWER_BUTTON = 23

/** The GSI of each device slot: from 5, without the RTC's 8. */
export const SLOT_GSIS: readonly number[] = [5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21]
export const MAX_SLOTS = SLOT_GSIS.length

export const slotAddress = (index: number): number => VIRTIO_MMIO_START + index * VIRTIO_MMIO_SIZE

export const MAX_CPUS = 32
