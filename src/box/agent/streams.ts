/** Node streams over a channel, with the protocol's credit underneath: a slow end anywhere stalls the other end. */
import { Readable, Writable } from 'node:stream'
import { FRAME_PAYLOAD_MAX, WINDOW_INITIAL } from './protocol.ts'

/** Credit is returned in steps of this size, so that small reads do not each cost a frame. */
const CREDIT_STEP = 64 * 1024

/** What the guest sends on one stream. Holds at most the window; asks for more as its reader takes data out. */
export class ChannelReadable extends Readable {
  readonly #grant: (bytes: number) => void
  readonly #abandoned: () => void
  readonly #waiting: Buffer[] = []
  #wanted = false
  #finished = false
  #unreturned = 0
  #credit = WINDOW_INITIAL

  /** `abandoned` hears that its reader destroyed it before its end. */
  constructor(grant: (bytes: number) => void, abandoned: () => void) {
    super({ highWaterMark: CREDIT_STEP })
    this.#grant = grant
    this.#abandoned = abandoned
  }

  /** Takes data from the wire; false when the guest sent more than it was allowed. */
  receive(chunk: Buffer): boolean {
    this.#credit -= chunk.length
    if (this.#credit < 0) return false
    if (this.destroyed) this.#consumed(chunk.length)
    else {
      this.#waiting.push(chunk)
      this.#deliver()
    }
    return true
  }

  /** The guest closed its end. */
  finish(): void {
    this.#finished = true
    this.#deliver()
  }

  #deliver(): void {
    while (this.#wanted) {
      const chunk = this.#waiting.shift()
      if (!chunk) break
      this.#wanted = this.push(chunk)
      this.#consumed(chunk.length)
    }
    if (this.#finished && this.#waiting.length === 0 && !this.readableEnded) this.push(null)
  }

  #consumed(bytes: number): void {
    this.#unreturned += bytes
    if (this.#unreturned < CREDIT_STEP || this.#finished) return
    this.#credit += this.#unreturned
    this.#grant(this.#unreturned)
    this.#unreturned = 0
  }

  override _read(): void {
    this.#wanted = true
    this.#deliver()
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    // What nobody will read must not stall the process that writes it.
    for (const chunk of this.#waiting.splice(0)) this.#consumed(chunk.length)
    if (!this.#finished) this.#abandoned()
    callback(error)
  }
}

/** What the host sends on a process's standard input. */
export class ChannelWritable extends Writable {
  readonly #send: (chunk: Uint8Array, eof: boolean) => Promise<void> | undefined
  #credit = WINDOW_INITIAL
  #waiter: (() => void) | undefined
  #closed = false
  #ended = false
  readonly #abandoned: () => void

  /** `abandoned` hears that its writer destroyed it before its end. */
  constructor(send: (chunk: Uint8Array, eof: boolean) => Promise<void> | undefined, abandoned: () => void) {
    super({ highWaterMark: CREDIT_STEP })
    this.#send = send
    this.#abandoned = abandoned
  }

  grant(bytes: number): void {
    this.#credit += bytes
    this.#wake()
  }

  /** The process is gone: what is still written goes nowhere, as into a closed pipe. */
  close(): void {
    this.#closed = true
    this.#wake()
  }

  #wake(): void {
    const waiter = this.#waiter
    this.#waiter = undefined
    waiter?.()
  }

  async #transfer(chunk: Buffer): Promise<void> {
    for (let at = 0; at < chunk.length && !this.#closed; ) {
      const size = Math.min(chunk.length - at, FRAME_PAYLOAD_MAX, this.#credit)
      if (size === 0) {
        await new Promise<void>(resolve => {
          this.#waiter = resolve
        })
        continue
      }
      this.#credit -= size
      await this.#send(chunk.subarray(at, at + size), false)
      at += size
    }
  }

  override _write(chunk: Buffer, _encoding: string, callback: (error?: Error | null) => void): void {
    this.#transfer(chunk).then(() => callback(), callback)
  }

  override _final(callback: (error?: Error | null) => void): void {
    this.#ended = true
    if (!this.#closed) void this.#send(new Uint8Array(0), true)
    callback()
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    const abandoned = !this.#ended && !this.#closed
    this.close()
    if (abandoned) this.#abandoned()
    callback(error)
  }
}
