/** A disk that can be read and written by offset: what virtio's block device takes, and every image here is one. */
import type { IoVector } from '../host/io-vector.ts'

/**
 * - `data`: stored in this image; `hostOffset` says where, unless it is compressed
 * - `zero`: this image says that it reads as zeros
 * - `hole`: this image says nothing, so its backing file (or zeros) shows
 */
export type ExtentKind = 'data' | 'compressed' | 'zero' | 'hole'

/** A run of bytes of a disk that are of one kind. */
export interface Extent {
  readonly kind: ExtentKind
  readonly length: number
  /** Where the bytes are in the image's file, for `data` (and for a preallocated `zero`); otherwise -1. */
  readonly hostOffset: number
}

/** An open disk image, raw or QCOW2. */
export interface BlockImage {
  readonly path: string
  readonly format: 'raw' | 'qcow2'
  /** The size of the disk in bytes. */
  readonly sizeBytes: number
  readonly readOnly: boolean
  readonly backing: BlockImage | undefined
  /** Fills the vector from the disk at `offset`. */
  readv(offset: number, vector: IoVector): void
  writev(offset: number, vector: IoVector): void
  /** Returns when every finished write is durable. */
  flush(): void
  /** A hint: the guest no longer needs these bytes. What they read as afterwards is zeros or what they were. */
  discard(offset: number, length: number): void
  /** The range reads as zeros afterwards; `mayUnmap` lets its space go back to the host. */
  writeZeroes(offset: number, length: number, mayUnmap: boolean): void
  resize(size: number): void
  /** What this image (not its backing file) says about the disk from `offset` on, up to `length` bytes. */
  extent(offset: number, length: number): Extent
  /** Flushes if writable, then lets go of the file, its lock, and the backing chain. */
  close(): void
}
