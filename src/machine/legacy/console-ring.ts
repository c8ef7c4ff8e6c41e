/**
 * A byte ring in shared memory between one side that writes and one that reads. Heads and tails count bytes for ever,
 * modulo 2^32; a byte is stored before the head that covers it.
 */
import { CONSOLE_IN_OFFSET, CONSOLE_OUT_OFFSET, CONSOLE_RING_SIZE, CONTROL, controlWords } from '../shared-layout.ts'

const MASK = CONSOLE_RING_SIZE - 1

export class ConsoleRing {
  readonly words: Int32Array
  readonly #bytes: Uint8Array
  readonly #head: number
  /** The word that a writer of a full ring waits on. */
  readonly tailIndex: number

  private constructor(wasm: WebAssembly.Memory, offset: number, head: number, tail: number) {
    this.words = controlWords(wasm)
    this.#bytes = new Uint8Array(wasm.buffer, offset, CONSOLE_RING_SIZE)
    this.#head = head
    this.tailIndex = tail
  }

  static output(wasm: WebAssembly.Memory): ConsoleRing {
    return new ConsoleRing(wasm, CONSOLE_OUT_OFFSET, CONTROL.outHead, CONTROL.outTail)
  }

  static input(wasm: WebAssembly.Memory): ConsoleRing {
    return new ConsoleRing(wasm, CONSOLE_IN_OFFSET, CONTROL.inHead, CONTROL.inTail)
  }

  get used(): number {
    return (Atomics.load(this.words, this.#head) - Atomics.load(this.words, this.tailIndex)) >>> 0
  }

  /** Adds a byte; the caller has checked that there is room. True if the ring was empty. */
  push(byte: number): boolean {
    const head = Atomics.load(this.words, this.#head)
    this.#bytes[head & MASK] = byte
    Atomics.store(this.words, this.#head, (head + 1) | 0)
    return Atomics.load(this.words, this.tailIndex) === head
  }

  /** Adds as much of `data` as fits; how much that was. */
  write(data: Uint8Array): number {
    const head = Atomics.load(this.words, this.#head)
    const count = Math.min(data.length, CONSOLE_RING_SIZE - this.used)
    for (let i = 0; i < count; i++) this.#bytes[(head + i) & MASK] = data[i]!
    Atomics.store(this.words, this.#head, (head + count) | 0)
    return count
  }

  /** Takes one byte, or -1. */
  pop(): number {
    const tail = Atomics.load(this.words, this.tailIndex)
    if (Atomics.load(this.words, this.#head) === tail) return -1
    const byte = this.#bytes[tail & MASK]!
    Atomics.store(this.words, this.tailIndex, (tail + 1) | 0)
    return byte
  }

  /** A copy of everything, which stays. */
  peek(): Uint8Array {
    const tail = Atomics.load(this.words, this.tailIndex)
    const data = new Uint8Array((Atomics.load(this.words, this.#head) - tail) >>> 0)
    for (let i = 0; i < data.length; i++) data[i] = this.#bytes[(tail + i) & MASK]!
    return data
  }

  /** Takes everything, as a copy, and wakes a writer that waits for room. */
  take(): Uint8Array {
    const data = this.peek()
    Atomics.add(this.words, this.tailIndex, data.length)
    if (data.length > 0) Atomics.notify(this.words, this.tailIndex)
    return data
  }
}
