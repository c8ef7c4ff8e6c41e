/**
 * Bells: eventfds that wake whoever polls them. Where the one who listens lives on the thread that rings, ringing is a call: without the kernel, and
 * at once.
 */
import { signalEventFd } from './event-fd.ts'

/** By descriptor; every thread has its own. */
const listeners: ((() => void) | undefined)[] = []

/** From now on the bell is heard here, if it is rung on this thread; `undefined` ends that, before the descriptor is closed. */
export function hearBell(fd: number, heard: (() => void) | undefined): void {
  while (listeners.length <= fd) listeners.push(undefined)
  listeners[fd] = heard
}

export function ringBell(fd: number): void {
  const heard = listeners[fd]
  if (heard === undefined) signalEventFd(fd)
  else heard()
}
