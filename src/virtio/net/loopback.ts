/** A link that gives every frame back: what a network card test needs, and the shortest example of a link. Bounded. */
import type { IoVector } from '../../host/io-vector.ts'
import type { PollSet } from '../../host/poll.ts'
import type { FrameHeader, FrameLink } from './link.ts'

interface Kept {
  readonly bytes: Uint8Array
  readonly header: FrameHeader
}

export class LoopbackLink implements FrameLink {
  readonly offloads: boolean
  readonly #limit: number
  readonly #frames: Kept[] = []
  #onReady: (() => void) | undefined

  constructor(options: { readonly offloads?: boolean; readonly limit?: number } = {}) {
    this.offloads = options.offloads ?? true
    this.#limit = options.limit ?? 256
  }

  start(_poll: PollSet, onReady: () => void): void {
    this.#onReady = onReady
  }

  stop(): void {
    this.#onReady = undefined
    this.#frames.length = 0
  }

  send(frame: IoVector, header: FrameHeader): boolean {
    if (this.#frames.length >= this.#limit) return false
    const bytes = new Uint8Array(frame.byteLength)
    frame.copyTo(bytes)
    this.#frames.push({ bytes, header: { ...header } })
    return true
  }

  get nextLength(): number {
    return this.#frames[0]?.bytes.length ?? 0
  }

  receive(into: IoVector, header: FrameHeader): void {
    const kept = this.#frames.shift()!
    into.copyFrom(kept.bytes)
    Object.assign(header, kept.header)
    this.#madeRoom()
  }

  skip(): void {
    this.#frames.shift()
    this.#madeRoom()
  }

  #madeRoom(): void {
    if (this.#frames.length === this.#limit - 1) this.#onReady?.()
  }

  close(): void {}
}
