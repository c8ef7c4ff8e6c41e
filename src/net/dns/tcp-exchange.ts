/** One question to a resolver over TCP: sent when the connection is there, answered with a length before the answer. */
import { readSocketBytes, writeSocketBytes } from '../../host/socket.ts'

const EAGAIN = 11
const ENOTCONN = 107
const MAX_MESSAGE = 65_535

export class TcpExchange {
  readonly #query: Uint8Array
  #buffer = new Uint8Array(4096)
  #filled = 0
  #sent = false

  constructor(query: Uint8Array) {
    this.#query = new Uint8Array(2 + query.length)
    this.#query[0] = query.length >> 8
    this.#query[1] = query.length & 255
    this.#query.set(query, 2)
  }

  /** After an edge of its socket: the answer, 'more' when it is not all there, or 'failed'. */
  step(fd: number): Uint8Array | 'more' | 'failed' {
    if (!this.#sent) {
      const written = writeSocketBytes(fd, this.#query)
      if (written === -EAGAIN || written === -ENOTCONN) return 'more'
      // A new connection has room for a question, or it is none.
      if (written !== this.#query.length) return 'failed'
      this.#sent = true
    }
    for (;;) {
      const wanted = this.#filled < 2 ? 2 : 2 + ((this.#buffer[0]! << 8) | this.#buffer[1]!)
      if (this.#filled >= 2 && this.#filled >= wanted) return this.#buffer.slice(2, wanted)
      this.#reserve(wanted)
      const got = readSocketBytes(fd, this.#buffer.subarray(this.#filled, wanted))
      if (got === -EAGAIN) return 'more'
      if (got <= 0) return 'failed'
      this.#filled += got
    }
  }

  #reserve(size: number): void {
    if (size <= this.#buffer.length) return
    const larger = new Uint8Array(2 + MAX_MESSAGE)
    larger.set(this.#buffer.subarray(0, this.#filled))
    this.#buffer = larger
  }
}
