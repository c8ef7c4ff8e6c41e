/** The static ACPI tables (ACPI specification 6.5, chapter 5), hardware-reduced: there is no PM timer, no SCI, no SMI. */
import type { GuestMemory } from '../../memory/guest-memory.ts'
import {
  ACPI_END,
  ACPI_RESET_VALUE,
  ACPI_START,
  IOAPIC_ADDRESS,
  LOCAL_APIC_ADDRESS,
  PORT_ACPI_RESET,
  PORT_ACPI_SLEEP_CONTROL,
  PORT_ACPI_SLEEP_STATUS,
  VM_GENERATION_ID,
} from '../address-map.ts'
import { ByteWriter, checksum } from '../byte-writer.ts'
import { MachineError } from '../errors.ts'
import { dsdtBody } from './dsdt.ts'

const OEM_ID = 'VITRIN'
const OEM_TABLE_ID = 'VITRINE '

/** FADT flags, table 5.10. */
const WBINVD = 1 << 0
const RESET_REG_SUP = 1 << 10
const HW_REDUCED_ACPI = 1 << 20
/** FADT IA-PC boot flags, table 5.11: no VGA, no MSI; nor is an i8042 claimed, which spares kernels probing for a keyboard. */
const NO_VGA = 1 << 2
const NO_MSI = 1 << 3
/** Address spaces of a generic address, table 5.1. */
const SYSTEM_IO = 1
const BYTE_ACCESS = 1

export interface AcpiSettings {
  readonly cpus: number
  readonly slots: number
  readonly generationId: Uint8Array
}

/** Writes all tables below 1 MiB; the address of the RSDP. */
export function writeAcpiTables(memory: GuestMemory, { cpus, slots, generationId }: AcpiSettings): number {
  if (generationId.length !== 16) throw new MachineError('BAD_SETTING', 'a VM generation id has 16 bytes')
  memory.write(VM_GENERATION_ID, generationId)
  // The RSDP has to be on a 16-byte boundary; the rest follows it, 16-aligned for neatness.
  let next = ACPI_START + 48
  const place = (table: Uint8Array): number => {
    const at = next
    next = Math.ceil((at + table.length) / 16) * 16
    if (next > ACPI_END) throw new MachineError('DOES_NOT_FIT', 'the ACPI tables do not fit below 1 MiB')
    memory.write(at, table)
    return at
  }
  const dsdt = place(table('DSDT', 2, body => body.put(dsdtBody(slots))))
  const fadt = place(fadtTable(dsdt))
  const madt = place(madtTable(cpus))
  const xsdt = place(table('XSDT', 1, body => body.u64(fadt).u64(madt)))
  const rsdp = new ByteWriter().text('RSD PTR ', 8).u8(0).text(OEM_ID, 6).u8(2).u32(0)
  rsdp.u32(36).u64(xsdt).u8(0).zeros(3)
  // Two sums: the first 20 bytes for ACPI 1.0, then all of it.
  rsdp.setU8(8, checksum(rsdp.bytes.subarray(0, 20)))
  rsdp.setU8(32, checksum(rsdp.bytes))
  memory.write(ACPI_START, rsdp.bytes)
  return ACPI_START
}

/** A table with the common header of 5.2.6. */
function table(signature: string, revision: number, fill: (body: ByteWriter) => void): Uint8Array {
  const writer = new ByteWriter().text(signature, 4).u32(0).u8(revision).u8(0)
  writer.text(OEM_ID, 6).text(OEM_TABLE_ID, 8).u32(1).text('VTRN', 4).u32(1)
  fill(writer)
  writer.setU32(4, writer.length)
  writer.setU8(9, checksum(writer.bytes))
  return writer.bytes
}

const port = (writer: ByteWriter, address: number): ByteWriter =>
  writer.u8(SYSTEM_IO).u8(8).u8(0).u8(BYTE_ACCESS).u64(address)

/** 5.2.9, revision 6: everything about PM1, PM timer and GPE blocks is zero. */
function fadtTable(dsdt: number): Uint8Array {
  const bytes = table('FACP', 6, body => {
    body.u32(0).u32(dsdt).u8(0).u8(0).u16(0).u32(0)
    // ACPI enable/disable values up to the century register's index, bytes 52 to 108.
    body.zeros(56).u8(0x32)
    body.u16(NO_VGA | NO_MSI).u8(0)
    body.u32(WBINVD | RESET_REG_SUP | HW_REDUCED_ACPI)
    port(body, PORT_ACPI_RESET).u8(ACPI_RESET_VALUE)
    // ARM flags, minor version 5, then X_FIRMWARE_CTRL and X_DSDT.
    body.u16(0).u8(5).u64(0).u64(dsdt)
    // Eight blocks that hardware-reduced ACPI has not.
    body.zeros(8 * 12)
    port(body, PORT_ACPI_SLEEP_CONTROL)
    port(body, PORT_ACPI_SLEEP_STATUS)
    body.text('VITRINE', 8, 0)
  })
  if (bytes.length !== 276) throw new Error(`the FADT has ${bytes.length} bytes, not 276`)
  return bytes
}

/** 5.2.12: a local APIC a CPU, one IOAPIC, NMI on LINT1 of all. */
function madtTable(cpus: number): Uint8Array {
  return table('APIC', 5, body => {
    body.u32(LOCAL_APIC_ADDRESS).u32(1)
    for (let id = 0; id < cpus; id++) body.u8(0).u8(8).u8(id).u8(id).u32(1)
    body
      .u8(1)
      .u8(12)
      .u8(cpus + 1)
      .u8(0)
      .u32(IOAPIC_ADDRESS)
      .u32(0)
    body.u8(4).u8(6).u8(0xff).u16(0).u8(1)
  })
}
