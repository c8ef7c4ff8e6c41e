/**
 * A blocking loop over epoll, for device workers: descriptors with a callback each, and alarms. No libuv on the data path, and one call into the
 * kernel a turn, however many descriptors there are.
 */
import { performance } from 'node:perf_hooks'
import { EINTR, ENOSYS, EPERM, HostError } from './errors.ts'
import { closeFd } from './file.ts'
import { check, lastErrno, preciseWait, sys } from './libc.ts'

export const POLLIN = 1
export const POLLOUT = 4
export const POLLERR = 8
export const POLLHUP = 16
/** The other end writes no more. */
export const POLLRDHUP = 0x2000
/** Reports changes only: what was reported is not reported again before more comes. An eventfd need not be read then. */
export const EDGES = 0x8000_0000

const EPOLL_CLOEXEC = 0o2000000
const EPOLL_CTL_ADD = 1
const EPOLL_CTL_DEL = 2
const EPOLL_CTL_MOD = 3
const ENOENT = 2
const EBADF = 9

/** `struct epoll_event`: u32 events, u64 data; packed on x86-64 only. */
export const EVENT_SIZE = process.arch === 'x64' ? 12 : 16
export const EVENT_DATA = process.arch === 'x64' ? 4 : 8
const EVENT_WORDS = EVENT_SIZE / 4
const DATA_WORD = EVENT_DATA / 4
/** As many as one turn takes; what is left is in the next. */
const BATCH = 64

/** Whether the kernel waits for parts of milliseconds. */
let isPrecise = true

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

type Handler = (events: number) => void

interface Member {
  readonly handler: Handler
  /** Tells it from others that had its descriptor before. */
  readonly generation: number
}

/** Rings once, when its moment has come, in a wait of the set that it belongs to. */
export class Alarm {
  /** By the set's clock; Infinity: never. */
  at = Number.POSITIVE_INFINITY
  readonly ring: () => void

  constructor(ring: () => void) {
    this.ring = ring
  }
}

export class PollSet {
  /** Made when it is first needed. */
  #epoll = -1
  readonly #members = new Map<number, Member>()
  #generations = 0
  readonly #events = new Uint32Array(BATCH * EVENT_WORDS)
  readonly #eventBytes = new Uint8Array(this.#events.buffer)
  readonly #request = new Uint32Array(EVENT_WORDS)
  readonly #requestBytes = new Uint8Array(this.#request.buffer)
  /** `struct timespec`: seconds, nanoseconds, 64 bits each; only low halves are used. */
  readonly #timeout = new Int32Array(4)
  readonly #alarms: Alarm[] = []
  /** What the clock said in this turn; 0: nobody has asked, or it is nobody's turn. */
  #time = 0
  #inTurn = false
  /** Until then, by the clock, waits do not sleep; 0: they do. */
  #eagerUntil = 0
  readonly #later = new TaskList()
  readonly #resting = new TaskList()
  /** When those are run even if there is no rest. */
  #restBy = 0
  /** Counts waits. */
  turn = 0
  /** Nothing that belongs to this set is to be served now. Whoever waits on it keeps to that; others who would serve something look here. */
  held = false

  get size(): number {
    return this.#members.size
  }

  get #fd(): number {
    if (this.#epoll < 0) this.#epoll = check(sys.epoll_create1(EPOLL_CLOEXEC), 'epoll_create1')
    return this.#epoll
  }

  #control(operation: number, fd: number, events: number, generation: number): number {
    this.#request[0] = events
    this.#request[DATA_WORD] = fd
    this.#request[DATA_WORD + 1] = generation
    // Safe: the kernel reads one event from an array of that size.
    return sys.epoll_ctl(this.#fd, operation, fd, this.#requestBytes)
  }

