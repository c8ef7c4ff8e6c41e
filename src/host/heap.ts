/** Giving memory back before a process is forked: what is garbage then would be garbage in every child, and be copied when it is reused. */
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { allocator } from './libc.ts'

const M_MMAP_THRESHOLD = -3
const LARGE = 8 * 1024

/**
 * Has buffers of this size and more mapped one by one, so that of a new one only those pages exist that are written. As it is set, the C library
 * takes ever larger ones from its heap once such have been freed, and clears them whole.
 */
export const mapLargeBuffers = (): void => void allocator()?.set(M_MMAP_THRESHOLD, LARGE)

/**
 * Collects all garbage of this process, and gives pages that hold nothing back to the host. Objects are moved together: pages that keep theirs would be
 * swept later, in every child. Bytecode stays, however long ago it last ran.
 */
export function tidyHeap(): void {
  for (const flag of ['--expose-gc', '--compact-on-every-full-gc', '--no-flush-bytecode']) setFlagsFromString(flag)
  const collect = runInNewContext('gc') as () => void
  // What a collection frees in C++ may let go of more.
  for (let i = 0; i < 2; i++) collect()
  for (const flag of ['--no-expose-gc', '--no-compact-on-every-full-gc', '--flush-bytecode']) setFlagsFromString(flag)
  allocator()?.trim(0)
}
