/** A small seeded generator (splitmix32): the same seed gives the same cases on every machine. */
export class Random {
  #state: number

  constructor(seed: number) {
    this.#state = seed >>> 0
  }

  u32(): number {
    this.#state = (this.#state + 0x9e3779b9) >>> 0
    let z = this.#state
    z = Math.imul(z ^ (z >>> 16), 0x21f0aaad)
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97)
    return (z ^ (z >>> 15)) >>> 0
  }

  /** 0 .. n - 1. */
  below(n: number): number {
    return Math.floor((this.u32() / 0x1_0000_0000) * n)
  }

  /** True once in n times. */
  once(n: number): boolean {
    return this.below(n) === 0
  }

  pick<T>(items: readonly T[]): T {
    return items[this.below(items.length)]!
  }

  u64(): bigint {
    return (BigInt(this.u32()) << 32n) | BigInt(this.u32())
  }
}
