/**
 * Node's event loop, a guest and its devices on one thread: what a machine of one vCPU needs no other threads for. A thread
 * costs 8 MiB and 20 ms, and to wake one takes longer than most of what it would then do.
 *
 *   round:   work.turn() ── nothing to do? ──> wait over devices and libuv's own descriptor, until the next timer of either
 *              ^──────── devices' handlers <────┘    └── libuv has something: the round ends, libuv runs, the next round begins
 *
 * Between rounds libuv makes one pass of its own; a byte in a pipe brings us back, from within its polling phase. It takes in what JavaScript
 * registered only at its next pass, so a round may sleep only if no other callback ran in the pass that led to it.
 */
import { type OnReadOpts, Socket, type SocketConstructorOpts } from 'node:net'
import { performance } from 'node:perf_hooks'
import { createEventFd, drainEventFd } from './event-fd.ts'
import { closeFd } from './file.ts'
import { check, sys, uv } from './libc.ts'
import { POLLIN, PollSet } from './poll.ts'

/** What runs between the looks at descriptors. */
export interface LoopWork {
  /** Does a little. Milliseconds until it has more to do by itself: 0 at once, Infinity never. */
  turn(): number
}

/** However busy the guest is, libuv has its pass: so much of Node happens only then. */
const LONGEST_ROUND_MS = 20
/** How long work that has more to do goes on before descriptors are looked at. */
const BETWEEN_LOOKS_MS = 0.2
const O_CLOEXEC = 0o2000000
const O_NONBLOCK = 0o4000
const BYTE = new Uint8Array(1)

/** Libuv's own loop, by the functions that Node exports for native addons. */
class Libuv {
  readonly #uv = uv()!
  readonly #loop = this.#uv.default_loop()
  /** `uv_metrics_t`: loop_count, events, events_waiting, and room to grow. */
  readonly #metrics = new Uint32Array(32)

  readonly fd = this.#uv.backend_fd(this.#loop)

  /** Milliseconds until libuv has something to do by itself; Infinity: never. */
  dueIn(): number {
    // Safe: the main thread's loop lives as long as the process, and this is its thread.
    this.#uv.update_time(this.#loop)
    const timeout = this.#uv.backend_timeout(this.#loop)
    return timeout < 0 ? Number.POSITIVE_INFINITY : timeout
  }

  /** Counts what it was told by the kernel; wraps around. */
  events(): number {
    // Safe: the structure has 128 bytes.
    this.#uv.metrics_info(this.#loop, new Uint8Array(this.#metrics.buffer))
    return this.#metrics[2]!
  }
}

export class MainLoop {
  /** Whether this Node lets us: its libuv is of 2023 or later, and exported. */
  static get isAvailable(): boolean {
    return uv() !== undefined
  }

  /** What the devices wait for. */
  readonly poll = new PollSet()
  /** While they hold still: libuv only. */
  readonly #quiet = new PollSet()
  readonly #libuv = new Libuv()
  /** We write a byte, libuv reads it. A descriptor of our own: messages between threads share one, and could not be told from ours. */
  readonly #bell: Socket
  readonly #bellFd: number
  #work: LoopWork | undefined
  #wakeFd: number | undefined
  #held = false
  #libuvReady = false
  #closed = false
  #events = 0

  constructor() {
    const ends = new Int32Array(2)
    // Safe: two descriptors are written to an array of two.
    check(sys.pipe2(ends, O_CLOEXEC | O_NONBLOCK), 'pipe2')
    this.#bellFd = ends[1]!
    // `onread`, which Node's typings know of `connect` only, reads into the same bytes every time.
    const options: SocketConstructorOpts & { onread: OnReadOpts } = {
      ...{ fd: ends[0]!, readable: true, writable: false },
      onread: { buffer: new Uint8Array(16), callback: () => this.#round() },
    }
    this.#bell = new Socket(options)
    const onReady = (): void => {
      this.#libuvReady = true
    }
    for (const set of [this.poll, this.#quiet]) set.add(this.#libuv.fd, POLLIN, onReady)
    this.#bell.resume()
    this.#again()
  }

  /** What to run; undefined: nothing. */
  set work(work: LoopWork | undefined) {
    this.#work = work
  }

  /** While set, the devices' descriptors are not looked at. */
  set held(held: boolean) {
    this.#held = held
    this.poll.held = held
  }

  #again(): void {
    // Safe: one byte of a module-level array. The pipe holds one at a time.
    check(sys.write(this.#bellFd, BYTE, 1), 'write', 'the loop')
  }

  #round(): boolean {
    if (this.#closed) return false
    const events = this.#libuv.events()
    // One of them was our own byte. The counter has 32 bits here.
    let mayWait = ((events - this.#events) | 0) === 1
    this.#events = events
    this.#libuvReady = false
    const end = performance.now() + LONGEST_ROUND_MS
    do {
      const work = this.#work
      const idle = work ? this.#turns(work) : Number.POSITIVE_INFINITY
      // A turn that ended has somebody wait for it.
      if (this.#work !== work) mayWait = false
      const due = this.#libuv.dueIn()
      const set = this.#held ? this.#quiet : this.poll
      set.wait(mayWait ? Math.min(idle, due) : 0)
      if (due === 0) break
    } while (mayWait && !this.#libuvReady && !this.#closed && performance.now() < end)
    if (!this.#closed) this.#again()
    return true
  }

  /** Turns of work that has more to do, until it is time to look at descriptors again: that costs as much as some work does. */
  #turns(work: LoopWork): number {
    const end = performance.now() + BETWEEN_LOOKS_MS
    for (;;) {
      const idle = work.turn()
      if (idle > 0 || this.#work !== work || this.poll.hasTasks || performance.now() >= end) return idle
    }
  }

  /** An eventfd with which other threads end its sleep. */
  get wakeFd(): number {
    this.#wakeFd ??= this.#listenForWakes()
    return this.#wakeFd
  }

  #listenForWakes(): number {
    const fd = createEventFd()
    for (const set of [this.poll, this.#quiet]) set.add(fd, POLLIN, () => void drainEventFd(fd))
    return fd
  }

  /** Ends it; the devices' descriptors are their owners'. */
  close(): void {
    if (this.#closed) return
    this.#closed = true
    for (const set of [this.poll, this.#quiet]) set.close()
    if (this.#wakeFd !== undefined) closeFd(this.#wakeFd)
    this.#bell.destroy()
    closeFd(this.#bellFd)
  }
}
