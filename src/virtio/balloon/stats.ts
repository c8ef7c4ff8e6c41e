/** The guest's memory statistics: VIRTIO 1.2, section 5.5.6.3. Records of a 16-bit tag and a 64-bit value, packed. */
const RECORD = 10
const NAMES = [
  'swapIn',
  'swapOut',
  'majorFaults',
  'minorFaults',
  'freeMemory',
  'totalMemory',
  'availableMemory',
  'diskCaches',
  'hugetlbAllocations',
  'hugetlbFailures',
] as const
/** More records than there are tags are not looked at. */
export const MAX_STATS_BYTES = 64 * RECORD

export type GuestMemoryStats = Partial<Record<(typeof NAMES)[number], number>>

export function parseStats(bytes: Uint8Array): GuestMemoryStats {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length)
  const stats: GuestMemoryStats = {}
  for (let at = 0; at + RECORD <= bytes.length; at += RECORD) {
    const name = NAMES[view.getUint16(at, true)]
    if (name !== undefined) stats[name] = Number(view.getBigUint64(at + 2, true))
  }
  return stats
}
