/**
 * Image locks that QEMU's tools and processes respect, and the other way round. For each permission that an opener has
 * it locks a byte from 100 on, for each that it does not share with others a byte from 200 on; all locks are shared
 * ones, and a conflict is somebody else's lock on the counterpart byte.
 */
import { isLockedElsewhere, lockShared, unlock } from '../host/file-lock.ts'
import { DiskError } from './errors.ts'

const PERMISSION_BASE = 100
const UNSHARED_BASE = 200
const LOCK_BYTES = 5
/** Permissions, as bit numbers. */
const CONSISTENT_READ = 0
const WRITE = 1
const RESIZE = 3

const READER = [CONSISTENT_READ]
const WRITER = [CONSISTENT_READ, WRITE, RESIZE]
/** A reader wants the image to hold still, a writer wants it to itself. */
const NOT_SHARED = [WRITE, RESIZE]

/** Locks the open file `fd` until it is closed. */
export function lockImage(fd: number, writable: boolean, path: string): void {
  const held = writable ? WRITER : READER
  const refuse = (): never => {
    unlock(fd, PERMISSION_BASE, LOCK_BYTES)
    unlock(fd, UNSHARED_BASE, LOCK_BYTES)
    throw new DiskError(
      'LOCKED',
      path,
      writable
        ? 'is in use by another process; stop it first, or make an overlay and write to that'
        : 'is being written by another process; wait for it, or stop it',
    )
  }
  // Lock first, look afterwards: of two openers at the same time at least one sees the other.
  for (const bit of held) if (!lockShared(fd, PERMISSION_BASE + bit)) refuse()
  for (const bit of NOT_SHARED) if (!lockShared(fd, UNSHARED_BASE + bit)) refuse()
  for (const bit of held) if (isLockedElsewhere(fd, UNSHARED_BASE + bit)) refuse()
  for (const bit of NOT_SHARED) if (isLockedElsewhere(fd, PERMISSION_BASE + bit)) refuse()
}
