/** How long a device keeps the vCPU of its own thread waiting: one that does so too often is better off on another. */
import { performance } from 'node:perf_hooks'
import type { VirtioDevice } from '../device.ts'

/** One turn of requests that takes so long, or all of a second's: a disk that is slow, or busy. */
const LONG_MS = 50
const MUCH_MS = 250
const WINDOW_MS = 1000
/** Turns before that counts: a guest that has just gone on does little, and on a crowded host that takes long for other reasons. */
const WARM = 500

export class DeviceLoad {
  readonly #onBusy: () => void
  #windowStart = 0
  #spent = 0
  #told = false
  #turns = 0

  /** `onBusy` is called once, within a request. */
  constructor(onBusy: () => void) {
    this.#onBusy = onBusy
  }

  /** As `device.notified`. */
  measure(device: VirtioDevice, queue: number): boolean {
    if (this.#told || ++this.#turns < WARM) return device.notified(queue)
    const began = performance.now()
    const more = device.notified(queue)
    this.#add(began, performance.now() - began)
    return more
  }

  #add(now: number, spent: number): void {
    if (now - this.#windowStart > WINDOW_MS) {
      this.#windowStart = now
      this.#spent = 0
    }
    this.#spent += spent
    if (spent < LONG_MS && this.#spent < MUCH_MS) return
    this.#told = true
    this.#onBusy()
  }
}
