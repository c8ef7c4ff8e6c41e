/** Where the initial RAM disk goes: page-aligned, as high in low RAM as it fits, clear of the kernel. */
import type { GuestMemory } from '../../memory/guest-memory.ts'
import { MIB } from '../../memory/layout.ts'
import { MachineError } from '../errors.ts'

const PAGE = 4096

export interface InitrdPlacement {
  readonly address: number
  readonly size: number
}

export function placeInitrd(memory: GuestMemory, size: number, kernelEnd: number): InitrdPlacement {
  if (size === 0) throw new MachineError('BAD_INITRD', 'the initrd is empty: leave it out, or give one with contents')
  const top = memory.regions[0]!.size
  const address = Math.floor((top - size) / PAGE) * PAGE
  if (address < kernelEnd) {
    const needed = Math.ceil((kernelEnd + size + PAGE) / MIB)
    throw new MachineError(
      'DOES_NOT_FIT',
      `the initrd (${mib(size)} MiB) does not fit beside the kernel (which ends at ${mib(kernelEnd)} MiB) ` +
        `in ${mib(top)} MiB of memory: give the machine at least ${needed} MiB`,
    )
  }
  return { address, size }
}

const mib = (bytes: number): string => (bytes / MIB).toFixed(1)
