/**
 * A disk that can be let go and taken up again while its device goes on: a snapshot freezes the file and puts a fresh
 * overlay in its place, under the same name.
 */
import type { IoVector } from '../../host/io-vector.ts'
import { VirtioError } from '../errors.ts'
import type { BlockBackend } from './backend.ts'

export class HeldDisk implements BlockBackend {
  readonly sizeBytes: number
  readonly readOnly: boolean
  readonly #open: () => BlockBackend
  #disk: BlockBackend | undefined

  constructor(open: () => BlockBackend) {
    this.#open = open
    this.#disk = open()
    this.sizeBytes = this.#disk.sizeBytes
    this.readOnly = this.#disk.readOnly
  }

  get #held(): BlockBackend {
    if (this.#disk) return this.#disk
    throw new VirtioError('BAD_STATE', 'the disk has been let go for a snapshot and was not taken up again')
  }

  /** Writes everything back and closes the file. When that cannot be done (no space), the disk is held still, as it was. */
  release(): void {
    const disk = this.#disk
    if (!disk) return
    // First by itself: closing lets go of what is only in memory even when it fails, and the guest has been told of it.
    disk.flush()
    this.#disk = undefined
    disk.close()
  }

  /** Opens what is there now, which must be as large. */
  reopen(): void {
    if (this.#disk) return
    const disk = this.#open()
    if (disk.sizeBytes !== this.sizeBytes) {
      disk.close()
      throw new VirtioError(
        'BAD_STATE',
        `the disk had ${this.sizeBytes} bytes and has ${disk.sizeBytes} now: put back what was there`,
      )
    }
    this.#disk = disk
  }

  readv(offset: number, target: IoVector): void {
    this.#held.readv(offset, target)
  }
  writev(offset: number, source: IoVector): void {
    this.#held.writev(offset, source)
  }
  flush(): void {
    this.#held.flush()
  }
  discard(offset: number, length: number): void {
    this.#held.discard(offset, length)
  }
  writeZeroes(offset: number, length: number, mayUnmap: boolean): void {
    this.#held.writeZeroes(offset, length, mayUnmap)
  }
  close(): void {
    const disk = this.#disk
    this.#disk = undefined
    disk?.close()
  }
}
