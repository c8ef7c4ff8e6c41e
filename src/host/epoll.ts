/**
 * An epoll set whose members report edges: a socket that still has unread data is not reported again until more arrives.
 * Its own descriptor can stand in a `PollSet`, so that a thousand sockets cost one entry there.
 */
import { EINTR, HostError } from './errors.ts'
import { check, lastErrno, sys } from './libc.ts'

export const EPOLLIN = 1
export const EPOLLOUT = 4
export const EPOLLERR = 8
export const EPOLLHUP = 16
export const EPOLLRDHUP = 0x2000
const EPOLLET = 0x8000_0000
const EPOLL_CLOEXEC = 0o2000000
const EPOLL_CTL_ADD = 1
const EPOLL_CTL_DEL = 2
const ENOENT = 2
const EBADF = 9

/** `struct epoll_event`: u32 events, u64 data; packed on x86-64 only. */
export const EVENT_SIZE = process.arch === 'x64' ? 12 : 16
export const EVENT_DATA = process.arch === 'x64' ? 4 : 8
const BATCH = 64

export class EdgePoll {
  readonly fd: number
  readonly #events = new Uint8Array(EVENT_SIZE * BATCH)
  readonly #view = new DataView(this.#events.buffer)
  readonly #request = new Uint8Array(EVENT_SIZE)
  readonly #requestView = new DataView(this.#request.buffer)

  constructor() {
    this.fd = check(sys.epoll_create1(EPOLL_CLOEXEC), 'epoll_create1')
  }

  /** Reports edges of reading, writing and hanging up on `fd` as `tag`. */
  add(fd: number, tag: number): void {
    this.#requestView.setUint32(0, (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET) >>> 0, true)
    this.#requestView.setUint32(EVENT_DATA, tag, true)
    // Safe: the kernel reads one event from an array of that size.
    check(sys.epoll_ctl(this.fd, EPOLL_CTL_ADD, fd, this.#request), 'epoll_ctl')
  }

  remove(fd: number): void {
    // Safe: as in `add`; the event is ignored.
    if (sys.epoll_ctl(this.fd, EPOLL_CTL_DEL, fd, this.#request) === 0) return
    const errno = lastErrno()
    if (errno !== ENOENT && errno !== EBADF) throw new HostError('epoll_ctl', errno)
  }

  /** Calls `handler` for up to 64 edges, without waiting; how many there were. */
  dispatch(handler: (tag: number, events: number) => void): number {
    // Safe: at most BATCH events are written to an array with room for them.
    const count = sys.epoll_wait(this.fd, this.#events, BATCH, 0)
    if (count < 0) {
      const errno = lastErrno()
      if (errno === EINTR) return 0
      throw new HostError('epoll_wait', errno)
    }
    for (let i = 0; i < count; i++) {
      handler(this.#view.getUint32(i * EVENT_SIZE + EVENT_DATA, true), this.#view.getUint32(i * EVENT_SIZE, true))
    }
    return count
  }
}
