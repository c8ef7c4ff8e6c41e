/**
 * The 64-bit Linux boot protocol: long mode, the first GiB identity-mapped, RSI at `struct boot_params`.
 * Documentation/arch/x86/boot.rst, "64-bit Boot Protocol", and zero-page.rst.
 */
import type { CpuRegisters, SystemRegisters } from '../../accel/contract.ts'
import type { GuestMemory } from '../../memory/guest-memory.ts'
import { BOOT_STACK, COMMAND_LINE, PD_ADDRESS, PDPT_ADDRESS, PML4_ADDRESS, ZERO_PAGE } from '../address-map.ts'
import { CODE_64, DATA_32, type EntryState, general, TSS_64, writeGdt } from './cpu-state.ts'
import type { InitrdPlacement } from './initrd.ts'
import { guestMemoryMap } from './memory-map.ts'

/** Offsets in `struct boot_params`. */
const ACPI_RSDP_ADDR = 0x70
const E820_ENTRIES = 0x1e8
const BOOT_FLAG = 0x1fe
const HEADER = 0x202
const VERSION = 0x206
const TYPE_OF_LOADER = 0x210
const LOADFLAGS = 0x211
const RAMDISK_IMAGE = 0x218
const RAMDISK_SIZE = 0x21c
const CMD_LINE_PTR = 0x228
const KERNEL_ALIGNMENT = 0x230
const CMDLINE_SIZE = 0x238
const E820_TABLE = 0x2d0

const LOADED_HIGH = 1
const PRESENT_WRITABLE = 3
const PRESENT_WRITABLE_LARGE = 0x83
const CR0_PE = 1n
const CR0_ET = 0x10n
const CR0_PG = 0x8000_0000n
const CR4_PAE = 0x20n
const EFER_LME = 0x100n
const EFER_LMA = 0x400n

export interface Linux64Settings {
  readonly entry: number
  readonly initrd: InitrdPlacement | undefined
  readonly rsdp: number
  readonly commandLineSize: number
}

export function prepareLinux64(memory: GuestMemory, settings: Linux64Settings): EntryState {
  writeZeroPage(memory, settings)
  writePageTables(memory)
  const tables = writeGdt(memory, CODE_64, DATA_32, TSS_64)
  const registers: CpuRegisters = {
    general: general({ rsi: ZERO_PAGE, rsp: BOOT_STACK, rbp: BOOT_STACK }),
    rip: BigInt(settings.entry),
    rflags: 2n,
  }
  const system: Partial<SystemRegisters> = {
    ...tables,
    cr0: CR0_PE | CR0_ET | CR0_PG,
    cr3: BigInt(PML4_ADDRESS),
    cr4: CR4_PAE,
    efer: EFER_LME | EFER_LMA,
  }
  return { registers, system }
}

function writeZeroPage(memory: GuestMemory, { initrd, rsdp, commandLineSize }: Linux64Settings): void {
  memory.slice(ZERO_PAGE, 4096).fill(0)
  memory.writeU64(ZERO_PAGE + ACPI_RSDP_ADDR, BigInt(rsdp))
  memory.writeU16(ZERO_PAGE + BOOT_FLAG, 0xaa55)
  memory.writeU32(ZERO_PAGE + HEADER, 0x5372_6448)
  memory.writeU16(ZERO_PAGE + VERSION, 0x20f)
  memory.writeU8(ZERO_PAGE + TYPE_OF_LOADER, 0xff)
  memory.writeU8(ZERO_PAGE + LOADFLAGS, LOADED_HIGH)
  memory.writeU32(ZERO_PAGE + CMD_LINE_PTR, COMMAND_LINE)
  memory.writeU32(ZERO_PAGE + CMDLINE_SIZE, commandLineSize)
  memory.writeU32(ZERO_PAGE + KERNEL_ALIGNMENT, 0x0100_0000)
  if (initrd) {
    memory.writeU32(ZERO_PAGE + RAMDISK_IMAGE, initrd.address)
    memory.writeU32(ZERO_PAGE + RAMDISK_SIZE, initrd.size)
  }
  const map = guestMemoryMap(memory)
  memory.writeU8(ZERO_PAGE + E820_ENTRIES, map.length)
  map.forEach((range, i) => {
    const at = ZERO_PAGE + E820_TABLE + i * 20
    memory.writeU64(at, BigInt(range.address))
    memory.writeU64(at + 8, BigInt(range.size))
    memory.writeU32(at + 16, range.type)
  })
}

/** The first GiB, in 2 MiB pages. */
function writePageTables(memory: GuestMemory): void {
  memory.slice(PML4_ADDRESS, 0x3000).fill(0)
  memory.writeU64(PML4_ADDRESS, BigInt(PDPT_ADDRESS | PRESENT_WRITABLE))
  memory.writeU64(PDPT_ADDRESS, BigInt(PD_ADDRESS | PRESENT_WRITABLE))
  for (let i = 0; i < 512; i++) {
    memory.writeU64(PD_ADDRESS + i * 8, BigInt(i * 0x20_0000 + PRESENT_WRITABLE_LARGE))
  }
}
