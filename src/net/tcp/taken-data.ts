/**
 * Data for the guest that was taken from its host socket at once: little, and after a silence, as most answers are. To take it costs one call
 * into the kernel; to see how much there is, peek at it, and discard it when it is acknowledged costs three. It goes before all that is in
 * the socket, and stays until the guest has acknowledged it.
 */
import { EINTR } from '../../host/errors.ts'
import type { IoVector } from '../../host/io-vector.ts'
import { readSocketBytes } from '../../host/socket.ts'

/** More than this, and the copy costs as much as the calls. */
export const MOST_TAKEN = 2048
/** So few are copied one by one sooner than by a call. */
const FEW = 64
/** Buffers that nobody uses now are kept for others, so many. */
const SPARE = 64

const spare: Uint8Array[] = []
const NONE = new Uint8Array(0)

export class TakenData {
  #bytes: Uint8Array = NONE
  length = 0

  /** Takes up to MOST_TAKEN bytes, when nothing is held; as read(2), or a negative errno. Less than that was all there is. */
  take(fd: number): number {
    if (this.#bytes === NONE) this.#bytes = spare.pop() ?? new Uint8Array(MOST_TAKEN)
    let got: number
    do got = readSocketBytes(fd, this.#bytes)
    while (got === -EINTR)
    this.length = Math.max(got, 0)
    if (this.length === 0) this.release()
    return got
  }

  /** Copies from byte `from` on into `target`, as far as both go; the number of bytes. */
  copyTo(target: IoVector, from: number): number {
    const count = Math.min(this.length - from, target.byteLength)
    const { memory, offsets, lengths } = target
    if (count > FEW || lengths[0]! < count) target.copyFrom(this.#bytes.subarray(from, from + count))
    else for (let i = 0; i < count; i++) memory[offsets[0]! + i] = this.#bytes[from + i]!
    return count
  }

  /** The guest has acknowledged `count` bytes more. */
  drop(count: number): void {
    this.length -= count
    if (this.length === 0) this.release()
    else this.#bytes.copyWithin(0, count, count + this.length)
  }

  release(): void {
    if (this.#bytes !== NONE && spare.length < SPARE) spare.push(this.#bytes)
    this.#bytes = NONE
    this.length = 0
  }
}
