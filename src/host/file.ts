/** Positional file I/O that always finishes: short transfers go on, interrupted calls are made again. */
import { EINTR, HostError } from './errors.ts'
import type { IoVector } from './io-vector.ts'
import { check, lastErrno, retryOnSignal, sys } from './libc.ts'

/** From <linux/falloc.h>. */
const FALLOC_FL_KEEP_SIZE = 1
const FALLOC_FL_PUNCH_HOLE = 2
const FALLOC_FL_ZERO_RANGE = 16

/** From <fcntl.h>, on Linux and on macOS: Node does not say. */
const O_CLOEXEC = process.platform === 'darwin' ? 0x100_0000 : 0o2000000

/** Opens a file; the descriptor is not inherited by processes that we start. */
export function openFd(path: string, flags: number, mode = 0o644): number {
  return retryOnSignal(() => sys.open(path, flags | O_CLOEXEC, mode), 'open', path)
}

export function closeFd(fd: number): void {
  // Linux closes the descriptor even when close reports EINTR, so it is never called again.
  if (sys.close(fd) < 0 && lastErrno() !== EINTR) throw new HostError('close', lastErrno())
}

/** Reads until `target` is full or the file ends; the number of bytes read. */
export function readAt(fd: number, target: Uint8Array, position: number): number {
  let done = 0
  while (done < target.length) {
    const part = done === 0 ? target : target.subarray(done)
    // Safe: koffi pins `part` for the call, and its length goes with it.
    const n = sys.pread(fd, part, part.length, position + done)
    if (n === 0) break
    if (n > 0) done += n
    else if (lastErrno() !== EINTR) throw new HostError('pread', lastErrno())
  }
  return done
}

export function writeAt(fd: number, source: Uint8Array, position: number): void {
  let done = 0
  while (done < source.length) {
    const part = done === 0 ? source : source.subarray(done)
    // Safe: as in `readAt`.
    const n = sys.pwrite(fd, part, part.length, position + done)
    if (n >= 0) done += n
    else if (lastErrno() !== EINTR) throw new HostError('pwrite', lastErrno())
  }
}

/** One preadv over the whole list; what lies past the end of the file reads as zeros. */
export function readVectorAt(fd: number, vector: IoVector, position: number): void {
  // Safe: `native` holds `count` pairs that IoVector checked against its memory.
  const n = sys.preadv(fd, vector.native, vector.count, position)
  if (n === vector.byteLength) return
  finishVector(fd, vector, position, n, 'preadv')
}

export function writeVectorAt(fd: number, vector: IoVector, position: number): void {
  // Safe: as in `readVectorAt`.
  const n = sys.pwritev(fd, vector.native, vector.count, position)
  if (n === vector.byteLength) return
  finishVector(fd, vector, position, n, 'pwritev')
}

/** The rare rest of a vectored transfer that was cut short: segment by segment. */
function finishVector(fd: number, vector: IoVector, position: number, n: number, syscall: 'preadv' | 'pwritev'): void {
  if (n < 0) {
    const errno = lastErrno()
    if (errno !== EINTR) throw new HostError(syscall, errno)
    n = 0
  }
  let skip = n
  let at = position + n
  for (let i = 0; i < vector.count; i++) {
    const size = vector.lengths[i]!
    if (skip >= size) {
      skip -= size
      continue
    }
    const from = vector.offsets[i]! + skip
    const part = vector.memory.subarray(from, from + size - skip)
    if (syscall === 'pwritev') writeAt(fd, part, at)
    else {
      const got = readAt(fd, part, at)
      part.fill(0, got)
    }
    at += size - skip
    skip = 0
  }
}

export const syncData = (fd: number): void => void retryOnSignal(() => sys.fdatasync(fd), 'fdatasync')

/** Gives a range back to the file system; it reads as zeros afterwards. The size of the file stays. */
export function punchHole(fd: number, position: number, length: number): void {
  retryOnSignal(() => sys.fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, position, length), 'fallocate')
}

/** Makes a range read as zeros, growing the file if it ends before the range does. */
export function zeroRange(fd: number, position: number, length: number): void {
  retryOnSignal(() => sys.fallocate(fd, FALLOC_FL_ZERO_RANGE, position, length), 'fallocate')
}

export const truncate = (fd: number, size: number): void => void check(sys.ftruncate(fd, size), 'ftruncate')
