/** Gives pages of our own memory back to the host. */
import { check, sys } from './libc.ts'

const MADV_DONTNEED = 4
export const PAGE_SIZE = 4096

/**
 * Drops the pages of `length` bytes at host address `address`, both multiples of PAGE_SIZE. Anonymous memory reads as
 * zeros afterwards; a private mapping of a file (a restored snapshot) shows the file again.
 *
 * Safe only for ranges that the caller owns: it asks for no more than that, and nothing moves.
 */
export const dropPages = (address: number, length: number): void =>
  void check(sys.madvise(address, length, MADV_DONTNEED), 'madvise')
