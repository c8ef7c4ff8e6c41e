/** The image as a file that is written forwards: small writes gather in a buffer, what is never written stays a hole. */
import { fsync, ftruncateSync, writeSync } from 'node:fs'
import { promisify } from 'node:util'
import { ImageError } from '../errors.ts'
import { readFully } from '../read-fully.ts'
import type { ContentSource } from '../tree/inode.ts'
import { BLOCK } from './layout.ts'

const BUFFER = 1 << 20

/** A window of the image that moves forwards. Several can be open over one file, at different places. */
export class BlockStream {
  readonly #fd: number
  readonly #buffer = Buffer.alloc(BUFFER)
  /** The byte of the image that `#buffer[0]` is. */
  #base = 0
  #used = 0

  constructor(fd: number) {
    this.#fd = fd
  }

  /** `length` bytes (whole blocks, at most 1 MiB) at byte `position`, to be filled at once; not zeroed. */
  reserve(position: number, length: number): Buffer {
    if (position !== this.#base + this.#used || this.#used + length > BUFFER) {
      this.flush()
      this.#base = position
    }
    const part = this.#buffer.subarray(this.#used, this.#used + length)
    this.#used += length
    return part
  }

  /** Takes back the last `length` bytes that were reserved. */
  unreserve(length: number): void {
    this.#used -= length
  }

  writeBlock(block: number, bytes: Uint8Array): void {
    const target = this.reserve(block * BLOCK, BLOCK)
    target.set(bytes)
    if (bytes.length < BLOCK) target.fill(0, bytes.length)
  }

  flush(): void {
    let done = 0
    while (done < this.#used) done += writeSync(this.#fd, this.#buffer, done, this.#used - done, this.#base + done)
    this.#base += this.#used
    this.#used = 0
  }
}

/** Reads exactly `target.length` bytes of a file's content. */
export function readContent(fd: number, target: Buffer, position: number, source: ContentSource): void {
  if (readFully(fd, target, position) < target.length) {
    throw new ImageError(
      'SOURCE_CHANGED',
      `${source.name} ended at byte ${position}+ while it was copied: it changed meanwhile, so start again`,
    )
  }
}

/** Gives the file its full size, and puts it on the disk. */
export async function finishFile(fd: number, bytes: number): Promise<void> {
  ftruncateSync(fd, bytes)
  await promisify(fsync)(fd)
}
