/**
 * The memory balloon: VIRTIO 1.2, section 5.5. Pages that the guest puts into it, and pages that it reports as free, are
 * dropped from the host's memory; they come back as soon as the guest touches them.
 */
import { IoVector } from '../../host/io-vector.ts'
import { dropPages } from '../../host/memory-advice.ts'
import { type DeviceLink, type SavedValue, TYPE_BALLOON, type VirtioDevice } from '../device.ts'
import { GuestFault } from '../errors.ts'
import type { Virtqueue } from '../queue/virtqueue.ts'
import { integerOf, recordOf } from '../saved.ts'
import {
  BALLOON_QUEUE_SIZE,
  type BalloonOptions,
  balloonConfig,
  CONFIG_ACTUAL,
  CONFIG_NUM_PAGES,
  F_DEFLATE_ON_OOM,
  F_REPORTING,
  F_STATS_VQ,
  PAGE,
  PAGES_PER_MIB,
  pagesBytes,
} from './config.ts'
import {
  BAD_PAGES,
  BALLOON_COUNTERS,
  DEFLATED_PAGES,
  DROPPED_BYTES,
  INFLATED_PAGES,
  REPORTED_BYTES,
} from './metrics.ts'
import { restoreBalloon, saveBalloon } from './state.ts'
import { type GuestMemoryStats, MAX_STATS_BYTES, parseStats } from './stats.ts'

const INFLATE_QUEUE = 0
const DEFLATE_QUEUE = 1
const STATS_QUEUE = 2
const FAIR_SHARE = 32
/** Page numbers in one request: Linux sends 256. */
const MAX_PAGES = 4096

export class BalloonDevice implements VirtioDevice {
  readonly type = TYPE_BALLOON
  readonly features: readonly number[]
  readonly queueSizes: readonly number[] = [BALLOON_QUEUE_SIZE, BALLOON_QUEUE_SIZE, 16, 64]
  readonly config: Uint8Array
  readonly writableConfig = [CONFIG_ACTUAL, CONFIG_ACTUAL + 4] as const
  readonly counterNames = BALLOON_COUNTERS
  readonly #pages = new Uint8Array(MAX_PAGES * 4)
  readonly #pagesView = new DataView(this.#pages.buffer)
  #targetPages: number
  #stats: GuestMemoryStats = {}
  #link!: DeviceLink
  #readable!: IoVector
  #writable!: IoVector
  #queues: readonly Virtqueue[] = []
  #hasStats = false
  #statsWanted = false
  /** Queues exist only for features that were taken, and are numbered without gaps (as Linux and QEMU have it). */
  #reportingQueue = -1

  constructor(options: BalloonOptions = {}) {
    this.features = [
      F_STATS_VQ,
      ...((options.deflateOnOom ?? true) ? [F_DEFLATE_ON_OOM] : []),
      ...((options.reporting ?? true) ? [F_REPORTING] : []),
    ]
    this.#targetPages = (options.targetMib ?? 0) * PAGES_PER_MIB
    this.config = balloonConfig(options.targetMib ?? 0)
  }

  attach(link: DeviceLink): void {
    this.#link = link
    this.#readable = new IoVector(link.memory.bytes)
    this.#writable = new IoVector(link.memory.bytes)
  }

  activate(queues: readonly Virtqueue[], has: (feature: number) => boolean): void {
    this.#queues = queues
    this.#hasStats = has(F_STATS_VQ)
    this.#reportingQueue = has(F_REPORTING) ? (this.#hasStats ? 3 : 2) : -1
  }

  reset(): void {
    this.#queues = []
    this.#stats = {}
    this.#statsWanted = false
    // The new driver has nothing in the balloon.
    this.#link.changeConfig(CONFIG_ACTUAL, pagesBytes(0))
  }

