/**
 * What holds the bytes of a disk. The images of qcow2/, raw ones as well, satisfy it. All calls are synchronous and
 * made from one thread; buffers are guest memory and are used in place. A failure is thrown and becomes an I/O error of
 * that one request.
 */
import type { IoVector } from '../../host/io-vector.ts'

export interface BlockBackend {
  readonly sizeBytes: number
  readonly readOnly: boolean
  /** Fills all of `target` from byte `offset` of the disk. */
  readv(offset: number, target: IoVector): void
  writev(offset: number, source: IoVector): void
  /** All that was written before is on stable storage when this returns. */
  flush(): void
  /** The range may be given back; what it reads as afterwards is not defined. */
  discard(offset: number, length: number): void
  /** The range reads as zeros afterwards. With `mayUnmap` its space may be given back. */
  writeZeroes(offset: number, length: number, mayUnmap: boolean): void
  /** Writes back what is held in memory and closes. */
  close(): void
}
