/** One alarm that a poll loop can wait for. */
import { check, sys } from '../libc.ts'

const CLOCK_MONOTONIC = 1
const TFD_NONBLOCK = 0o4000
const TFD_CLOEXEC = 0o2000000

export class TimerFd {
  readonly fd: number
  /** `struct itimerspec`: interval (s, ns), value (s, ns), 64 bits each; only low halves are used. */
  readonly #spec = new Int32Array(8)
  readonly #expirations = new Uint8Array(8)

  constructor() {
    this.fd = check(sys.timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC), 'timerfd_create')
  }

  /** Rings once, `milliseconds` from now (at least one nanosecond: zero would disarm it). */
  set(milliseconds: number): void {
    const bounded = Math.min(Math.max(milliseconds, 0.000001), 1e9)
    const seconds = Math.floor(bounded / 1000)
    this.#spec[4] = seconds
    this.#spec[6] = Math.max(seconds === 0 ? 1 : 0, Math.floor((bounded - seconds * 1000) * 1e6))
    // Safe: one itimerspec of 32 bytes is read.
    check(sys.timerfd_settime(this.fd, 0, this.#spec, null), 'timerfd_settime')
  }

  /** Takes the ring, so that the descriptor is no longer readable. */
  drain(): void {
    // Safe: eight bytes into an array of eight. EAGAIN means that it had not rung.
    sys.read(this.fd, this.#expirations, 8)
  }
}
