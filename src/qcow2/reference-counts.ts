/** How often each cluster is referred to, counted by a check. Sparse, and with a bound on memory. */
import { DiskError } from './errors.ts'

const CHUNK = 4096

export class ReferenceCounts {
  readonly #chunks = new Map<number, Uint32Array>()
  readonly #maxChunks: number
  readonly #path: string
  /** One past the highest cluster counted. */
  end = 0

  constructor(path: string, maxBytes: number) {
    this.#path = path
    this.#maxChunks = Math.max(1, Math.floor(maxBytes / (CHUNK * 4)))
  }

  get(cluster: number): number {
    return this.#chunks.get(Math.floor(cluster / CHUNK))?.[cluster % CHUNK] ?? 0
  }

  add(cluster: number, references: number): void {
    const index = Math.floor(cluster / CHUNK)
    let chunk = this.#chunks.get(index)
    if (!chunk) {
      if (this.#chunks.size >= this.#maxChunks) {
        throw new DiskError(
          'TOO_LARGE',
          this.#path,
          'has too many clusters spread too far to be checked in the memory allowed',
        )
      }
      chunk = new Uint32Array(CHUNK)
      this.#chunks.set(index, chunk)
    }
    chunk[cluster % CHUNK]! += references
    if (cluster >= this.end) this.end = cluster + 1
  }

  /** Every cluster that is referred to, chunk by chunk in no particular order. */
  forEach(visit: (cluster: number, references: number) => void): void {
    for (const [index, chunk] of this.#chunks) {
      for (let i = 0; i < CHUNK; i++) if (chunk[i] !== 0) visit(index * CHUNK + i, chunk[i]!)
    }
  }
}
