/**
 * Several receive buffers taken at once, so that one readv() fills all of them: each gets a header of its own in front of
 * its share of the bytes.
 */
import { IoVector } from '../../host/io-vector.ts'
import { GuestFault } from '../errors.ts'
import type { Virtqueue } from '../queue/virtqueue.ts'
import { BUFFER_BYTES } from './config.ts'
import { HEADER_SIZE, OP_RW, type PacketHeader } from './packet.ts'

const MAX_BUFFERS = 16
/** Descriptors that a receive buffer may have. Drivers use one or two. */
const MAX_PARTS = 64

export class RxBatch {
  /** The room behind the headers of all buffers taken. */
  readonly data: IoVector
  readonly #buffers: readonly IoVector[]
  readonly #heads = new Uint16Array(MAX_BUFFERS)
  readonly #readable: IoVector
  #count = 0

  constructor(memory: Uint8Array) {
    this.data = new IoVector(memory, MAX_BUFFERS * MAX_PARTS)
    this.#buffers = Array.from({ length: MAX_BUFFERS }, () => new IoVector(memory, MAX_PARTS))
    this.#readable = new IoVector(memory, 1)
  }

  /** Takes buffers for up to `wanted` bytes. At least one is available. */
  take(queue: Virtqueue, wanted: number): void {
    this.data.clear()
    this.#count = 0
    while (this.#count < MAX_BUFFERS && this.data.byteLength < wanted) {
      const buffer = this.#buffers[this.#count]!
      buffer.clear()
      this.#readable.clear()
      const head = queue.pop(this.#readable, buffer)
      if (head < 0) return
      if (this.#readable.count !== 0 || buffer.byteLength <= HEADER_SIZE) {
        throw new GuestFault('request-shape', 'a vsock receive buffer without room for data')
      }
      this.#heads[this.#count++] = head
      this.#append(buffer, wanted - this.data.byteLength)
    }
  }

  /** Adds what is behind the header of `buffer` to `data`, up to `limit` bytes. */
  #append(buffer: IoVector, limit: number): void {
    let skip = HEADER_SIZE
    let left = limit
    for (let i = 0; i < buffer.count && left > 0; i++) {
      const skipped = Math.min(skip, buffer.lengths[i]!)
      skip -= skipped
      const size = Math.min(buffer.lengths[i]! - skipped, left)
      this.data.push(buffer.offsets[i]! + skipped, size)
      left -= size
    }
  }

  giveBack(queue: Virtqueue): void {
    queue.unpop(this.#count)
  }

  /** Completes the buffers that `bytes` filled and gives the others back. `header` is addressed. The number completed. */
  finish(queue: Virtqueue, header: PacketHeader, bytes: number, fwdCnt: number): number {
    let left = bytes
    let used = 0
    while (left > 0) {
      const buffer = this.#buffers[used]!
      const share = Math.min(buffer.byteLength - HEADER_SIZE, left)
      header.fill(OP_RW, share, 0, BUFFER_BYTES, fwdCnt)
      header.store(buffer)
      queue.pushWritten(this.#heads[used]!, buffer, HEADER_SIZE + share)
      left -= share
      used++
    }
    queue.unpop(this.#count - used)
    return used
  }
}
