/** What can go wrong with a disk image, as one typed error. The message names the file and says what to do next. */
export type DiskErrorCode =
  | 'NOT_QCOW2'
  | 'UNSUPPORTED'
  | 'ENCRYPTED'
  | 'TRUNCATED'
  | 'CORRUPT'
  | 'MARKED_CORRUPT'
  | 'DIRTY'
  | 'TOO_LARGE'
  | 'READ_ONLY'
  | 'OUT_OF_RANGE'
  | 'LOCKED'
  | 'NOT_FOUND'
  | 'BACKING_FORBIDDEN'
  | 'BACKING_FORMAT'
  | 'BACKING_LOOP'
  | 'INVALID_ARGUMENT'
  | 'CLOSED'

/** A disk image that cannot be used as asked. */
export class DiskError extends Error {
  readonly code: DiskErrorCode
  /** The image that the error is about. */
  readonly path: string

  constructor(code: DiskErrorCode, path: string, message: string, options?: ErrorOptions) {
    super(`${path}: ${message}`, options)
    this.name = 'DiskError'
    this.code = code
    this.path = path
  }
}
