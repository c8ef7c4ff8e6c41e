/** Advisory locks between processes: flock on a file, which the kernel lets go when its holder ends, however it ends. */
import { closeSync, openSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { EAGAIN, EINTR, HostError } from './errors.ts'
import { lastErrno, sys } from './libc.ts'

const LOCK_SH = 1
const LOCK_EX = 2
const LOCK_NB = 4

export type LockMode = 'shared' | 'exclusive'

export class ProcessLock implements Disposable {
  #fd: number

  private constructor(fd: number) {
    this.#fd = fd
  }

  /** The lock, or undefined when another holder has it. The file is made if absent, and stays. */
  static tryAcquire(path: string, mode: LockMode = 'exclusive'): ProcessLock | undefined {
    return ProcessLock.#lock(openSync(path, 'a+', 0o644), mode, path)
  }

  /** Whether somebody holds it now. Trying is the only way to ask; a file that is not there is not made. */
  static isHeld(path: string): boolean {
    let fd: number
    try {
      fd = openSync(path, 'r')
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return false
      throw error
    }
    const lock = ProcessLock.#lock(fd, 'shared', path)
    lock?.release()
    return lock === undefined
  }

  static #lock(fd: number, mode: LockMode, path: string): ProcessLock | undefined {
    for (;;) {
      // Safe: two numbers.
      if (sys.flock(fd, (mode === 'shared' ? LOCK_SH : LOCK_EX) | LOCK_NB) === 0) return new ProcessLock(fd)
      const errno = lastErrno()
      if (errno === EINTR) continue
      closeSync(fd)
      if (errno === EAGAIN) return undefined
      throw new HostError('flock', errno, path)
    }
  }

  /** Waits for the lock, without blocking the thread; undefined when it takes longer than `timeoutMs`. */
  static async acquire(
    path: string,
    mode: LockMode = 'exclusive',
    timeoutMs = Infinity,
  ): Promise<ProcessLock | undefined> {
    const giveUpAt = Date.now() + timeoutMs
    for (let pause = 5; ; pause = Math.min(pause * 2, 200)) {
      const lock = ProcessLock.tryAcquire(path, mode)
      if (lock) return lock
      if (Date.now() >= giveUpAt) return undefined
      await sleep(pause)
    }
  }

  release(): void {
    if (this.#fd < 0) return
    closeSync(this.#fd)
    this.#fd = -1
  }

  [Symbol.dispose](): void {
    this.release()
  }
}
