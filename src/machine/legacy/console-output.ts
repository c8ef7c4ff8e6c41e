/**
 * The vCPU workers' end of the console: bytes go into the ring, the main thread is told once when it stops being empty.
 * A full ring blocks the guest's write until the host has read, so that nothing is lost. Only when the machine is to stand
 * still may the last 4 KiB be used instead of waiting; what exceeds even that (a guest in mid-`rep outsb`) is counted.
 */
import { CONSOLE_RING_SIZE, CONTROL } from '../shared-layout.ts'
import { ConsoleRing } from './console-ring.ts'

const RESERVE = 4096
/** How often a blocked writer looks whether the machine is to stand still: nobody notifies it of that. */
const RECHECK_MS = 20

/** Who empties the ring. */
export interface ConsoleListener {
  /** It has stopped being empty. Called amid the guest's access, with the devices' lock. */
  ready(): void
  /** It is full, and whoever empties it is on this thread: to be done now. Without it, another thread is waited for. */
  full?(): void
}

export class ConsoleOutput {
  readonly #ring: ConsoleRing
  readonly #words: Int32Array
  readonly #listener: ConsoleListener

  constructor(wasm: WebAssembly.Memory, listener: ConsoleListener) {
    this.#ring = ConsoleRing.output(wasm)
    this.#words = this.#ring.words
    this.#listener = listener
  }

  /** Waits until a byte can be pushed. Called without the devices' lock: other vCPUs go on meanwhile. */
  waitForRoom(): void {
    while (this.#ring.used >= CONSOLE_RING_SIZE - RESERVE) {
      if (Atomics.load(this.#words, CONTROL.holdStill) !== 0) return
      if (this.#listener.full) {
        // Whatever is not taken now never will be while this thread waits: it is dropped, and counted.
        this.#listener.full()
        return
      }
      const tail = Atomics.load(this.#words, this.#ring.tailIndex)
      if (this.#ring.used < CONSOLE_RING_SIZE - RESERVE) return
      Atomics.wait(this.#words, this.#ring.tailIndex, tail, RECHECK_MS)
    }
  }

  /** With the devices' lock. */
  push(byte: number): void {
    if (this.#ring.used >= CONSOLE_RING_SIZE) Atomics.add(this.#words, CONTROL.outDropped, 1)
    else if (this.#ring.push(byte)) this.#listener.ready()
  }
}
