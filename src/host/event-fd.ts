/** Eventfds: the doorbells and interrupt lines between the guest, KVM and our threads. A plain number can be sent to any worker. */
import { EAGAIN, EINTR, HostError } from './errors.ts'
import { check, lastErrno, sys } from './libc.ts'

const EFD_CLOEXEC = 0o2000000
const EFD_NONBLOCK = 0o4000

const one = new BigUint64Array([1n])
const counter = new BigUint64Array(1)
/** The same as two numbers: reading these makes no BigInt. */
const halves = new Uint32Array(counter.buffer)

/** A new non-blocking eventfd; its owner closes it. */
export const createEventFd = (): number => check(sys.eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), 'eventfd')

/** Adds one. Never blocks: a counter about to overflow is already readable, which is all that matters. */
export function signalEventFd(fd: number): void {
  // Safe: eight bytes from a module-level array.
  while (sys.write(fd, one, 8) < 0) {
    const errno = lastErrno()
    if (errno === EAGAIN) return
    if (errno !== EINTR) throw new HostError('write', errno, 'eventfd')
  }
}

/** Takes the count and resets it; 0 if nothing was signalled. */
export function drainEventFd(fd: number): number {
  // Safe: eight bytes into a module-level array.
  while (sys.read(fd, counter, 8) < 0) {
    const errno = lastErrno()
    if (errno === EAGAIN) return 0
    if (errno !== EINTR) throw new HostError('read', errno, 'eventfd')
  }
  return halves[0]! + halves[1]! * 0x1_0000_0000
}
