/** The size of what stat has no size for. */
import { ENXIO, HostError } from './errors.ts'
import { check, lastErrno, sys } from './libc.ts'

const SEEK_END = 2
const SEEK_DATA = 3
const SEEK_HOLE = 4

/** The end of a block device, in bytes. */
export const seekEnd = (fd: number): number => check(sys.lseek(fd, 0, SEEK_END), 'lseek')

/** Where data starts at or after `position`, or -1 when only a hole follows. Moves the descriptor's own position. */
export function seekData(fd: number, position: number): number {
  const found = sys.lseek(fd, position, SEEK_DATA)
  if (found >= 0) return found
  const errno = lastErrno()
  if (errno === ENXIO) return -1
  throw new HostError('lseek', errno)
}

/** Where the next hole starts at or after `position`; the end of the file counts as one. */
export const seekHole = (fd: number, position: number): number => check(sys.lseek(fd, position, SEEK_HOLE), 'lseek')
