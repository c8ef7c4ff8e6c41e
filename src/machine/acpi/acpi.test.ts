/** The ACPI tables, read back by ACPICA's own disassembler and compiler. */
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { GuestMemory } from '../../memory/guest-memory.ts'
import { slotAddress, VM_GENERATION_ID } from '../address-map.ts'
import { integer, namePath, resources, scope } from './aml.ts'
import { writeAcpiTables } from './tables.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-acpi-'))
afterAll(() => rmSync(folder, { recursive: true }))

const sum = (bytes: Uint8Array): number => bytes.reduce((total, byte) => (total + byte) & 0xff, 0)

describe('ACPI tables', () => {
  const memory = GuestMemory.create(16)
  const id = Uint8Array.from({ length: 16 }, (_, i) => i + 1)
  const tables = new Map<string, Uint8Array>()
  const listings = new Map<string, string>()

  beforeAll(() => {
    const rsdp = writeAcpiTables(memory, { cpus: 3, slots: 16, generationId: id })
    expect(sum(memory.slice(rsdp, 20))).toBe(0)
    expect(sum(memory.slice(rsdp, 36))).toBe(0)
    const take = (at: number): Uint8Array => {
      const bytes = memory.slice(at, memory.readU32(at + 4))
      tables.set(Buffer.from(bytes.subarray(0, 4)).toString(), bytes)
      return bytes
    }
    const xsdt = take(Number(memory.readU64(rsdp + 24)))
    for (let at = 36; at < xsdt.length; at += 8) take(Number(Buffer.from(xsdt).readBigUInt64LE(at)))
    take(Number(Buffer.from(tables.get('FACP')!).readBigUInt64LE(140)))
  })

  it('has the right tables with the right sums', () => {
    expect([...tables.keys()].sort()).toEqual(['APIC', 'DSDT', 'FACP', 'XSDT'])
    for (const [name, bytes] of tables) expect([name, sum(bytes)]).toEqual([name, 0])
    expect([...memory.slice(VM_GENERATION_ID, 16)]).toEqual([...id])
  })

  it('disassembles without complaint', () => {
    for (const [name, bytes] of tables) {
      const file = join(folder, `${name}.aml`)
      writeFileSync(file, bytes)
      const output = execFileSync('iasl', ['-d', file], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })
      expect(output).not.toMatch(/error|warning|invalid/i)
      listings.set(name, readFileSync(join(folder, `${name}.dsl`), 'utf8'))
    }
    expect(listings.get('FACP')).toMatch(/Hardware Reduced \(V5\) : 1/)
    expect(listings.get('FACP')).toMatch(/Reset Register Supported \(V2\) : 1/)
    expect(listings.get('APIC')!.match(/Processor Local APIC\]/g)).toHaveLength(3)
    expect(listings.get('APIC')).toMatch(/I\/O APIC\]/)
  })

  it('names every device, and the compiler accepts the listing', () => {
    const dsdt = listings.get('DSDT')!
    expect(dsdt.match(/"LNRO0005"/g)).toHaveLength(16)
    for (const id of ['PNP0501', 'PNP0C0C']) expect(dsdt).toContain(`EisaId ("${id}")`)
    for (const id of ['VMGENCTR', 'ACPI0013']) expect(dsdt).toContain(`"${id}"`)
    expect(dsdt).toContain(`0x${slotAddress(15).toString(16).toUpperCase()}`)
    expect(dsdt).toMatch(/Notify \(\\_SB\.VGEN, 0x80\)/)
    expect(dsdt).toMatch(/Name \(\\?_?S5/)
    // 6035: the id that Linux knows, VMGENCTR, does not have the form of an ACPI id.
    const output = execFileSync('iasl', ['-ve', '-vw', '6035', join(folder, 'DSDT.dsl')], { encoding: 'utf8' })
    expect(output).not.toMatch(/Error {4}\d/)
  })
})

describe('AML', () => {
  it('encodes lengths and names at their edges', () => {
    expect(integer(0xff)).toEqual([0x0a, 0xff])
    expect(integer(0x100)).toEqual([0x0b, 0, 1])
    expect(scope('\\_SB', new Array<number>(56).fill(0))[1]).toBe(0x3e)
    const long = scope('\\_SB', new Array<number>(60).fill(0))
    expect([long[1], long[2]]).toEqual([0x40 | ((65 + 2) & 0xf), (65 + 2) >> 4])
    expect(() => namePath('toolong')).toThrow(/not an AML name/)
    expect(resources().slice(-2)).toEqual([0x79, 0])
  })
})
