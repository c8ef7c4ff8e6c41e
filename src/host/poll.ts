/** A blocking poll() loop for device workers: descriptors with a callback each. No libuv on the data path. */
import { EINTR, HostError } from './errors.ts'
import { lastErrno, sys } from './libc.ts'

export const POLLIN = 1
export const POLLOUT = 4
export const POLLERR = 8
export const POLLHUP = 16

/** The longest that tasks wait for a rest. */
const REST_MS = 0.5

/** Tasks to run once, kept without garbage. */
class TaskList {
  #tasks: (() => void)[] = []
  #spare: (() => void)[] = []

  get isEmpty(): boolean {
    return this.#tasks.length === 0
  }

  add(task: () => void): void {
    this.#tasks.push(task)
  }

  /** Runs all that are there now; those that they add wait. How many there were. */
  run(): number {
    const tasks = this.#tasks
    const count = tasks.length
    if (count === 0) return 0
    this.#tasks = this.#spare
    this.#spare = tasks
    for (let i = 0; i < count; i++) tasks[i]!()
    tasks.length = 0
    return count
  }
}

export class PollSet {
  /** `struct pollfd[]`: int fd; short events; short revents. */
  #native = new Int32Array(2 * 16)
  readonly #fds: number[] = []
  readonly #handlers: ((events: number) => void)[] = []

  readonly #dueHandlers: ((events: number) => void)[] = []
  readonly #dueEvents: number[] = []
  /** Until then, by performance.now(), waits do not sleep; 0: they do. */
  #eagerUntil = 0
  /** `struct timespec`: seconds, nanoseconds, 64 bits each; only low halves are used. */
  readonly #timeout = new Int32Array(4)
  /** How many were removed since the handlers of this turn began to run. */
  #removed = 0
  readonly #later = new TaskList()
  readonly #resting = new TaskList()
  /** When those are run even if there is no rest. */
  #restBy = 0
  /** Counts waits. */
  turn = 0
  /** Nothing that belongs to this set is to be served now. Whoever waits on it keeps to that; others who would serve something look here. */
  held = false

  get size(): number {
    return this.#fds.length
  }

  add(fd: number, events: number, handler: (events: number) => void): void {
    this.#fds.push(fd)
    this.#handlers.push(handler)
    if (this.#fds.length * 2 > this.#native.length) {
      const larger = new Int32Array(this.#native.length * 2)
      larger.set(this.#native)
      this.#native = larger
    }
    const at = (this.#fds.length - 1) * 2
    this.#native[at] = fd
    this.#native[at + 1] = events
  }

  /** Changes what is waited for; 0 keeps the descriptor but waits only for errors. */
  setEvents(fd: number, events: number): void {
    const index = this.#fds.indexOf(fd)
    if (index >= 0) this.#native[index * 2 + 1] = events
  }

  remove(fd: number): void {
    const index = this.#fds.indexOf(fd)
    if (index < 0) return
    this.#removed++
    this.#fds.splice(index, 1)
    this.#handlers.splice(index, 1)
    this.#native.copyWithin(index * 2, index * 2 + 2)
  }

  /** Something is expected this soon: waits look for it without sleeping, for to be woken would take as long. */
  expect(milliseconds: number): void {
    this.#eagerUntil = performance.now() + milliseconds
  }

  /** Whether there are tasks for the next wait. */
  get hasTasks(): boolean {
    return !this.#later.isEmpty
  }

  /** Has `task` run once, at the next wait, after the handlers of all that is ready; that wait does not sleep. */
  later(task: () => void): void {
    this.#later.add(task)
  }

  /** Has `task` run once, before the next sleep; where there is none, soon. */
  atRest(task: () => void): void {
    if (this.#resting.isEmpty) this.#restBy = performance.now() + REST_MS
    this.#resting.add(task)
  }

  /** Runs what waits for a rest; how many there were. */
  rest(): number {
    return this.#resting.run()
  }

  /** As poll(2), after a while of looking when something is expected. */
  #poll(timeoutMs: number): number {
    // Safe, here and below: the array holds `size` pollfd structures.
    if (timeoutMs === 0 || !this.#later.isEmpty) return sys.poll(this.#native, this.#fds.length, 0)
    if (this.#eagerUntil !== 0) {
      const end = timeoutMs < 0 ? this.#eagerUntil : Math.min(this.#eagerUntil, performance.now() + timeoutMs)
      do {
        const ready = sys.poll(this.#native, this.#fds.length, 0)
        if (ready !== 0) return ready
      } while (performance.now() < end)
      this.#eagerUntil = 0
    }
    if (!this.#resting.isEmpty) return 0
    if (timeoutMs < 0 || timeoutMs >= 2 ** 31) return sys.poll(this.#native, this.#fds.length, -1)
    const seconds = Math.floor(timeoutMs / 1000)
    this.#timeout[0] = seconds
    this.#timeout[2] = Math.floor((timeoutMs - seconds * 1000) * 1e6)
    // Safe: as above; one timespec of 16 bytes is read.
    return sys.ppoll(this.#native, this.#fds.length, this.#timeout, null)
  }

  /** Waits up to `timeoutMs`, parts of milliseconds too (-1 or Infinity: for ever), then calls the handlers of all that is ready. The number that were. */
  wait(timeoutMs: number): number {
    this.turn++
    const ready = this.#poll(timeoutMs)
    if (ready < 0) {
      const errno = lastErrno()
      if (errno !== EINTR) throw new HostError('poll', errno)
    } else if (ready > 0) this.#dispatch()
    const done = Math.max(ready, 0) + this.#later.run()
    // Whoever does not want to sleep is busy with something else.
    const rests = !this.#resting.isEmpty && (timeoutMs !== 0 || performance.now() >= this.#restBy)
    return rests ? done + this.rest() : done
  }

  #dispatch(): void {
    this.#removed = 0
    // Handlers may add and remove, so what is ready is collected before any of them runs. The lists are kept: no garbage.
    let due = 0
    for (let i = 0; i < this.#fds.length; i++) {
      const events = this.#native[i * 2 + 1]! >>> 16
      if (events === 0) continue
      this.#dueHandlers[due] = this.#handlers[i]!
      this.#dueEvents[due++] = events
    }
    for (let i = 0; i < due; i++) {
      // One that an earlier handler removed has no say any more.
      if (this.#removed > 0 && !this.#handlers.includes(this.#dueHandlers[i]!)) continue
      this.#dueHandlers[i]!(this.#dueEvents[i]!)
    }
  }
}
