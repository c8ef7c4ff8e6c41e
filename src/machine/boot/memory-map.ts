/** What memory the guest is told it has: e820 types of the ACPI specification, 15.2. */
import type { GuestMemory } from '../../memory/guest-memory.ts'
import { EBDA_START, HIGH_MEMORY } from '../address-map.ts'

export const E820_RAM = 1
export const E820_RESERVED = 2

export interface MemoryRange {
  readonly address: number
  readonly size: number
  readonly type: number
}

export function guestMemoryMap(memory: GuestMemory): MemoryRange[] {
  const [low, high] = memory.regions
  const map = [
    { address: 0, size: EBDA_START, type: E820_RAM },
    { address: EBDA_START, size: HIGH_MEMORY - EBDA_START, type: E820_RESERVED },
    { address: HIGH_MEMORY, size: low!.size - HIGH_MEMORY, type: E820_RAM },
  ]
  if (high) map.push({ address: high.address, size: high.size, type: E820_RAM })
  return map
}
