/** virtio-net: VIRTIO 1.2, section 5.1. One pair of queues between the guest and a `FrameLink`. */
import { IoVector } from '../../host/io-vector.ts'
import { type DeviceLink, type SavedValue, TYPE_NET, type VirtioDevice } from '../device.ts'
import { GuestFault } from '../errors.ts'
import type { Virtqueue } from '../queue/virtqueue.ts'
import { booleanOf, recordOf } from '../saved.ts'
import {
  CONFIG_STATUS,
  F_CSUM,
  F_GUEST_CSUM,
  F_GUEST_TSO4,
  F_GUEST_TSO6,
  F_HOST_TSO4,
  F_HOST_TSO6,
  F_MRG_RXBUF,
  MAX_FRAME,
  NET_HEADER,
  NET_QUEUE_SIZE,
  type NetOptions,
  netConfig,
  netFeatures,
  RX_QUEUE,
  STATUS_LINK_UP,
  TX_QUEUE,
} from './config.ts'
import { NetHeader } from './header.ts'
import type { FrameLink } from './link.ts'
import * as metric from './metrics.ts'
import { restoreNet, saveNet } from './state.ts'

const FAIR_SHARE = 128
/** Buffers that one frame may be spread over. */
const MAX_MERGED = 64
const MIN_FRAME = 14
/** Bytes whose buffers the guest does not need back at once. */
const LITTLE = 4096
/** Bytes a turn above which frames are better passed on together. */
const MUCH = 1 << 16

export class NetDevice implements VirtioDevice {
  readonly type = TYPE_NET
  readonly features: readonly number[]
  readonly queueSizes: readonly number[] = [NET_QUEUE_SIZE, NET_QUEUE_SIZE]
  readonly config: Uint8Array
  readonly counterNames = metric.NET_COUNTERS
  readonly #frames: FrameLink
  readonly #header = new NetHeader()
  readonly #heads = new Uint16Array(MAX_MERGED)
  readonly #sizes = new Float64Array(MAX_MERGED)
  #link!: DeviceLink
  #readable!: IoVector
  #writable!: IoVector
  #frame!: IoVector
  #queues: readonly Virtqueue[] = []
  #checksum = false
  #segmentation4 = false
  #segmentation6 = false
  #merges = false
  #up = true
  /** The link had no room: the guest's frames wait. */
  #txWaits = false
  /** A queue is being looked at, or the machine may be paused: what the link has to say waits for its turn. */
  #busy = false
  /** Bytes that passed either way in turns of the loop until `#turn`, each counting half as much as the next. */
  #moved = 0
  #turn = 0

  /** Takes the link over: closes it when it is closed itself. */
  constructor(link: FrameLink, options: NetOptions) {
    this.config = netConfig(options)
    this.features = netFeatures(link.offloads)
    this.#frames = link
  }

  attach(link: DeviceLink): void {
    this.#link = link
    this.#readable = new IoVector(link.memory.bytes)
    this.#writable = new IoVector(link.memory.bytes)
    this.#frame = new IoVector(link.memory.bytes)
  }

