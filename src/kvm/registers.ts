/** General and system registers: between the contract's types and KVM's structures. */
import {
  type CpuRegisters,
  type DescriptorTable,
  GENERAL_REGISTERS,
  type Segment,
  type SystemRegisters,
} from '../accel/contract.ts'
import { KvmError } from './errors.ts'
import { ioctl } from './ioctl.ts'
import { DTABLE, REGS, SEGMENT, SREGS } from './structs.ts'

export function getRegisters(fd: number): CpuRegisters {
  const regs = REGS.create()
  ioctl(fd, 'KVM_GET_REGS', regs.bytes)
  return { general: GENERAL_REGISTERS.map(name => regs.get(name)), rip: regs.get('rip'), rflags: regs.get('rflags') }
}

export function setRegisters(fd: number, registers: CpuRegisters): void {
  if (registers.general.length !== GENERAL_REGISTERS.length) {
    throw new KvmError('BAD_ARGUMENT', `${registers.general.length} general registers given; there are 16`)
  }
  const regs = REGS.create()
  GENERAL_REGISTERS.forEach((name, i) => void regs.set(name, BigInt.asUintN(64, registers.general[i]!)))
  regs.set('rip', registers.rip).set('rflags', registers.rflags)
  ioctl(fd, 'KVM_SET_REGS', regs.bytes)
}

const SEGMENTS = ['cs', 'ds', 'es', 'fs', 'gs', 'ss', 'tr', 'ldt'] as const
const TABLES = ['gdt', 'idt'] as const

export function getSystemRegisters(fd: number): SystemRegisters {
  const sregs = SREGS.create()
  ioctl(fd, 'KVM_GET_SREGS', sregs.bytes)
  const segment = (name: (typeof SEGMENTS)[number]) => decodeSegment(sregs.sub(name))
  const table = (name: (typeof TABLES)[number]) => decodeTable(sregs.sub(name))
  return {
    cs: segment('cs'),
    ds: segment('ds'),
    es: segment('es'),
    fs: segment('fs'),
    gs: segment('gs'),
    ss: segment('ss'),
    tr: segment('tr'),
    ldt: segment('ldt'),
    gdt: table('gdt'),
    idt: table('idt'),
    cr0: sregs.get('cr0'),
    cr2: sregs.get('cr2'),
    cr3: sregs.get('cr3'),
    cr4: sregs.get('cr4'),
    cr8: sregs.get('cr8'),
    efer: sregs.get('efer'),
    apicBase: sregs.get('apic_base'),
  }
}

/** The pending-interrupt bitmap is left clear: a CPU whose registers are written has none. */
export function setSystemRegisters(fd: number, system: SystemRegisters): void {
  const sregs = SREGS.create()
  for (const name of SEGMENTS) encodeSegment(sregs.sub(name), system[name])
  for (const name of TABLES)
    DTABLE.over(sregs.sub(name)).set('base', system[name].base).set('limit', system[name].limit)
  sregs.set('cr0', system.cr0).set('cr2', system.cr2).set('cr3', system.cr3).set('cr4', system.cr4)
  sregs.set('cr8', system.cr8).set('efer', system.efer).set('apic_base', system.apicBase)
  ioctl(fd, 'KVM_SET_SREGS', sregs.bytes)
}

/** The contract's attributes are a descriptor's bits 40-47 (at 0-7) and 52-55 (at 12-15); KVM has a byte for each. */
function decodeSegment(bytes: Uint8Array): Segment {
  const s = SEGMENT.over(bytes)
  const attributes = s.get('unusable')
    ? 0
    : s.get('type') |
      (s.get('s') << 4) |
      (s.get('dpl') << 5) |
      (s.get('present') << 7) |
      (s.get('avl') << 12) |
      (s.get('l') << 13) |
      (s.get('db') << 14) |
      (s.get('g') << 15)
  return { selector: s.get('selector'), base: s.get('base'), limit: s.get('limit'), attributes }
}

function encodeSegment(bytes: Uint8Array, { selector, base, limit, attributes }: Segment): void {
  const present = (attributes >> 7) & 1
  SEGMENT.over(bytes)
    .set('selector', selector)
    .set('base', base)
    .set('limit', limit)
    .set('type', attributes & 15)
    .set('s', (attributes >> 4) & 1)
    .set('dpl', (attributes >> 5) & 3)
    .set('present', present)
    .set('avl', (attributes >> 12) & 1)
    .set('l', (attributes >> 13) & 1)
    .set('db', (attributes >> 14) & 1)
    .set('g', (attributes >> 15) & 1)
    // VT-x has a flag for a segment that was loaded with a null selector (SDM 3C 25.4.1); not present means the same.
    .set('unusable', 1 - present)
}

function decodeTable(bytes: Uint8Array): DescriptorTable {
  const table = DTABLE.over(bytes)
  return { base: table.get('base'), limit: table.get('limit') }
}
