/** virtio-blk: VIRTIO 1.2, section 5.2. Several queues, one worker: requests are executed where the doorbell is heard. */
import { type DeviceLink, type SavedValue, TYPE_BLOCK, type VirtioDevice } from '../device.ts'
import { VirtioError } from '../errors.ts'
import type { Virtqueue } from '../queue/virtqueue.ts'
import type { BlockBackend } from './backend.ts'
import {
  BLK_QUEUE_SIZE,
  type BlkOptions,
  blkConfig,
  blkFeatures,
  CONFIG_WRITEBACK,
  capacitySectors,
  F_CONFIG_WCE,
  F_FLUSH,
} from './config.ts'
import { HeldDisk } from './held-disk.ts'
import { BLK_COUNTERS } from './metrics.ts'
import { BlkRequests } from './request.ts'
import { restoreBlk, saveBlk } from './state.ts'

/** Completions that are published together, with one interrupt if the driver wants any. */
const BATCH = 16
/** Requests a turn, before the worker's other queues and devices have theirs. */
const FAIR_SHARE = 128

export class BlkDevice implements VirtioDevice {
  readonly type = TYPE_BLOCK
  readonly features: readonly number[]
  readonly queueSizes: readonly number[]
  readonly config: Uint8Array
  readonly writableConfig = [CONFIG_WRITEBACK, CONFIG_WRITEBACK + 1] as const
  readonly counterNames = BLK_COUNTERS
  readonly #backend: BlockBackend
  readonly #serial: string
  #link!: DeviceLink
  #requests!: BlkRequests
  #queues: readonly Virtqueue[] = []
  #canFlush = false
  #canChangeCache = false

  /** Takes the backend over: closes it when it is closed itself. */
  constructor(backend: BlockBackend, options: BlkOptions = {}) {
    const queues = options.queues ?? 1
    this.#backend = backend
    this.#serial = options.serial ?? ''
    this.features = blkFeatures(backend)
    this.queueSizes = Array.from({ length: queues }, () => BLK_QUEUE_SIZE)
    this.config = blkConfig(backend, queues)
  }

  attach(link: DeviceLink): void {
    this.#link = link
    this.#requests = new BlkRequests(
      link.memory,
      this.#backend,
      this.#serial,
      link.counters,
      error => link.report(error),
      () => this.#writesThrough(),
    )
  }

  activate(queues: readonly Virtqueue[], has: (feature: number) => boolean): void {
    this.#queues = queues
    this.#canFlush = has(F_FLUSH)
    this.#canChangeCache = has(F_CONFIG_WCE)
  }

  /**
   * The driver chooses between write-back and write-through (5.2.5), by a byte that is looked at for every write: a write
   * that the driver sends after it has changed the byte may be here before word of the change is.
   */
  #writesThrough(): boolean {
    return !this.#canFlush || (this.#canChangeCache && this.#link.readConfig(CONFIG_WRITEBACK) === 0)
  }

  reset(): void {
    this.#queues = []
    this.#link.changeConfig(CONFIG_WRITEBACK, this.config.subarray(CONFIG_WRITEBACK, CONFIG_WRITEBACK + 1))
  }

  notified(index: number): boolean {
    const queue = this.#queues[index]
    if (queue === undefined) return false
    const requests = this.#requests
    let share = FAIR_SHARE
    queue.quiet()
    do {
      for (; share > 0; share--) {
        requests.readable.clear()
        requests.writable.clear()
        const head = queue.pop(requests.readable, requests.writable)
        if (head < 0) break
        requests.execute()
        queue.pushWritten(head, requests.writable, requests.written)
        if (requests.isLong) share = 1
        if (share % BATCH === 1) this.#link.publish(queue)
      }
      this.#link.publish(queue)
      if (share === 0) return true
    } while (queue.rearm())
    return false
  }

  /** 'flush', and for disks that can: 'release' and 'reopen', between which no request may come (the machine is paused). */
  control(request: SavedValue): SavedValue {
    const disk = this.#backend
    if (request === 'flush') disk.flush()
    else if (request === 'release' && disk instanceof HeldDisk) disk.release()
    else if (request === 'reopen' && disk instanceof HeldDisk) disk.reopen()
    else throw new VirtioError('BAD_DESCRIPTION', `a disk knows nothing of ${JSON.stringify(request)}`)
    return null
  }

  save(): SavedValue {
    // What is acknowledged must be in the file before the snapshot names it.
    this.#backend.flush()
    return saveBlk(capacitySectors(this.#backend))
  }

  restore(state: SavedValue): void {
    restoreBlk(state, capacitySectors(this.#backend))
  }

  close(): void {
    this.#backend.close()
  }
}
