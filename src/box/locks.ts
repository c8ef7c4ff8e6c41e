/** Whether somebody holds a lock, and doing something under one. */
import { ProcessLock } from '../host/process-lock.ts'
import { BoxError } from './errors.ts'

/** Whoever takes a lock for good waits out the moment that this takes. */
export const isHeld = (path: string): boolean => ProcessLock.isHeld(path)

/** The lock, after waiting up to `waitMs` for whoever has it. */
export async function acquire(path: string, what: string, waitMs: number): Promise<ProcessLock> {
  const lock = await ProcessLock.acquire(path, 'exclusive', waitMs)
  if (!lock) throw new BoxError('BUSY', `another process is working on ${what}: try again when it is done`)
  return lock
}

/** Runs `work` under the lock, waiting up to `waitMs` for whoever has it. */
export async function withLock<T>(path: string, what: string, waitMs: number, work: () => Promise<T>): Promise<T> {
  const lock = await acquire(path, what, waitMs)
  try {
    return await work()
  } finally {
    lock.release()
  }
}

const SPIN_MS = 2
const SPIN_LIMIT_MS = 10_000

/** The same for work of microseconds, which is waited for on the spot. */
export function withLockNow<T>(path: string, work: () => T): T {
  for (
    const end = Date.now() + SPIN_LIMIT_MS;
    ;
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, SPIN_MS)
  ) {
    using lock = ProcessLock.tryAcquire(path)
    if (lock) return work()
    if (Date.now() > end) throw new BoxError('BUSY', `another process holds ${path}: try again when it is done`)
  }
}
