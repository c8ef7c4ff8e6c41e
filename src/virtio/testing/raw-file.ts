/** The simplest disk for a test: byte n of it is byte n of a file. Machines use the engine in qcow2/, for raw files as well. */
import { constants, fstatSync } from 'node:fs'
import { HostError } from '../../host/errors.ts'
import {
  closeFd,
  openFd,
  punchHole,
  readVectorAt,
  syncData,
  writeAt,
  writeVectorAt,
  zeroRange,
} from '../../host/file.ts'
import type { IoVector } from '../../host/io-vector.ts'
import { seekEnd } from '../../host/seek.ts'
import type { BlockBackend } from '../blk/backend.ts'

/** Zeros for file systems that cannot zero a range by themselves. */
const ZEROS = new Uint8Array(1 << 20)

export class RawFile implements BlockBackend {
  readonly sizeBytes: number
  readonly readOnly: boolean
  readonly #fd: number
  #canPunch = true
  #canZero = true

  constructor(path: string, options: { readonly readOnly?: boolean } = {}) {
    this.readOnly = options.readOnly ?? false
    this.#fd = openFd(path, (this.readOnly ? constants.O_RDONLY : constants.O_RDWR) | 0o2000000)
    try {
      const stat = fstatSync(this.#fd)
      this.sizeBytes = stat.isBlockDevice() ? seekEnd(this.#fd) : stat.size
    } catch (error) {
      closeFd(this.#fd)
      throw error
    }
  }

  readv(offset: number, target: IoVector): void {
    readVectorAt(this.#fd, target, offset)
  }

  writev(offset: number, source: IoVector): void {
    writeVectorAt(this.#fd, source, offset)
  }

  flush(): void {
    if (!this.readOnly) syncData(this.#fd)
  }

  discard(offset: number, length: number): void {
    if (this.#canPunch) this.#canPunch = this.#tryRange(punchHole, offset, length)
  }

  writeZeroes(offset: number, length: number, mayUnmap: boolean): void {
    if (mayUnmap && this.#canPunch) {
      this.#canPunch = this.#tryRange(punchHole, offset, length)
      if (this.#canPunch) return
    }
    if (this.#canZero) {
      this.#canZero = this.#tryRange(zeroRange, offset, length)
      if (this.#canZero) return
    }
    for (let done = 0; done < length; done += ZEROS.length) {
      writeAt(this.#fd, ZEROS.subarray(0, Math.min(ZEROS.length, length - done)), offset + done)
    }
  }

  /** False when the file system does not have the operation: then it is not asked again. */
  #tryRange(call: (fd: number, position: number, length: number) => void, offset: number, length: number): boolean {
    try {
      call(this.#fd, offset, length)
      return true
    } catch (error) {
      if (error instanceof HostError && (error.code === 'EOPNOTSUPP' || error.code === 'ENOSYS')) return false
      throw error
    }
  }

  close(): void {
    closeFd(this.#fd)
  }
}
