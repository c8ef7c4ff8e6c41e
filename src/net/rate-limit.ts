/**
 * A token bucket: bytes per second, with a burst. Frames are not cut: one may overdraw the bucket, and the next waits
 * until the debt is paid. Nothing is dropped; whoever sends waits, and so does whoever feeds it.
 */
export class RateLimit {
  readonly #clock: () => number
  #rate = Number.POSITIVE_INFINITY
  #burst = 0
  #tokens = 0
  #filledAt = 0

  constructor(clock: () => number) {
    this.#clock = clock
  }

  get rate(): number {
    return this.#rate
  }

  /** Bytes a second; infinity takes the limit off. */
  set(rate: number): void {
    this.#rate = rate
    this.#burst = Math.max(rate / BURSTS_PER_SECOND, MIN_BURST)
    this.#tokens = this.#burst
    this.#filledAt = this.#clock()
  }

  /** Milliseconds until the next frame may go; 0: now. */
  wait(): number {
    if (this.#rate === Number.POSITIVE_INFINITY) return 0
    if (this.#tokens > 0) return 0
    const now = this.#clock()
    this.#tokens = Math.min(this.#burst, this.#tokens + ((now - this.#filledAt) / 1000) * this.#rate)
    this.#filledAt = now
    return this.#tokens > 0 ? 0 : Math.max((-this.#tokens / this.#rate) * 1000, 1)
  }

  take(bytes: number): void {
    if (this.#rate !== Number.POSITIVE_INFINITY) this.#tokens -= bytes
  }
}

const BURSTS_PER_SECOND = 20
const MIN_BURST = 3000
