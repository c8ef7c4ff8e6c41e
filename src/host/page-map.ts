/**
 * Which pages of our own memory hold something of their own: /proc/self/pagemap (Documentation/admin-guide/mm/pagemap.rst).
 * A page of anonymous memory that was never touched holds nothing; a page of a private file mapping holds nothing until
 * it is written, which is what makes this an exact record of what changed since the file was mapped.
 */
import { constants, openSync } from 'node:fs'
import { closeFd } from './file.ts'
import { check, sys } from './libc.ts'

const PAGE = 4096
const ENTRY = 8
/** Of an entry's upper half: in memory, in swap space, and a page of a file. */
const PRESENT = 1 << 31
const SWAPPED = 1 << 30
const FILE_PAGE = 1 << 29
/** Pages a read. */
const BATCH = 64 * 1024

/**
 * One bit for each of the `pages` pages from host address `address` on (a multiple of 4096): set when the page is not
 * the file's, or not the zero page that was never touched. Undefined where the kernel does not tell.
 */
export function ownPages(address: number, pages: number): Uint32Array | undefined {
  let fd: number
  try {
    fd = openSync('/proc/self/pagemap', constants.O_RDONLY)
  } catch {
    return undefined
  }
  try {
    const bits = new Uint32Array(Math.ceil(pages / 32))
    const entries = new Uint32Array(BATCH * 2)
    const bytes = new Uint8Array(entries.buffer)
    for (let first = 0; first < pages; ) {
      const wanted = Math.min(BATCH, pages - first) * ENTRY
      // Safe: at most the buffer's length is read.
      const size = check(sys.pread(fd, bytes, wanted, (address / PAGE + first) * ENTRY), 'pread', '/proc/self/pagemap')
      if (size < ENTRY) return undefined
      const count = Math.floor(size / ENTRY)
      for (let i = 0; i < count; i++) {
        const upper = entries[i * 2 + 1]!
        if ((upper & (PRESENT | SWAPPED)) === 0 || (upper & FILE_PAGE) !== 0) continue
        const page = first + i
        bits[page >>> 5]! |= 1 << (page & 31)
      }
      first += count
    }
    return bits
  } finally {
    closeFd(fd)
  }
}
