/** Things that must happen within the same time each, watched by one alarm in the device's poll loop. */
import { closeFd } from '../../host/file.ts'
import { POLLIN, type PollSet } from '../../host/poll.ts'
import { TimerFd } from '../../host/timer-fd.ts'

export class Deadlines<T> {
  readonly #milliseconds: number
  readonly #expired: (item: T) => void
  readonly #timer = new TimerFd()
  /** In the order in which they were added, which is the order in which they are due. */
  readonly #due = new Map<T, number>()
  #poll: PollSet | undefined

  /** `expired` hears of each item that was neither finished nor dropped in time. It throws nothing. */
  constructor(milliseconds: number, expired: (item: T) => void) {
    this.#milliseconds = milliseconds
    this.#expired = expired
  }

  start(poll: PollSet): void {
    this.#poll = poll
    poll.add(this.#timer.fd, POLLIN, () => this.#ring())
  }

  /** Forgets everything. */
  stop(): void {
    this.#poll?.remove(this.#timer.fd)
    this.#poll = undefined
    this.#due.clear()
  }

  add(item: T): void {
    this.#due.set(item, performance.now() + this.#milliseconds)
    // One that rings for an item that is gone by then costs a turn of the loop, and nothing else.
    if (this.#due.size === 1) this.#timer.set(this.#milliseconds)
  }

  finish(item: T): void {
    this.#due.delete(item)
  }

  #ring(): void {
    this.#timer.drain()
    const now = performance.now()
    for (const [item, at] of this.#due) {
      if (at > now) {
        this.#timer.set(at - now)
        return
      }
      this.#due.delete(item)
      this.#expired(item)
    }
  }

  close(): void {
    this.stop()
    closeFd(this.#timer.fd)
  }
}
