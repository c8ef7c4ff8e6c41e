/**
 * The file below an image, as small as it can be: the engine asks for nothing else, so a test can put a recorder, a
 * failing disk or a power cut in its place.
 */

import { HostError } from '../host/errors.ts'
import {
  closeFd,
  punchHole,
  readAt,
  readVectorAt,
  syncData,
  truncate,
  writeAt,
  writeVectorAt,
  zeroRange,
} from '../host/file.ts'
import type { IoVector } from '../host/io-vector.ts'
import { seekData, seekEnd, seekHole } from '../host/seek.ts'

export interface Storage {
  /** The file's length now. */
  size(): number
  /** Fills `target`; what lies past the end reads as zeros. */
  read(target: Uint8Array, position: number): void
  write(source: Uint8Array, position: number): void
  readv(vector: IoVector, position: number): void
  writev(vector: IoVector, position: number): void
  /** Returns when everything written so far is durable. */
  flush(): void
  /** Gives the space of a range back where the file system can; what it reads as then is not defined. */
  giveBack(position: number, length: number): void
  /** Makes a range read as zeros and gives its space back where the file system can. */
  punch(position: number, length: number): void
  /** Makes a range read as zeros, with its space allocated where the file system can. */
  zero(position: number, length: number): void
  truncate(size: number): void
  /** The end of the run of data or hole that `position` is in, and which it is. Hosts without holes say data. */
  isData(position: number): boolean
  runEnd(position: number): number
  close(): void
}

const ZEROS = new Uint8Array(256 * 1024)
/** Errors by which a file system says that it cannot punch or zero ranges. */
const UNSUPPORTED = new Set(['EOPNOTSUPP', 'ENOSYS', 'ENOTSUP', 'ENODEV'])

export class FileStorage implements Storage {
  readonly fd: number
  #canPunch = true
  #canZero = true

  /** Takes over `fd` and closes it. */
  constructor(fd: number) {
    this.fd = fd
  }

  size(): number {
    return seekEnd(this.fd)
  }

  read(target: Uint8Array, position: number): void {
    const got = readAt(this.fd, target, position)
    if (got < target.length) target.fill(0, got)
  }

  write(source: Uint8Array, position: number): void {
    writeAt(this.fd, source, position)
  }

  readv(vector: IoVector, position: number): void {
    readVectorAt(this.fd, vector, position)
  }

  writev(vector: IoVector, position: number): void {
    writeVectorAt(this.fd, vector, position)
  }

  flush(): void {
    syncData(this.fd)
  }

  giveBack(position: number, length: number): void {
    this.#tryPunch(position, length)
  }

  punch(position: number, length: number): void {
    if (!this.#tryPunch(position, length)) {
      this.#writeZeros(position, Math.min(length, Math.max(0, this.size() - position)))
    }
  }

  /** False where the file system cannot: it is not asked again. */
  #tryPunch(position: number, length: number): boolean {
    if (!this.#canPunch) return false
    try {
      punchHole(this.fd, position, length)
    } catch (error) {
      if (!(error instanceof HostError) || !UNSUPPORTED.has(error.code)) throw error
      this.#canPunch = false
    }
    return this.#canPunch
  }

  zero(position: number, length: number): void {
    if (this.#canZero) {
      try {
        zeroRange(this.fd, position, length)
        return
      } catch (error) {
        if (!(error instanceof HostError) || !UNSUPPORTED.has(error.code)) throw error
        this.#canZero = false
      }
    }
    this.#writeZeros(position, length)
  }

  truncate(size: number): void {
    truncate(this.fd, size)
  }

  isData(position: number): boolean {
    return seekData(this.fd, position) === position
  }

  runEnd(position: number): number {
    const data = seekData(this.fd, position)
    if (data < 0) return Number.MAX_SAFE_INTEGER
    return data > position ? data : seekHole(this.fd, position)
  }

  close(): void {
    closeFd(this.fd)
  }

  #writeZeros(position: number, length: number): void {
    for (let done = 0; done < length; done += ZEROS.length) {
      this.write(ZEROS.subarray(0, Math.min(ZEROS.length, length - done)), position + done)
    }
  }
}
