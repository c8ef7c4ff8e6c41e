/** virtio-entropy: VIRTIO 1.2, section 5.4. One queue of writable buffers, filled from the host kernel's generator. */
import { IoVector } from '../../host/io-vector.ts'
import { fillRandom } from '../../host/random.ts'
import { type DeviceLink, type SavedValue, TYPE_ENTROPY, type VirtioDevice } from '../device.ts'
import { GuestFault } from '../errors.ts'
import type { Virtqueue } from '../queue/virtqueue.ts'
import { RNG_CONFIG, RNG_MAX_BYTES, RNG_QUEUE_SIZE, type RngOptions } from './config.ts'
import { BYTES, REQUESTS, RNG_COUNTERS } from './metrics.ts'
import { restoreRng, saveRng } from './state.ts'

/** Requests a turn, before other devices of the worker have theirs. */
const FAIR_SHARE = 32

export class RngDevice implements VirtioDevice {
  readonly type = TYPE_ENTROPY
  readonly features: readonly number[] = []
  readonly queueSizes: readonly number[] = [RNG_QUEUE_SIZE]
  readonly config = RNG_CONFIG
  readonly counterNames = RNG_COUNTERS
  readonly #maxBytes: number
  #link!: DeviceLink
  #queue: Virtqueue | undefined
  #readable!: IoVector
  #writable!: IoVector

  constructor(options: RngOptions = {}) {
    this.#maxBytes = options.maxBytes ?? RNG_MAX_BYTES
  }

  attach(link: DeviceLink): void {
    this.#link = link
    this.#readable = new IoVector(link.memory.bytes)
    this.#writable = new IoVector(link.memory.bytes)
  }

  activate(queues: readonly Virtqueue[]): void {
    this.#queue = queues[0]
  }

  reset(): void {
    this.#queue = undefined
  }

  notified(): boolean {
    const queue = this.#queue
    if (queue === undefined) return false
    let share = FAIR_SHARE
    queue.quiet()
    do {
      for (; share > 0; share--) {
        this.#readable.clear()
        this.#writable.clear()
        const head = queue.pop(this.#readable, this.#writable)
        if (head < 0) break
        this.#fill(queue, head)
      }
      this.#link.publish(queue)
      if (share === 0) return true
    } while (queue.rearm())
    return false
  }

  #fill(queue: Virtqueue, head: number): void {
    if (this.#readable.count !== 0 || this.#writable.count === 0) {
      throw new GuestFault('request-shape', 'an entropy buffer must be device-writable')
    }
    // Less than was asked for is allowed (5.4.6.1), and keeps one request from taking long.
    const length = Math.min(this.#writable.byteLength, this.#maxBytes)
    fillRandom(this.#writable, length)
    queue.pushWritten(head, this.#writable, length)
    this.#link.counters[REQUESTS]! += 1
    this.#link.counters[BYTES]! += length
  }

  save(): SavedValue {
    return saveRng()
  }

  restore(state: SavedValue): void {
    restoreRng(state)
  }

  close(): void {}
}
