/**
 * Storage that never calls anything durable after a flush has failed: the page cache may have dropped writes then, and the
 * next fdatasync would say nothing of them. Whoever flushes, in whatever order, is told.
 */
import type { IoVector } from '../host/io-vector.ts'
import type { Storage } from './storage.ts'

export class StickyStorage implements Storage {
  readonly #storage: Storage
  #failure: unknown

  constructor(storage: Storage) {
    this.#storage = storage
  }

  flush(): void {
    if (this.#failure !== undefined) throw this.#failure
    try {
      this.#storage.flush()
    } catch (error) {
      this.#failure = error
      throw error
    }
  }

  size(): number {
    return this.#storage.size()
  }

  read(target: Uint8Array, position: number): void {
    this.#storage.read(target, position)
  }

  write(source: Uint8Array, position: number): void {
    this.#storage.write(source, position)
  }

  readv(vector: IoVector, position: number): void {
    this.#storage.readv(vector, position)
  }

  writev(vector: IoVector, position: number): void {
    this.#storage.writev(vector, position)
  }

  giveBack(position: number, length: number): void {
    this.#storage.giveBack(position, length)
  }

  punch(position: number, length: number): void {
    this.#storage.punch(position, length)
  }

  zero(position: number, length: number): void {
    this.#storage.zero(position, length)
  }

  truncate(size: number): void {
    this.#storage.truncate(size)
  }

  isData(position: number): boolean {
    return this.#storage.isData(position)
  }

  runEnd(position: number): number {
    return this.#storage.runEnd(position)
  }

  close(): void {
    this.#storage.close()
  }
}