  /** Until `remove`, which comes before the descriptor is closed. */
  add(fd: number, events: number, handler: Handler): void {
    const generation = this.#generations
    this.#generations = (generation + 1) >>> 0
    check(this.#control(EPOLL_CTL_ADD, fd, events, generation), 'epoll_ctl')
    this.#members.set(fd, { handler, generation })
  }

  /** Changes what is waited for; 0 keeps the descriptor but waits only for errors. */
  setEvents(fd: number, events: number): void {
    const member = this.#members.get(fd)
    if (member !== undefined) check(this.#control(EPOLL_CTL_MOD, fd, events, member.generation), 'epoll_ctl')
  }

  remove(fd: number): void {
    if (!this.#members.delete(fd) || this.#control(EPOLL_CTL_DEL, fd, 0, 0) === 0) return
    const errno = lastErrno()
    if (errno !== ENOENT && errno !== EBADF) throw new HostError('epoll_ctl', errno)
  }

  /** For a descriptor that is closed right after, which takes it out of the kernel's set, too: nobody else has it. */
  forget(fd: number): void {
    this.#members.delete(fd)
  }

  /** An alarm that is not set yet: its `at` does that. */
  addAlarm(ring: () => void): Alarm {
    const alarm = new Alarm(ring)
    this.#alarms.push(alarm)
    return alarm
  }

  removeAlarm(alarm: Alarm): void {
    // It may be about to ring in this very turn.
    alarm.at = Number.POSITIVE_INFINITY
    const index = this.#alarms.indexOf(alarm)
    if (index >= 0) this.#alarms.splice(index, 1)
  }

  /** Milliseconds that only grow; within a turn they stand still, for there the clock is asked once. */
  now(): number {
    if (!this.#inTurn) return performance.now()
    if (this.#time === 0) this.#time = performance.now()
    return this.#time
  }

  /** Something is expected this soon: waits look for it without sleeping, for to be woken would take as long. */
  expect(milliseconds: number): void {
    this.#eagerUntil = this.now() + milliseconds
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
    if (this.#resting.isEmpty) this.#restBy = this.now() + REST_MS
    this.#resting.add(task)
  }

  /** Runs what waits for a rest; how many there were. */
  rest(): number {
    return this.#resting.run()
  }

  get #nextAlarm(): number {
    let next = Number.POSITIVE_INFINITY
    for (const { at } of this.#alarms) if (at < next) next = at
    return next
  }

  /** How many are ready, after a while of looking when something is expected. */
  #look(timeoutMs: number): number {
    if (timeoutMs === 0 || !this.#later.isEmpty) return this.#ready(0)
    const alarm = this.#nextAlarm
    const asked = timeoutMs < 0 ? Number.POSITIVE_INFINITY : timeoutMs
    const bounded = asked !== Number.POSITIVE_INFINITY || alarm !== Number.POSITIVE_INFINITY || this.#eagerUntil !== 0
    // The clock is read only by those who have a moment to keep.
    let now = bounded ? performance.now() : 0
    const end = Math.min(now + asked, alarm)
    if (this.#eagerUntil !== 0) {
      const eager = Math.min(this.#eagerUntil, end)
      do {
        const ready = this.#ready(0)
        if (ready !== 0) return ready
        now = performance.now()
      } while (now < eager)
      this.#eagerUntil = 0
    }
    return this.#ready(this.#resting.isEmpty ? Math.max(end - now, 0) : 0)
  }

  /** As epoll_wait(2), with parts of milliseconds, too. Infinity: for ever. */
  #ready(timeoutMs: number): number {
    // Safe, here and below: at most BATCH events are written to an array with room for them.
    if (timeoutMs === 0) return sys.epoll_wait(this.#fd, this.#eventBytes, BATCH, 0)
    if (timeoutMs >= 2 ** 31) return sys.epoll_wait(this.#fd, this.#eventBytes, BATCH, -1)
    const seconds = Math.floor(timeoutMs / 1000)
    this.#timeout[0] = seconds
    this.#timeout[2] = Math.floor((timeoutMs - seconds * 1000) * 1e6)
    const wait = isPrecise ? preciseWait() : undefined
    if (wait !== undefined) {
      // Safe: as above; one timespec of 16 bytes is read.
      const ready = wait.epoll_pwait2(this.#fd, this.#eventBytes, BATCH, this.#timeout, null)
      const errno = ready < 0 ? lastErrno() : 0
      if (errno !== ENOSYS && errno !== EPERM) return ready
      isPrecise = false
    }
    // Before Linux 5.11, or glibc 2.35, or where a filter knows no new calls: a little later rather than too early.
    return sys.epoll_wait(this.#fd, this.#eventBytes, BATCH, Math.ceil(timeoutMs))
  }

  /** Waits up to `timeoutMs`, parts of milliseconds too (-1 or Infinity: for ever), then calls the handlers of all that is ready. The number that were. */
  wait(timeoutMs: number): number {
    this.turn++
    const ready = this.#look(timeoutMs)
    this.#inTurn = true
    this.#time = 0
    try {
      return this.#serve(ready, timeoutMs)
    } finally {
      this.#inTurn = false
    }
  }

  #serve(ready: number, timeoutMs: number): number {
    if (ready < 0) {
      const errno = lastErrno()
      if (errno !== EINTR) throw new HostError('epoll_wait', errno)
    }
    const events = this.#events
    for (let i = 0; i < ready; i++) {
      const at = i * EVENT_WORDS
      const member = this.#members.get(events[at + DATA_WORD]!)
      // One that an earlier handler removed has no say any more.
      if (member?.generation === events[at + DATA_WORD + 1]) member.handler(events[at]!)
    }
    const done = Math.max(ready, 0) + this.#ring() + this.#later.run()
    // Whoever does not want to sleep is busy with something else.
    const rests = !this.#resting.isEmpty && (timeoutMs !== 0 || performance.now() >= this.#restBy)
    return rests ? done + this.rest() : done
  }

  #ring(): number {
    const next = this.#nextAlarm
    if (next === Number.POSITIVE_INFINITY || this.now() < next) return 0
    let rung = 0
    for (const alarm of [...this.#alarms]) {
      if (this.now() < alarm.at) continue
      alarm.at = Number.POSITIVE_INFINITY
      alarm.ring()
      rung++
    }
    return rung
  }

  close(): void {
    this.#members.clear()
    if (this.#epoll >= 0) closeFd(this.#epoll)
    this.#epoll = -1
  }
}
