/**
 * The MultiProcessor tables, for kernels without ACPI: MultiProcessor Specification 1.4, chapter 4. The floating pointer
 * stands at the start of the EBDA, the configuration table behind it.
 */
import type { GuestMemory } from '../../memory/guest-memory.ts'
import { IOAPIC_ADDRESS, LOCAL_APIC_ADDRESS, MP_TABLE } from '../address-map.ts'
import { ByteWriter, checksum } from '../byte-writer.ts'

const SPEC_1_4 = 4
const APIC_VERSION = 0x14
const CPU_ENABLED = 1
const CPU_BOOT = 2
const CPU_STEPPING = 0x600
const FEATURE_FPU_APIC = 0x201
const ISA_SOURCES = 24
const INTERRUPT = 0
const NMI = 1
const EXT_INT = 3
const ALL_LOCAL_APICS = 0xff

export function writeMpTable(memory: GuestMemory, cpus: number): void {
  const configuration = MP_TABLE + 16
  const pointer = new ByteWriter().text('_MP_', 4).u32(configuration).u8(1).u8(SPEC_1_4).u8(0).zeros(5)
  pointer.setU8(10, checksum(pointer.bytes))
  memory.write(MP_TABLE, pointer.bytes)

  const ioApicId = cpus + 1
  const table = new ByteWriter()
  table.text('PCMP', 4).u16(0).u8(SPEC_1_4).u8(0).text('VITRINE', 8).text('MICROVM', 12)
  table.u32(0).u16(0).u16(0).u32(LOCAL_APIC_ADDRESS).u16(0).u8(0).u8(0)
  let entries = 0
  for (let id = 0; id < cpus; id++, entries++) {
    table.u8(0).u8(id).u8(APIC_VERSION)
    table.u8(CPU_ENABLED | (id === 0 ? CPU_BOOT : 0))
    table.u32(CPU_STEPPING).u32(FEATURE_FPU_APIC).zeros(8)
  }
  table.u8(1).u8(0).text('ISA', 6)
  table.u8(2).u8(ioApicId).u8(APIC_VERSION).u8(1).u32(IOAPIC_ADDRESS)
  entries += 2
  for (let irq = 0; irq < ISA_SOURCES; irq++, entries++) {
    table.u8(3).u8(INTERRUPT).u16(0).u8(0).u8(irq).u8(ioApicId).u8(irq)
  }
  table.u8(4).u8(EXT_INT).u16(0).u8(0).u8(0).u8(0).u8(0)
  table.u8(4).u8(NMI).u16(0).u8(0).u8(0).u8(ALL_LOCAL_APICS).u8(1)
  entries += 2
  table.setU16(4, table.length)
  table.setU16(34, entries)
  table.setU8(7, checksum(table.bytes))
  memory.write(configuration, table.bytes)
}
