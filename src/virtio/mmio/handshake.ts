/**
 * How a vCPU's worker gets the device's worker to activate or reset: a numbered request in the shared page, a signal on
 * the slot's control eventfd, and a wait until that number is done. The guest's status write returns only then, so that
 * after a reset no queue is in use (VIRTIO 1.2, 2.4.2 and 4.2.2.1).
 */
import { signalEventFd } from '../../host/event-fd.ts'
import { W_COMMAND, W_DEAD, W_DONE, W_REQUEST } from './page.ts'

export interface Handshake {
  /** Has `command` done by the device; false when there is no device any more. Callers hold the page's lock. */
  request(words: Int32Array, command: number): boolean
}

/** The device lives in another thread. */
export class ThreadHandshake implements Handshake {
  readonly #controlFd: number

  constructor(controlFd: number) {
    this.#controlFd = controlFd
  }

  request(words: Int32Array, command: number): boolean {
    Atomics.store(words, W_COMMAND, command)
    const number = (Atomics.add(words, W_REQUEST, 1) + 1) | 0
    signalEventFd(this.#controlFd)
    for (;;) {
      const done = Atomics.load(words, W_DONE)
      if (done === number) return true
      if (Atomics.load(words, W_DEAD) !== 0) return false
      // The limit only bounds how late a dead worker is noticed.
      Atomics.wait(words, W_DONE, done, 100)
    }
  }
}

/** The device lives in this thread, unless it has moved away: machines of one thread, tests. */
export class InlineHandshake implements Handshake {
  readonly #server: () => (() => void) | undefined
  readonly #elsewhere: Handshake

  /** `server` gives what serves the device here; undefined: it lives in another thread by now. */
  constructor(server: () => (() => void) | undefined, elsewhere: Handshake) {
    this.#server = server
    this.#elsewhere = elsewhere
  }

  request(words: Int32Array, command: number): boolean {
    const serve = this.#server()
    if (!serve) return this.#elsewhere.request(words, command)
    Atomics.store(words, W_COMMAND, command)
    Atomics.add(words, W_REQUEST, 1)
    serve()
    return true
  }
}
