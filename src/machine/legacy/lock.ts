/** A lock between vCPU workers: a futex of three states (Drepper, "Futexes Are Tricky"). Never taken on the main thread. */
const FREE = 0
const TAKEN = 1
const CONTENDED = 2

export class SharedLock {
  readonly #words: Int32Array
  readonly #index: number

  constructor(words: Int32Array, index: number) {
    this.#words = words
    this.#index = index
  }

  acquire(): void {
    if (Atomics.compareExchange(this.#words, this.#index, FREE, TAKEN) === FREE) return
    while (Atomics.exchange(this.#words, this.#index, CONTENDED) !== FREE) {
      Atomics.wait(this.#words, this.#index, CONTENDED)
    }
  }

  release(): void {
    if (Atomics.exchange(this.#words, this.#index, FREE) === CONTENDED) Atomics.notify(this.#words, this.#index, 1)
  }
}
