/** Whether somebody holds a lock, and doing something under one. */
import { existsSync } from 'node:fs'
import { ProcessLock } from '../host/process-lock.ts'
import { BoxError } from './errors.ts'

/** Trying is the only way to ask; whoever takes a lock for good waits out such a moment. */
export function isHeld(path: string): boolean {
  if (!existsSync(path)) return false
  const lock = ProcessLock.tryAcquire(path, 'shared')
  lock?.release()
  return lock === undefined
}

/** Runs `work` under the lock, waiting up to `waitMs` for whoever has it. */
export async function withLock<T>(path: string, what: string, waitMs: number, work: () => Promise<T>): Promise<T> {
  const lock = await ProcessLock.acquire(path, 'exclusive', waitMs)
  if (!lock) throw new BoxError('BUSY', `another process is working on ${what}: try again when it is done`)
  try {
    return await work()
  } finally {
    lock.release()
  }
}