  activate(queues: readonly Virtqueue[], has: (feature: number) => boolean): void {
    this.#queues = queues
    this.#checksum = has(F_CSUM)
    this.#segmentation4 = has(F_HOST_TSO4)
    this.#segmentation6 = has(F_HOST_TSO6)
    this.#merges = has(F_MRG_RXBUF)
    this.#frames.start(this.#link.poll, () => this.#onReady(), {
      checksum: has(F_GUEST_CSUM),
      segments4: has(F_GUEST_TSO4),
      segments6: has(F_GUEST_TSO6),
    })
  }

  reset(): void {
    this.#queues = []
    this.#txWaits = false
    this.#frames.stop()
  }

  #onReady(): void {
    if (this.#queues.length === 0) return
    if (this.#busy) {
      this.#link.ring(RX_QUEUE)
      if (this.#txWaits) this.#link.ring(TX_QUEUE)
      return
    }
    // From a poll handler: without a doorbell of our own, which would cost a write, a poll and a read.
    this.#link.serve(RX_QUEUE)
    if (this.#txWaits) this.#link.serve(TX_QUEUE)
  }

  get isBusy(): boolean {
    this.#move(0)
    return this.#moved > MUCH
  }

  #move(bytes: number): void {
    const { turn } = this.#link.poll
    if (turn !== this.#turn) {
      const turns = turn - this.#turn
      this.#moved = turns < 31 ? Math.floor(this.#moved / (1 << turns)) : 0
      this.#turn = turn
    }
    this.#moved += bytes
  }

  notified(index: number): boolean {
    if (this.#queues.length === 0) return false
    this.#busy = true
    try {
      if (index === RX_QUEUE) return this.#receive()
      const more = this.#send()
      // A link often answers at once.
      if (this.#frames.nextLength > 0 && this.#receive()) this.#link.ring(RX_QUEUE)
      return more
    } finally {
      this.#busy = false
    }
  }

  /** Guest to link. */
  #send(): boolean {
    const queue = this.#queues[TX_QUEUE]!
    let share = FAIR_SHARE
    let bytes = 0
    this.#txWaits = false
    queue.quiet()
    do {
      for (; share > 0; share--) {
        this.#readable.clear()
        this.#writable.clear()
        const head = queue.pop(this.#readable, this.#writable)
        if (head < 0) break
        if (!this.#sendFrame()) {
          queue.unpop()
          this.#link.publish(queue)
          this.#txWaits = true
          this.#link.counters[metric.WAITS]! += 1
          return false
        }
        bytes += this.#readable.byteLength
        queue.push(head, 0)
      }
      // That it is gone is of little interest to a sender of little: an answer may say it, too.
      if (bytes < LITTLE) this.#link.publishIdly(queue)
      else this.#link.publish(queue)
      if (share === 0) return true
    } while (queue.rearm())
    return false
  }

  /** False when the link has no room now. A frame that makes no sense is dropped, as a switch would. */
  #sendFrame(): boolean {
    const { counters } = this.#link
    const length = this.#readable.byteLength - NET_HEADER
    if (length < 0 || this.#writable.count !== 0) throw new GuestFault('request-shape', 'a frame without its header')
    const header = this.#header
    header.load(this.#readable)
    const fits = length >= MIN_FRAME && length <= MAX_FRAME
    if (!this.#up || !fits || !header.plausible(length, this.#checksum, this.#segmentation4, this.#segmentation6)) {
      counters[metric.DROPPED_OUT]! += 1
      return true
    }
    this.#frame.setToRangeOf(this.#readable, NET_HEADER, length)
    if (!this.#frames.send(this.#frame, header)) return false
    this.#move(length)
    counters[metric.FRAMES_OUT]! += 1
    counters[metric.BYTES_OUT]! += length
    return true
  }

  /** Link to guest. */
  #receive(): boolean {
    const queue = this.#queues[RX_QUEUE]!
    let share = FAIR_SHARE
    let short = false
    let idle = true
    queue.quiet()
    do {
      short = false
      for (; share > 0 && !short; share--) {
        const length = this.#frames.nextLength
        if (length === 0) break
        if (!this.#up || length > MAX_FRAME) this.#dropNext()
        else short = !this.#receiveFrame(queue, length)
        if (this.#frames.isIdle !== true) idle = false
      }
      if (idle) this.#link.publishIdly(queue)
      else this.#link.publish(queue)
      if (share === 0) return true
    } while (short && queue.rearmForMore())
    return false
  }

  #dropNext(): void {
    this.#frames.skip()
    this.#link.counters[metric.DROPPED_IN]! += 1
  }

  /**
   * Takes buffers for `wanted` bytes into `#writable`; their number. Negative when they are too few, or when the driver
   * does not merge and its buffer is too small.
   */
  #take(queue: Virtqueue, wanted: number): number {
    let count = 0
    this.#readable.clear()
    this.#writable.clear()
    while (this.#writable.byteLength < wanted) {
      if (count === MAX_MERGED || (count === 1 && !this.#merges)) return -count
      const before = this.#writable.byteLength
      const head = queue.pop(this.#readable, this.#writable)
      if (head < 0) return -count
      if (this.#readable.count !== 0) throw new GuestFault('request-shape', 'a receive buffer is not writable')
      this.#heads[count] = head
      this.#sizes[count++] = this.#writable.byteLength - before
    }
    if (this.#sizes[0]! < NET_HEADER)
      throw new GuestFault('request-shape', 'a receive buffer without room for a header')
    return count
  }

  /** False when there are not enough buffers now. */
  #receiveFrame(queue: Virtqueue, length: number): boolean {
    const { counters } = this.#link
    const count = this.#take(queue, length + NET_HEADER)
    if (count <= 0) {
      // A buffer that is too small for this frame will never do; for more buffers we wait.
      const never = count === -MAX_MERGED || (count === -1 && !this.#merges)
      queue.unpop(-count)
      if (never) this.#dropNext()
      return never
    }
    this.#frame.setToRangeOf(this.#writable, NET_HEADER, length)
    this.#header.clear()
    this.#frames.receive(this.#frame, this.#header)
    this.#header.store(this.#writable, count)
    queue.noteWritten(this.#writable, length + NET_HEADER)
    let left = length + NET_HEADER
    for (let i = 0; i < count; i++) {
      const share = Math.min(left, this.#sizes[i]!)
      queue.push(this.#heads[i]!, share)
      left -= share
    }
    this.#move(length)
    counters[metric.FRAMES_IN]! += 1
    counters[metric.BYTES_IN]! += length
    return true
  }

  /** `{ up }` plugs the cable in or out; `{ link }` is a request to what it is plugged into. */
  control(request: SavedValue): SavedValue {
    const { link, up } = recordOf(request, 'a network card request')
    if (link !== undefined && this.#frames.control !== undefined) {
      this.#busy = true
      try {
        return this.#frames.control(link)
      } finally {
        this.#busy = false
      }
    }
    this.#setUp(booleanOf(up, 'whether the link is up'))
    return null
  }

  #setUp(up: boolean): void {
    this.#up = up
    this.#link.changeConfig(CONFIG_STATUS, new Uint8Array([up ? STATUS_LINK_UP : 0, 0]))
  }

  save(): SavedValue {
    return saveNet(this.#up, this.#frames.save?.())
  }

  restore(state: SavedValue): void {
    const { up, link } = restoreNet(state)
    this.#up = up
    if (link !== undefined) this.#frames.restore?.(link)
  }

  close(): void {
    this.#frames.close()
  }
}
