/** The main thread's end of the serial console. */
import { ConsoleRing } from './legacy/console-ring.ts'
import type { Serial } from './legacy/serial.ts'
import { CONSOLE_RING_SIZE, CONTROL } from './shared-layout.ts'

/** How often a full input ring is looked at again: the guest takes bytes without telling us. */
const RETRY_MS = 5

export class MachineConsole {
  readonly #output: ConsoleRing
  readonly #input: ConsoleRing
  readonly #serial: Serial
  readonly #emit: (data: Uint8Array) => void
  #held = false
  #closed = false
  #written: Promise<void> = Promise.resolve()
  #bytesOut = 0
  #bytesIn = 0

  constructor(wasm: WebAssembly.Memory, serial: Serial, emit: (data: Uint8Array) => void) {
    this.#output = ConsoleRing.output(wasm)
    this.#input = ConsoleRing.input(wasm)
    this.#serial = serial
    this.#emit = emit
  }

  /** Types `data` at the guest. Resolves when all of it is where the guest can read it; calls are served in order. */
  write(data: Uint8Array | string): Promise<void> {
    const bytes = typeof data === 'string' ? new TextEncoder().encode(data) : data
    this.#written = this.#written.then(() => this.#writeAll(bytes))
    return this.#written
  }

  /** No more output events until `release`: the guest blocks when 60 KiB are waiting. */
  hold(): void {
    this.#held = true
  }

  release(): void {
    this.#held = false
    this.drain()
  }

  /** Emits what is there. */
  drain(): void {
    while (!this.#held && this.#output.used > 0) this.#take()
  }

  /** Emits the rest, held or not: the machine has ended. */
  finish(): void {
    this.#closed = true
    while (this.#output.used > 0) this.#take()
  }

  metrics(): Record<string, number> {
    return {
      consoleBytesOut: this.#bytesOut,
      consoleBytesIn: this.#bytesIn,
      consoleBytesDropped: Atomics.load(this.#output.words, CONTROL.outDropped),
    }
  }

  #take(): void {
    const data = this.#output.take()
    this.#bytesOut += data.length
    this.#emit(data)
  }

  async #writeAll(bytes: Uint8Array): Promise<void> {
    let done = 0
    while (done < bytes.length && !this.#closed) {
      const count = this.#input.write(bytes.subarray(done, done + CONSOLE_RING_SIZE))
      done += count
      this.#bytesIn += count
      if (count > 0) this.#serial.inputArrived()
      if (done < bytes.length) await new Promise(resolve => setTimeout(resolve, RETRY_MS))
    }
  }
}
