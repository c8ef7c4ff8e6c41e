/**
 * The guest's console on disk, bounded: when it has grown to twice its limit, the older half goes. What a full disk has no room for is lost:
 * a log must not end the box.
 */
import { closeSync, ftruncateSync, openSync, readSync, writeSync } from 'node:fs'

const LIMIT = 512 * 1024

export class ConsoleLog {
  readonly #fd: number
  #size = 0

  /** Starts anew: a log is of one run. */
  constructor(path: string) {
    this.#fd = openSync(path, 'w+', 0o600)
  }

  write(data: Uint8Array): void {
    try {
      this.#size += writeSync(this.#fd, data, 0, data.length, this.#size)
      if (this.#size > 2 * LIMIT) this.#halve()
    } catch {
      // No room, or no home any more.
    }
  }

  #halve(): void {
    const kept = Buffer.allocUnsafe(LIMIT)
    const size = readSync(this.#fd, kept, 0, LIMIT, this.#size - LIMIT)
    writeSync(this.#fd, kept, 0, size, 0)
    ftruncateSync(this.#fd, size)
    this.#size = size
  }

  close(): void {
    closeSync(this.#fd)
  }
}
