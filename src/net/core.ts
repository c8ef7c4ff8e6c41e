/** What the protocols of one network share: the way to the guest, the way to host sockets, the clock, the counters. */
import { EdgePoll } from '../host/epoll.ts'
import { closeFd } from '../host/file.ts'
import { POLLIN, type PollSet } from '../host/poll.ts'
import { TimerFd } from '../host/timer-fd.ts'
import { NetCounters } from './counters.ts'
import { FrameRing } from './frame-ring.ts'
import { FrameWriter } from './writer.ts'

const RING_BYTES = 1 << 20
const RING_FRAMES = 1024
/** A little late is cheaper than too often. */
const TIMER_SLACK_MS = 1

/** Something that has a host socket. */
export interface EdgeSource {
  /** The socket changed: read, write or look for errors until it would block. */
  onEdge(events: number): void
}

export class NetCore {
  readonly counters = new NetCounters()
  readonly writer = new FrameWriter()
  readonly ring = new FrameRing(RING_BYTES, RING_FRAMES)
  readonly clock: () => number
  mtu: number
  readonly #edges = new EdgePoll()
  readonly #timer = new TimerFd()
  readonly #sources: (EdgeSource | undefined)[] = []
  readonly #free: number[] = []
  /** Sources that stopped reading because the ring was full. */
  readonly #waiting = new Set<EdgeSource>()
  #armed = Number.POSITIVE_INFINITY
  #poll: PollSet | undefined
  #onReady: (() => void) | undefined
  /** Called when the alarm rings. */
  onTimer: (now: number) => void = () => {}
  /** Called for every frame that goes to the guest. */
  onFrame: ((bytes: Uint8Array, length: number) => void) | undefined
  readonly #onEdge = (tag: number, events: number): void => this.#sources[tag]?.onEdge(events)

  constructor(mtu: number, clock: () => number) {
    this.mtu = mtu
    this.clock = clock
  }

  start(poll: PollSet, onReady: () => void): void {
    this.stop()
    this.#poll = poll
    this.#onReady = onReady
    poll.add(this.#edges.fd, POLLIN, () => {
      this.#edges.dispatch(this.#onEdge)
      this.ready()
    })
    poll.add(this.#timer.fd, POLLIN, () => {
      this.#timer.drain()
      this.#armed = Number.POSITIVE_INFINITY
      this.onTimer(this.clock())
      this.ready()
    })
  }

  get started(): boolean {
    return this.#poll !== undefined
  }

  stop(): void {
    this.#poll?.remove(this.#edges.fd)
    this.#poll?.remove(this.#timer.fd)
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

  /** Asks for `onTimer` at `deadline`, or before. */
  wakeAt(deadline: number): void {
    if (deadline >= this.#armed) return
    this.#armed = deadline
    this.#timer.set(Math.max(deadline - this.clock(), 0) + TIMER_SLACK_MS)
  }

  /** Registers a socket; the number to `unwatch` it with. */
  watch(fd: number, source: EdgeSource): number {
    const tag = this.#free.pop() ?? this.#sources.length
    this.#sources[tag] = source
    this.#edges.add(fd, tag)
    return tag
  }

  /** Before the descriptor is closed. */
  unwatch(fd: number, tag: number): void {
    this.#edges.remove(fd)
    this.#waiting.delete(this.#sources[tag]!)
    this.#sources[tag] = undefined
    this.#free.push(tag)
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

  close(): void {
    this.stop()
    closeFd(this.#edges.fd)
    closeFd(this.#timer.fd)
  }
}
