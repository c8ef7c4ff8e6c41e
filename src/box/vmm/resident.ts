/** How much of a VMM process is in memory, and how much of that is the guest's. From /proc/self/smaps. */
import { readFileSync } from 'node:fs'
import { addressOf } from '../../host/libc.ts'
import type { GuestMemory } from '../../memory/guest-memory.ts'
import { RAM_OFFSET } from '../../memory/layout.ts'

export function residentMemory(memory: GuestMemory): { total: number; guest: number } {
  let text: string
  try {
    text = readFileSync('/proc/self/smaps', 'latin1')
  } catch {
    return { total: process.memoryUsage.rss(), guest: 0 } // not on Linux
  }
  const start = addressOf(memory.bytes) + RAM_OFFSET
  const end = start + memory.size
  let [total, guest, inGuest] = [0, 0, false]
  for (const line of text.split('\n')) {
    const range = /^([0-9a-f]+)-([0-9a-f]+) /.exec(line)
    if (range) {
      // The machine's own part and the guest's are one mapping; ours is small beside it.
      inGuest = Number.parseInt(range[1]!, 16) < end && Number.parseInt(range[2]!, 16) > start
    } else if (line.startsWith('Rss:')) {
      const bytes = Number.parseInt(line.slice(4), 10) * 1024
      total += bytes
      if (inGuest) guest += bytes
    }
  }
  return { total, guest }
}
