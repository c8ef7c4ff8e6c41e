/** What can go wrong with snapshots. The message names the thing and the place, and says what to do next. */
export type SnapshotErrorCode =
  /** No snapshot of that name or id. */
  | 'NOT_FOUND'
  /** The box has a snapshot of that name. */
  | 'NAME_IN_USE'
  /** A name, an option or a value that cannot be. */
  | 'INVALID'
  /** Not a snapshot, an export or a layer at all. */
  | 'FOREIGN'
  /** Written by a later version of Vitrine. */
  | 'NEWER_VERSION'
  /** Ends too early. */
  | 'TRUNCATED'
  /** Bytes that are not those that were written. */
  | 'CORRUPT'
  /** A layer, or the image's disk, that the snapshot stands on is gone. */
  | 'MISSING_PARENT'
  /** The host's accelerator is not the one that the snapshot was made on. */
  | 'ACCELERATOR'
  /** The host's CPU lacks features that the guest has been using. */
  | 'CPU_FEATURE'
  /** The snapshot holds no memory, and this needs some. */
  | 'NO_MEMORY_STATE'
  | 'NO_SPACE'
  /** Another process works on the snapshots for too long. */
  | 'BUSY'

/** A snapshot that cannot be taken, found, read or used. */
export class SnapshotError extends Error {
  readonly code: SnapshotErrorCode

  constructor(code: SnapshotErrorCode, message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'SnapshotError'
    this.code = code
  }
}

/** Turns a full disk into its typed error; other errors go on as they are. */
export function rethrowWrite(error: unknown, what: string): never {
  const code = (error as NodeJS.ErrnoException).code
  if (code === 'ENOSPC' || code === 'EDQUOT' || code === 'EFBIG') {
    throw new SnapshotError(
      'NO_SPACE',
      `the disk is full while writing ${what}: free some space ('vitrine snapshot rm' and 'vitrine prune' help)`,
      { cause: error },
    )
  }
  throw error
}
