/** Puts a kernel, its initrd, its command line and the firmware's tables in guest memory; gives the boot CPU's state. */
import type { GuestMemory } from '../../memory/guest-memory.ts'
import { MIB } from '../../memory/layout.ts'
import { writeAcpiTables } from '../acpi/tables.ts'
import { COMMAND_LINE, COMMAND_LINE_MAX } from '../address-map.ts'
import { MachineError } from '../errors.ts'
import type { EntryState } from './cpu-state.ts'
import { type ElfKernel, elfEnd } from './elf.ts'
import { placeInitrd } from './initrd.ts'
import { type KernelFile, openKernel } from './kernel-image.ts'
import { prepareLinux64 } from './linux64.ts'
import { writeMpTable } from './mp-table.ts'
import { preparePvh } from './pvh.ts'
import { writeResetVector } from './reset-vector.ts'

/** How the kernel is entered: by PVH when it has that entry, unless asked otherwise. */
export type BootProtocol = 'pvh' | 'linux64'

export interface BootSettings {
  /** An ELF vmlinux or a bzImage: its bytes, or its file. */
  readonly kernel: Uint8Array | KernelFile
  readonly initrd?: Uint8Array | undefined
  readonly commandLine: string
  readonly cpus: number
  /** How many device windows the firmware tells of. */
  readonly slots: number
  readonly protocol?: BootProtocol | undefined
  /** 16 bytes that are unique to this run of the machine. */
  readonly generationId: Uint8Array
}

export function loadGuest(memory: GuestMemory, settings: BootSettings): EntryState {
  const kernel = openKernel(settings.kernel)
  try {
    return loadKernel(memory, kernel, settings)
  } finally {
    kernel.source.close()
  }
}

function loadKernel(memory: GuestMemory, kernel: ElfKernel, settings: BootSettings): EntryState {
  const protocol = settings.protocol ?? (kernel.pvhEntry === undefined ? 'linux64' : 'pvh')
  if (protocol === 'pvh' && kernel.pvhEntry === undefined) {
    throw new MachineError('BAD_KERNEL', 'the kernel has no PVH entry (CONFIG_PVH): boot it with the 64-bit protocol')
  }
  loadSegments(memory, kernel)
  const initrd = settings.initrd ? placeInitrd(memory, settings.initrd.length, elfEnd(kernel)) : undefined
  if (initrd) memory.write(initrd.address, settings.initrd!)
  const commandLineSize = writeCommandLine(memory, settings.commandLine)
  writeMpTable(memory, settings.cpus)
  writeResetVector(memory)
  const rsdp = writeAcpiTables(memory, settings)
  return protocol === 'pvh'
    ? preparePvh(memory, { entry: kernel.pvhEntry!, initrd, rsdp })
    : prepareLinux64(memory, { entry: kernel.entry, initrd, rsdp, commandLineSize })
}

function loadSegments(memory: GuestMemory, kernel: ElfKernel): void {
  const end = elfEnd(kernel)
  const top = memory.regions[0]!.size
  if (end > top) {
    throw new MachineError(
      'DOES_NOT_FIT',
      `the kernel needs memory up to ${(end / MIB).toFixed(1)} MiB, the machine has ${top / MIB} MiB below its MMIO ` +
        `window: give it at least ${Math.ceil(end / MIB) + 32} MiB`,
    )
  }
  for (const segment of kernel.segments) {
    kernel.source.load(memory, segment.address, segment.fileOffset, segment.fileSize)
    memory.slice(segment.address + segment.fileSize, segment.memorySize - segment.fileSize).fill(0)
  }
}

/** The size without the final NUL. */
function writeCommandLine(memory: GuestMemory, commandLine: string): number {
  const bytes = new TextEncoder().encode(commandLine)
  if (bytes.length >= COMMAND_LINE_MAX) {
    throw new MachineError(
      'BAD_SETTING',
      `the kernel's command line has ${bytes.length} bytes; x86 kernels take at most ${COMMAND_LINE_MAX - 1}`,
    )
  }
  if (bytes.includes(0)) throw new MachineError('BAD_SETTING', "the kernel's command line contains a NUL character")
  memory.write(COMMAND_LINE, bytes)
  memory.writeU8(COMMAND_LINE + bytes.length, 0)
  return bytes.length
}
