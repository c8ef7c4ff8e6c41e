/** Threads as the kernel knows them: to interrupt one that is inside a blocking call. */
import { constants } from 'node:os'
import { HostError } from './errors.ts'
import { lastErrno, sys } from './libc.ts'

/** The kernel's id of the calling thread. */
export const threadId = (): number => sys.gettid()

/** Sends a signal to one thread of this process. A thread that has ended is not an error: there is nothing to interrupt. */
export function signalThread(tid: number, signal: number): void {
  if (sys.tgkill(process.pid, tid, signal) === 0) return
  const errno = lastErrno()
  if (errno !== constants.errno.ESRCH) throw new HostError('tgkill', errno, `thread ${tid}`)
}
