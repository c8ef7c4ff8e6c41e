/**
 * A VMM process's end of the channel to the process that started it: lines of JSON, through a socket that it was given. Not Node's own channel: to set
 * that up, and to send the first message, takes a tenth of a start.
 */
import { Socket } from 'node:net'
import { onLines } from '../../host/lines.ts'
import { CHANNEL, type OwnerMessage, type VmmMessage } from './launch.ts'
import type { VmmOwner } from './serve.ts'

export class OwnerChannel implements VmmOwner {
  readonly #socket: Socket
  readonly #name: object
  #gone = false
  #onGone: (() => void)[] = []
  /** The owner's process, when it has said so. */
  #owner: number | undefined

  /** `name` goes along with every message: several may speak through the same socket. Nobody may shut it down then, only let go of it. */
  constructor(name: object = {}) {
    this.#name = name
    this.#socket = new Socket({ fd: CHANNEL, allowHalfOpen: true })
    const gone = (): void => {
      if (this.#gone) return
      this.#gone = true
      for (const listener of this.#onGone) listener()
    }
    for (const event of ['end', 'error'] as const) this.#socket.on(event, gone)
    this.#socket.unref()
  }

  /** Hears what the owner says; without that, nothing is expected but its end. */
  listen(hear: ((message: OwnerMessage) => void) | undefined): void {
    if (!hear) {
      this.#socket.resume()
      return
    }
    this.#socket.ref()
    onLines(this.#socket, line => {
      const message = JSON.parse(line) as OwnerMessage
      if ('box' in message) this.#owner = message.owner
      hear(message)
    })
  }

  tell(message: VmmMessage): Promise<void> {
    return new Promise(resolve => {
      if (this.#gone || this.#socket.destroyed) resolve()
      else this.#socket.write(`${JSON.stringify({ ...this.#name, ...message })}\n`, () => resolve())
    })
  }

  /** Asked of the kernel: that the channel has ended is heard only later. */
  get isThere(): boolean {
    return this.#owner === undefined || process.ppid === this.#owner
  }

  onGone(listener: () => void): void {
    this.#onGone.push(listener)
    if (this.#gone) listener()
  }

  leave(): void {
    this.#socket.destroy()
  }
}
