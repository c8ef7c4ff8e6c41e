/** What the host may do with pages of our own memory: take them back, or make them large. */
import { check, sys } from './libc.ts'

const MADV_DONTNEED = 4
const MADV_HUGEPAGE = 14
export const PAGE_SIZE = 4096

/**
 * Drops the pages of `length` bytes at host address `address`, both multiples of PAGE_SIZE. Anonymous memory reads as
 * zeros afterwards; a private mapping of a file (a restored snapshot) shows the file again.
 *
 * Safe only for ranges that the caller owns: it asks for no more than that, and nothing moves.
 */
export const dropPages = (address: number, length: number): void =>
  void check(sys.madvise(address, length, MADV_DONTNEED), 'madvise')

/**
 * Asks for large pages where `length` bytes at `address` (both multiples of PAGE_SIZE) are touched for the first time. Only advice:
 * a kernel without them refuses, and nothing else changes.
 */
export const preferHugePages = (address: number, length: number): boolean =>
  sys.madvise(address, length, MADV_HUGEPAGE) === 0
