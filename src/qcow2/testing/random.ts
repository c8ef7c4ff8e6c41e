/** Seeded randomness (mulberry32): a failing run names its seed and can be run again. */
export class Random {
  #state: number

  constructor(seed: number) {
    this.#state = seed >>> 0
  }

  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0
    let t = this.#state
    t = Math.imul(t ^ (t >>> 15), t | 1)
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }

  /** An integer from 0 to `limit` - 1. */
  below(limit: number): number {
    return Math.floor(this.next() * limit)
  }

  pick<T>(items: readonly T[]): T {
    return items[this.below(items.length)]!
  }

  chance(probability: number): boolean {
    return this.next() < probability
  }

  /** Bytes that are a mixture of runs and noise, so that some clusters compress and some do not. */
  bytes(length: number): Uint8Array {
    const bytes = new Uint8Array(length)
    for (let at = 0; at < length; ) {
      const run = Math.min(length - at, 1 + this.below(3000))
      if (this.chance(0.5)) bytes.fill(1 + this.below(255), at, at + run)
      else for (let i = 0; i < run; i++) bytes[at + i] = this.below(256)
      at += run
    }
    return bytes
  }
}
