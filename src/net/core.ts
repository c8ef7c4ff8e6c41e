/** What the protocols of one network share: the way to the guest, the way to host sockets, the clock, the counters. */
import { performance } from 'node:perf_hooks'
import { type Alarm, EDGES, POLLIN, POLLOUT, POLLRDHUP, type PollSet } from '../host/poll.ts'
import { NetCounters } from './counters.ts'
import { FrameRing } from './frame-ring.ts'
import { FrameWriter } from './writer.ts'

const RING_BYTES = 1 << 20
const RING_FRAMES = 1024
/** A little late is cheaper than too often. */
const ALARM_SLACK_MS = 1

/** Something that has a host socket. */
export interface EdgeSource {
  /** The socket changed: read, write or look for errors until it would block. */
  onEdge(events: number): void
}

/** Something to be done at a moment of the network's clock, or a little later, while the network is at work. */
export class NetAlarm {
  readonly #core: NetCore
  readonly #ring: (now: number) => void
  #alarm: Alarm | undefined
  #deadline = Number.POSITIVE_INFINITY

  constructor(core: NetCore, ring: (now: number) => void) {
    this.#core = core
    this.#ring = ring
  }

  /** Rings at `deadline`, or before. */
  set(deadline: number): void {
    if (deadline >= this.#deadline) return
    this.#deadline = deadline
    this.#arm()
  }

  clear(): void {
    this.#deadline = Number.POSITIVE_INFINITY
    this.#arm()
  }

  #arm(): void {
    if (this.#alarm !== undefined) this.#alarm.at = this.#core.pollTime(this.#deadline) + ALARM_SLACK_MS
  }

  /** Follows the network into its loop. */
  join(poll: PollSet): void {
    this.#alarm = poll.addAlarm(() => {
      this.#deadline = Number.POSITIVE_INFINITY
      this.#ring(this.#core.clock())
      this.#core.ready()
    })
    this.#arm()
  }

  leave(poll: PollSet): void {
    if (this.#alarm !== undefined) poll.removeAlarm(this.#alarm)
    this.#alarm = undefined
  }
}

export class NetCore {
  readonly counters = new NetCounters()
  readonly writer = new FrameWriter()
  readonly ring = new FrameRing(RING_BYTES, RING_FRAMES)
  /** Milliseconds that only grow. */
  readonly clock: () => number
  mtu: number
  /** By descriptor. */
  readonly #sources = new Map<number, EdgeSource>()
  /** Sources that stopped reading because the ring was full. */
  readonly #waiting = new Set<EdgeSource>()
  readonly #alarms: NetAlarm[] = []
  readonly #timer = this.addAlarm(now => this.onTimer(now))
  #poll: PollSet | undefined
  #onReady: (() => void) | undefined
  /** There were edges in this turn, and `ready` is to be called after them. */
  #edges = false
  readonly #afterEdges = (): void => {
    this.#edges = false
    this.ready()
  }
  /** Called when the time for which somebody asked has come. */
  onTimer: (now: number) => void = () => {}
  /** Called for every frame that goes to the guest. */
  onFrame: ((bytes: Uint8Array, length: number) => void) | undefined

  /** `clock`: for tests; its own is that of the loop that it is in. */
  constructor(mtu: number, clock?: () => number) {
    this.mtu = mtu
    this.clock = clock ?? (() => this.#poll?.now() ?? performance.now())
  }

  start(poll: PollSet, onReady: () => void): void {
    this.stop()
    this.#poll = poll
    this.#onReady = onReady
    // Whatever came before is told as an edge now.
    for (const [fd, source] of this.#sources) this.#listen(poll, fd, source)
    for (const alarm of this.#alarms) alarm.join(poll)
  }

  get started(): boolean {
    return this.#poll !== undefined
  }

  stop(): void {
    const poll = this.#poll
    if (poll !== undefined) {
      for (const fd of this.#sources.keys()) poll.remove(fd)
      for (const alarm of this.#alarms) alarm.leave(poll)
    }
    this.#poll = undefined
    this.#onReady = undefined
    this.ring.clear()
  }

  /** The host is likely to answer within `milliseconds`. */
  expect(milliseconds: number): void {
    this.#poll?.expect(milliseconds)
  }

  /** There may be frames for the guest, or room for its own. */
  ready(): void {
    this.#onReady?.()
  }

  addAlarm(ring: (now: number) => void): NetAlarm {
    const alarm = new NetAlarm(this, ring)
    this.#alarms.push(alarm)
    return alarm
  }

  /** A moment of our clock by the loop's. */
  pollTime(moment: number): number {
    return (this.#poll?.now() ?? 0) + Math.max(moment - this.clock(), 0)
  }

  /** Asks for `onTimer` at `deadline`, or before. */
  wakeAt(deadline: number): void {
    this.#timer.set(deadline)
  }

  #listen(poll: PollSet, fd: number, source: EdgeSource): void {
    poll.add(fd, POLLIN | POLLOUT | POLLRDHUP | EDGES, events => {
      source.onEdge(events)
      // Once a turn: what many sockets have said is passed on together.
      if (!this.#edges) poll.later(this.#afterEdges)
      this.#edges = true
    })
  }

  /** Tells `source` of edges from now on, until `unwatch`. */
  watch(fd: number, source: EdgeSource): void {
    this.#sources.set(fd, source)
    if (this.#poll !== undefined) this.#listen(this.#poll, fd, source)
  }

  /** Before the descriptor is closed. */
  unwatch(fd: number): void {
    this.#poll?.remove(fd)
    this.#drop(fd)
  }

  /** The same for a descriptor that is closed right after, and is nobody else's: one call into the kernel less. */
  forget(fd: number): void {
    this.#poll?.forget(fd)
    this.#drop(fd)
  }

  #drop(fd: number): void {
    this.#waiting.delete(this.#sources.get(fd)!)
    this.#sources.delete(fd)
  }

  /** Room for one more datagram; if not, `source` hears of it when there is. */
  roomFor(source: EdgeSource): boolean {
    if (this.ring.count < RING_FRAMES / 2) return true
    this.#waiting.add(source)
    return false
  }

  resumeLater(source: EdgeSource): void {
    this.#waiting.add(source)
  }

  /** The ring has been emptied: those that waited go on. */
  drained(): void {
    if (this.#waiting.size === 0) return
    const waiting = [...this.#waiting]
    this.#waiting.clear()
    for (const source of waiting) source.onEdge(1)
  }

  /** Queues the frame of `length` bytes that is in the writer. */
  emit(length: number): void {
    if (!this.ring.push(this.writer.bytes, length)) this.counters.queueFull++
  }
}
