/** How long a device keeps the vCPU of its own thread waiting: one that does so too often is better off on another. */
import type { VirtioDevice } from '../device.ts'

/** One request that takes so long, or all of a second's: a disk that is slow, or busy. */
const LONG_MS = 15
const MUCH_MS = 100
const WINDOW_MS = 1000

export class DeviceLoad {
  readonly #onBusy: () => void
  #windowStart = 0
  #spent = 0
  #told = false

  /** `onBusy` is called once, within a request. */
  constructor(onBusy: () => void) {
    this.#onBusy = onBusy
  }

  /** As `device.notified`. */
  measure(device: VirtioDevice, queue: number): boolean {
    if (this.#told) return device.notified(queue)
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
