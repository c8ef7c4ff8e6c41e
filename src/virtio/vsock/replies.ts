/** RSTs for packets that belong to no connection, until there are receive buffers for them. Bounded. */
import { MAX_REPLIES } from './config.ts'
import type { PacketHeader } from './packet.ts'

export class ReplyQueue {
  readonly #hostPorts = new Float64Array(MAX_REPLIES)
  readonly #guestPorts = new Float64Array(MAX_REPLIES)
  readonly #types = new Uint16Array(MAX_REPLIES)
  #first = 0
  #count = 0

  get full(): boolean {
    return this.#count === MAX_REPLIES
  }

  get empty(): boolean {
    return this.#count === 0
  }

  push(hostPort: number, guestPort: number, type: number): void {
    const at = (this.#first + this.#count) % MAX_REPLIES
    this.#hostPorts[at] = hostPort
    this.#guestPorts[at] = guestPort
    this.#types[at] = type
    this.#count++
  }

  /** Addresses `header` with the oldest; false when there is none. */
  pop(header: PacketHeader, guestCid: number): boolean {
    if (this.#count === 0) return false
    header.address(guestCid, this.#hostPorts[this.#first]!, this.#guestPorts[this.#first]!, this.#types[this.#first]!)
    this.#first = (this.#first + 1) % MAX_REPLIES
    this.#count--
    return true
  }

  clear(): void {
    this.#count = 0
  }
}
