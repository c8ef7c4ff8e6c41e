/**
 * ELF64 kernels: which segments to load where, and how to enter. System V ABI (gABI), chapters 4 and 5; the PVH note is
 * XEN_ELFNOTE_PHYS32_ENTRY of Xen's public/elfnote.h.
 */
import { HIGH_MEMORY } from '../address-map.ts'
import { MachineError } from '../errors.ts'
import type { KernelSource } from './kernel-source.ts'

const EM_X86_64 = 62
const PT_LOAD = 1
const PT_NOTE = 4
const XEN_ELFNOTE_PHYS32_ENTRY = 18
const MAX_PROGRAM_HEADERS = 128
const MAX_NOTES = 1024 * 1024

const MACHINES: Record<number, string> = {
  3: 'i386',
  40: 'ARM',
  183: 'AArch64',
  243: 'RISC-V',
  22: 's390',
  21: 'PowerPC',
}

export interface ElfSegment {
  readonly fileOffset: number
  readonly fileSize: number
  readonly address: number
  readonly memorySize: number
}

export interface ElfKernel {
  readonly source: KernelSource
  readonly segments: readonly ElfSegment[]
  /** Physical address of the 64-bit entry. */
  readonly entry: number
  /** Physical address of the PVH entry, if the kernel has one. */
  readonly pvhEntry: number | undefined
}

const bad = (what: string): MachineError => new MachineError('BAD_KERNEL', `the kernel ${what}`)
const damaged = (what: string): MachineError => bad(`${what}; fetch or build it again`)

export const isElf = (image: Uint8Array): boolean =>
  image.length >= 4 && image[0] === 0x7f && image[1] === 0x45 && image[2] === 0x4c && image[3] === 0x46

export function parseElf(source: KernelSource): ElfKernel {
  const header = source.read(0, 64)
  if (!isElf(header)) throw bad('is not an ELF file')
  if (header.length < 64) throw damaged(`is truncated: ${header.length} bytes do not even hold an ELF header`)
  const view = viewOf(header)
  if (header[4] !== 2) throw bad('is a 32-bit ELF file: give a 64-bit x86-64 vmlinux')
  if (header[5] !== 1) throw bad('is a big-endian ELF file: give a 64-bit x86-64 vmlinux')
  const machine = view.getUint16(18, true)
  if (machine !== EM_X86_64) {
    const name = MACHINES[machine] ?? `machine ${machine}`
    throw bad(`is for another architecture (${name}): give one for x86-64`)
  }
  const type = view.getUint16(16, true)
  if (type !== 2 && type !== 3) throw bad(`is an ELF file of type ${type}, not an executable: give a linked vmlinux`)
  const entry = readAddress(view, 24, 'entry point')
  const tableOffset = readAddress(view, 32, 'program header offset')
  const entrySize = view.getUint16(54, true)
  const count = view.getUint16(56, true)
  if (count === 0) throw bad('has no program headers: it is an object file, not a linked vmlinux')
  if (count > MAX_PROGRAM_HEADERS) throw bad(`claims ${count} program headers; ${MAX_PROGRAM_HEADERS} are allowed`)
  if (entrySize < 56) throw bad(`has program headers of ${entrySize} bytes; ELF64 needs 56`)
  if (tableOffset + count * entrySize > source.size) throw damaged('is truncated: its program headers lie past its end')
  const table = viewOf(source.read(tableOffset, count * entrySize))

  const segments: ElfSegment[] = []
  let pvhEntry: number | undefined
  for (let i = 0; i < count; i++) {
    const at = i * entrySize
    const kind = table.getUint32(at, true)
    if (kind !== PT_LOAD && kind !== PT_NOTE) continue
    const fileOffset = readAddress(table, at + 8, 'segment offset')
    const fileSize = readAddress(table, at + 32, 'segment size')
    if (fileOffset + fileSize > source.size) {
      throw damaged(
        `is truncated: program header ${i} needs ${fileOffset + fileSize} bytes, the file has ${source.size}`,
      )
    }
    if (kind === PT_NOTE) {
      if (fileSize > MAX_NOTES) throw damaged(`is corrupt: it has ${fileSize} bytes of notes`)
      pvhEntry ??= findPvhEntry(viewOf(source.read(fileOffset, fileSize)))
      continue
    }
    const memorySize = readAddress(table, at + 40, 'segment memory size')
    if (memorySize < fileSize) throw damaged(`is corrupt: segment ${i} is larger in the file than in memory`)
    if (memorySize === 0) continue
    segments.push({ fileOffset, fileSize, address: readAddress(table, at + 24, 'segment address'), memorySize })
  }
  if (segments.length === 0) throw bad('has nothing to load')
  checkPlacement(segments)
  const inSegment = (address: number) => segments.some(s => address >= s.address && address < s.address + s.memorySize)
  if (!inSegment(entry)) throw bad(`has its entry point 0x${entry.toString(16)} outside its segments`)
  if (pvhEntry !== undefined && !inSegment(pvhEntry)) {
    throw bad(`has its PVH entry point 0x${pvhEntry.toString(16)} outside its segments`)
  }
  return { source, segments, entry, pvhEntry }
}

const viewOf = (bytes: Uint8Array): DataView => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)

/** The first address behind everything that is loaded. */
export const elfEnd = (kernel: ElfKernel): number =>
  kernel.segments.reduce((end, segment) => Math.max(end, segment.address + segment.memorySize), 0)

function checkPlacement(segments: readonly ElfSegment[]): void {
  const sorted = [...segments].sort((a, b) => a.address - b.address)
  let end = HIGH_MEMORY
  for (const segment of sorted) {
    const at = `0x${segment.address.toString(16)}`
    if (segment.address < HIGH_MEMORY) throw bad(`wants to be loaded at ${at}, below 1 MiB, where boot data is`)
    if (segment.address < end) throw damaged(`is corrupt: two segments overlap at ${at}`)
    end = segment.address + segment.memorySize
  }
}

/** A 64-bit number that has to be an exact one: addresses and sizes of real kernels are far below 2^53. */
function readAddress(view: DataView, offset: number, what: string): number {
  const high = view.getUint32(offset + 4, true)
  if (high >= 0x10_0000) {
    throw damaged(`is corrupt: its ${what} is 0x${view.getBigUint64(offset, true).toString(16)}`)
  }
  return high * 0x1_0000_0000 + view.getUint32(offset, true)
}

function findPvhEntry(view: DataView): number | undefined {
  const end = view.byteLength
  let at = 0
  while (at + 12 <= end) {
    const nameSize = view.getUint32(at, true)
    const dataSize = view.getUint32(at + 4, true)
    const type = view.getUint32(at + 8, true)
    const data = at + 12 + align4(nameSize)
    const next = data + align4(dataSize)
    if (next > end) throw damaged('is corrupt: a note runs past its segment')
    // "Xen\0"
    if (type === XEN_ELFNOTE_PHYS32_ENTRY && nameSize === 4 && view.getUint32(at + 12, true) === 0x006e6558) {
      if (dataSize !== 4 && dataSize !== 8) throw damaged(`is corrupt: its PVH note has ${dataSize} bytes`)
      return view.getUint32(data, true)
    }
    at = next
  }
  return undefined
}

const align4 = (value: number): number => Math.ceil(value / 4) * 4
