/**
 * Byte-range locks that belong to an open file, not to the process (fcntl(2), "Open file description locks"): they end
 * when the last descriptor of that open file is closed, whoever else opens and closes the same file meanwhile.
 */
import { constants } from 'node:os'
import { EAGAIN, HostError } from './errors.ts'
import { lastErrno, sys } from './libc.ts'

/** From <fcntl.h> on Linux. */
const F_OFD_GETLK = 36
const F_OFD_SETLK = 37
const F_RDLCK = 0
const F_WRLCK = 1
const F_UNLCK = 2

/** `struct flock`: short l_type @0, short l_whence @2, off_t l_start @8, off_t l_len @16, pid_t l_pid @24. */
const FLOCK_BYTES = 32
const flock = new Uint8Array(FLOCK_BYTES)
const view = new DataView(flock.buffer)

function describe(type: number, start: number, length: number): void {
  flock.fill(0)
  view.setInt16(0, type, true)
  view.setBigInt64(8, BigInt(start), true)
  view.setBigInt64(16, BigInt(length), true)
}

function setLock(fd: number, type: number, start: number, length: number): boolean {
  describe(type, start, length)
  // Safe: the kernel reads one `struct flock` from a module-level array of its size.
  if (sys.fcntl(fd, F_OFD_SETLK, flock) === 0) return true
  const errno = lastErrno()
  if (errno === EAGAIN || errno === constants.errno.EACCES) return false
  throw new HostError('fcntl', errno, 'F_OFD_SETLK')
}

/** Takes a shared lock; false when another open file holds an exclusive one. */
export const lockShared = (fd: number, start: number, length = 1): boolean => setLock(fd, F_RDLCK, start, length)

/** Takes the only lock; false when another open file holds any. The file must be open for writing. */
export const lockExclusive = (fd: number, start: number, length = 1): boolean => setLock(fd, F_WRLCK, start, length)

export const unlock = (fd: number, start: number, length = 1): boolean => setLock(fd, F_UNLCK, start, length)

/** True when another open file holds any lock in the range. */
export function isLockedElsewhere(fd: number, start: number, length = 1): boolean {
  describe(F_WRLCK, start, length)
  // Safe: the kernel reads and writes one `struct flock`.
  if (sys.fcntl(fd, F_OFD_GETLK, flock) < 0) throw new HostError('fcntl', lastErrno(), 'F_OFD_GETLK')
  return view.getInt16(0, true) !== F_UNLCK
}