  notified(index: number): boolean {
    const queue = this.#queues[index]
    if (queue === undefined) return false
    if (this.#hasStats && index === STATS_QUEUE) {
      if (this.#statsWanted) this.#askForStats(queue)
      else this.#readStats(queue)
      return false
    }
    let share = FAIR_SHARE
    queue.quiet()
    do {
      for (; share > 0; share--) {
        this.#readable.clear()
        this.#writable.clear()
        const head = queue.pop(this.#readable, this.#writable)
        if (head < 0) break
        this.#serve(index)
        queue.push(head, 0)
      }
      this.#link.publish(queue)
      if (share === 0) return true
    } while (queue.rearm())
    return false
  }

  #serve(index: number): void {
    const { counters } = this.#link
    if (index === this.#reportingQueue) {
      if (this.#readable.count !== 0) throw new GuestFault('request-shape', 'a report of free pages is not writable')
      this.#dropReported()
      return
    }
    const bytes = this.#readable.byteLength
    if (this.#writable.count !== 0 || bytes % 4 !== 0 || bytes > this.#pages.length) {
      throw new GuestFault('request-shape', `a balloon request of ${bytes} bytes`)
    }
    if (index === INFLATE_QUEUE) this.#inflate(bytes / 4)
    else if (index === DEFLATE_QUEUE) counters[DEFLATED_PAGES]! += bytes / 4
  }

  /** Drops the pages whose numbers are in the request, runs of neighbours together. */
  #inflate(count: number): void {
    const { counters } = this.#link
    this.#readable.copyTo(this.#pages.subarray(0, count * 4))
    counters[INFLATED_PAGES]! += count
    for (let i = 0; i < count; ) {
      const first = this.#pagesView.getUint32(4 * i, true)
      let run = 1
      while (i + run < count && this.#pagesView.getUint32(4 * (i + run), true) === first + run) run++
      const offset = this.#link.memory.offsetOf(first * PAGE, run * PAGE)
      if (offset >= 0) {
        this.#drop(offset, run * PAGE)
        i += run
        continue
      }
      // Not all of it is RAM: the first page alone, and on.
      const single = this.#link.memory.offsetOf(first * PAGE, PAGE)
      if (single >= 0) this.#drop(single, PAGE)
      else counters[BAD_PAGES]! += 1
      i++
    }
  }

  #dropReported(): void {
    const { offsets, lengths, count, byteLength } = this.#writable
    this.#link.counters[REPORTED_BYTES]! += byteLength
    for (let i = 0; i < count; i++) {
      // Only whole pages; RAM starts on a page boundary, so offsets align as addresses do.
      const start = Math.ceil(offsets[i]! / PAGE) * PAGE
      const end = Math.floor((offsets[i]! + lengths[i]!) / PAGE) * PAGE
      if (end > start) this.#drop(start, end - start)
    }
  }

  /** `offset` is in the shared memory and checked: all of it is RAM. */
  #drop(offset: number, length: number): void {
    dropPages(this.#writable.base + offset, length)
    this.#link.noteDropped(offset, length)
    this.#link.counters[DROPPED_BYTES]! += length
  }

  /** The driver's buffer stays available until new figures are wanted, so that none is held here. */
  #readStats(queue: Virtqueue): void {
    this.#readable.clear()
    this.#writable.clear()
    if (queue.pop(this.#readable, this.#writable) < 0) return
    queue.unpop()
    const bytes = new Uint8Array(Math.min(this.#readable.byteLength, MAX_STATS_BYTES))
    this.#readable.copyTo(bytes)
    this.#stats = parseStats(bytes)
  }

  /** Gives the buffer back: the driver answers with new figures. */
  #askForStats(queue: Virtqueue): void {
    this.#readable.clear()
    this.#writable.clear()
    const head = queue.pop(this.#readable, this.#writable)
    if (head < 0) return
    this.#statsWanted = false
    queue.push(head, 0)
    this.#link.publish(queue)
    queue.rearm()
  }

  /** `{ targetMib }` sets how much to take; `{ stats: true }` gives the last figures and asks for new ones. */
  control(request: SavedValue): SavedValue {
    const wanted = recordOf(request, 'a balloon request')
    if (wanted.targetMib !== undefined) {
      const mib = integerOf(wanted.targetMib, 'the target', 0, Math.floor(this.#link.memory.size / 2 ** 20))
      this.#targetPages = mib * PAGES_PER_MIB
      this.#link.changeConfig(CONFIG_NUM_PAGES, pagesBytes(this.#targetPages))
    }
    if (wanted.stats === true && this.#hasStats && this.#queues.length > 0) {
      this.#statsWanted = true
      this.#link.ring(STATS_QUEUE)
    }
    return { targetPages: this.#targetPages, actualPages: this.#actualPages, stats: { ...this.#stats } }
  }

  get #actualPages(): number {
    let pages = 0
    for (let i = 3; i >= 0; i--) pages = pages * 256 + this.#link.readConfig(CONFIG_ACTUAL + i)
    return pages
  }

  save(): SavedValue {
    return saveBalloon(this.#targetPages)
  }

  restore(state: SavedValue): void {
    this.#targetPages = restoreBalloon(state)
  }

  close(): void {}
}
