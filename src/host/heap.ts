/** Giving memory back before a process is forked: what is garbage then would be garbage in every child, and be copied when it is reused. */
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { trimAllocator } from './libc.ts'

/** Collects all garbage of this process, and gives pages that hold nothing back to the host. */
export function tidyHeap(): void {
  setFlagsFromString('--expose-gc')
  // What a collection frees in C++ may let go of more.
  const collect = runInNewContext('gc') as () => void
  for (let i = 0; i < 2; i++) collect()
  setFlagsFromString('--no-expose-gc')
  trimAllocator?.(0)
}
