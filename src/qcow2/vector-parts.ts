/** Parts of a caller's scatter list without allocating: one reusable list for each of the few memories seen. */
import { IoVector } from '../host/io-vector.ts'

const KEPT = 4

export class VectorParts {
  readonly #lists: IoVector[] = []
  #next = 0

  /** `length` bytes of `vector` from byte `start`; the vector itself when that is all of it. Valid until the next call. */
  part(vector: IoVector, start: number, length: number): IoVector {
    if (start === 0 && length === vector.byteLength) return vector
    const list = this.#listFor(vector)
    list.setToRangeOf(vector, start, length)
    return list
  }

  #listFor(vector: IoVector): IoVector {
    for (let i = 0; i < this.#lists.length; i++) {
      const list = this.#lists[i]!
      if (list.memory === vector.memory && list.capacity >= vector.capacity && list !== vector) return list
    }
    const list = new IoVector(vector.memory, vector.capacity)
    this.#lists[this.#next] = list
    this.#next = (this.#next + 1) % KEPT
    return list
  }
}
