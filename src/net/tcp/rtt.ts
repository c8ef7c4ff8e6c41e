/** The retransmission timer: RFC 6298, with the lower bound that Linux uses. */
const INITIAL_MS = 1000
const MIN_MS = 200
const MAX_MS = 60_000

export class RoundTrip {
  #smoothed = 0
  #variation = 0
  timeout = INITIAL_MS

  sample(ms: number): void {
    if (this.#smoothed === 0) {
      this.#smoothed = Math.max(ms, 0.01)
      this.#variation = ms / 2
    } else {
      this.#variation += (Math.abs(this.#smoothed - ms) - this.#variation) / 4
      this.#smoothed += (ms - this.#smoothed) / 8
    }
    this.timeout = Math.min(Math.max(this.#smoothed + 4 * this.#variation, MIN_MS), MAX_MS)
  }

  /** The timer went off (5.5). */
  backOff(): void {
    this.timeout = Math.min(this.timeout * 2, MAX_MS)
  }

  get smoothed(): number {
    return this.#smoothed
  }
}
