/** Things that must happen within the same time each, watched by one alarm in the device's poll loop. */
import type { Alarm, PollSet } from '../../host/poll.ts'

export class Deadlines<T> {
  readonly #milliseconds: number
  readonly #expired: (item: T) => void
  /** In the order in which they were added, which is the order in which they are due. */
  readonly #due = new Map<T, number>()
  #poll: PollSet | undefined
  #alarm: Alarm | undefined

  /** `expired` hears of each item that was neither finished nor dropped in time. It throws nothing. */
  constructor(milliseconds: number, expired: (item: T) => void) {
    this.#milliseconds = milliseconds
    this.#expired = expired
  }

  start(poll: PollSet): void {
    this.#poll = poll
    this.#alarm = poll.addAlarm(() => this.#ring())
  }

  /** Forgets everything. */
  stop(): void {
    if (this.#alarm !== undefined) this.#poll?.removeAlarm(this.#alarm)
    this.#alarm = undefined
    this.#poll = undefined
    this.#due.clear()
  }

  /** Only between `start` and `stop`. */
  add(item: T): void {
    const poll = this.#poll!
    this.#due.set(item, poll.now() + this.#milliseconds)
    // One that rings for an item that is gone by then costs a turn of the loop, and nothing else.
    if (this.#due.size === 1) this.#alarm!.at = poll.now() + this.#milliseconds
  }

  finish(item: T): void {
    this.#due.delete(item)
  }

  #ring(): void {
    const now = this.#poll!.now()
    for (const [item, at] of this.#due) {
      if (at > now) {
        this.#alarm!.at = at
        return
      }
      this.#due.delete(item)
      this.#expired(item)
    }
  }
}
