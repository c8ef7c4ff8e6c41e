/** What can go wrong with images. The message names the thing and the place, and says what to do next. */
export type ImageErrorCode =
  /** A reference that cannot be parsed. */
  | 'BAD_REFERENCE'
  /** The registry or the source has no such image, tag or platform. */
  | 'NOT_FOUND'
  /** The registry wants credentials, or refused those it got. */
  | 'UNAUTHORIZED'
  /** The registry cannot be reached. */
  | 'NETWORK'
  /** The registry answered with something that is not the distribution protocol. */
  | 'REGISTRY'
  /** Bytes that do not have the digest or the length they should have. */
  | 'DIGEST_MISMATCH'
  /** A manifest, config, index or archive that is not what its type says. */
  | 'CORRUPT'
  /** A tar archive that is damaged or ends too early. */
  | 'BAD_TAR'
  /** A compressed stream that is damaged or ends too early. */
  | 'BAD_COMPRESSION'
  /** A layer entry that points outside the root. */
  | 'TRAVERSAL'
  /** A tree that ext4 cannot hold: a name, an attribute or a directory beyond its limits. */
  | 'UNSUPPORTED'
  /** More bytes than the limit that was set, or than the disk has. */
  | 'TOO_LARGE'
  | 'NO_SPACE'
  /** A source file that changed or vanished while it was read. */
  | 'SOURCE_CHANGED'
  /** A tool or package that is needed and is not there. */
  | 'MISSING_TOOL'
  /** Another process holds the lock for too long. */
  | 'LOCKED'

/** A failure to find, fetch, read or build an image. */
export class ImageError extends Error {
  readonly code: ImageErrorCode

  constructor(code: ImageErrorCode, message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'ImageError'
    this.code = code
  }
}

/** Turns a full disk into its typed error; other errors go on as they are. */
export function rethrowWrite(error: unknown, path: string): never {
  const code = (error as NodeJS.ErrnoException).code
  if (code === 'ENOSPC' || code === 'EDQUOT' || code === 'EFBIG') {
    throw new ImageError(
      'NO_SPACE',
      `the disk is full while writing ${path}: free some space ('vitrine prune' helps)`,
      {
        cause: error,
      },
    )
  }
  throw error
}
