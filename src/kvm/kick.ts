/**
 * Stopping a vCPU from another thread.
 *
 *   main thread                                  vCPU's worker
 *   immediate_exit = 1  ---------------------->  KVM_RUN, if it is about to enter, returns EINTR at once
 *   tgkill(its thread, SIGURG)  -------------->  KVM_RUN, if it is inside or asleep, is interrupted: EINTR
 *                                                immediate_exit = 0, run() returns 'kicked'
 *
 * The byte alone says that a kick is due, so none is lost and none counts twice. SIGURG is the signal because its
 * default is to be ignored: a stray one hurts nobody, and nothing else in Node uses it. An ignored signal interrupts
 * nothing, though, so a listener that does nothing makes Node install a handler; that works on the main thread only.
 */
import { constants } from 'node:os'
import { isMainThread } from 'node:worker_threads'
import { signalThread } from '../host/thread.ts'
import { KvmError } from './errors.ts'

const SIGNAL = constants.signals.SIGURG

const noop = (): void => {}
let users = 0

/** Installs the handler for as long as any VM of this process needs it. */
export function acquireKickSignal(): void {
  if (!isMainThread) {
    throw new KvmError('UNSUPPORTED', 'a KVM machine must be created on the main thread: only that can handle signals')
  }
  if (users++ === 0) process.on('SIGURG', noop)
}

export function releaseKickSignal(): void {
  if (--users === 0) process.off('SIGURG', noop)
}

export const kickThread = (tid: number): void => signalThread(tid, SIGNAL)
