/** Random bytes from the kernel, straight into memory that the caller names. */
import { EINTR, HostError } from './errors.ts'
import type { IoVector } from './io-vector.ts'
import { lastErrno, sys } from './libc.ts'

/** Fills the first `length` bytes of the list. */
export function fillRandom(vector: IoVector, length: number): void {
  let left = length
  for (let i = 0; i < vector.count && left > 0; i++) {
    let at = vector.offsets[i]!
    let size = Math.min(vector.lengths[i]!, left)
    left -= size
    while (size > 0) {
      // Safe: IoVector checked that the segment lies in its memory, whose address never changes.
      const n = sys.getrandom(vector.base + at, size, 0)
      if (n < 0) {
        const errno = lastErrno()
        if (errno !== EINTR) throw new HostError('getrandom', errno)
        continue
      }
      at += n
      size -= n
    }
  }
}
