import type { NetErrorCode } from '../net/errors.ts'

/** What can go wrong with boxes. `code` is for programs; the message says what happened and what to do next. */
export type BoxErrorCode =
  /** No box of that name or id. */
  | 'NOT_FOUND'
  /** A box of that name exists. */
  | 'NAME_IN_USE'
  /** A name, an option or a combination of them that cannot be. */
  | 'INVALID'
  /** The box is not in a state that allows this. */
  | 'WRONG_STATE'
  /** Another process is working on this box. */
  | 'BUSY'
  /** The VMM process ended, or could not start; the message says why. */
  | 'VMM_FAILED'
  /** The guest booted, but its agent never answered. */
  | 'GUEST_NOT_READY'
  /** The home directory cannot be used. */
  | 'HOME'
  /** A rule, a port, an address, a network that cannot be or is not there. */
  | NetErrorCode
  /** The disk on which the home is, is full. */
  | 'NO_SPACE'
  /** A command wrote more than was to be collected. */
  | 'OUTPUT_LIMIT'

/** A failure of a box, or of what was asked of one. */
export class BoxError extends Error {
  readonly code: BoxErrorCode
  constructor(code: BoxErrorCode, message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'BoxError'
    this.code = code
  }
}

/** Turns a full disk into its typed error; other errors go on as they are. */
export function rethrowFull(error: unknown, what: string): never {
  const code = (error as { code?: unknown }).code
  if (code !== 'ENOSPC' && code !== 'EDQUOT') throw error
  throw new BoxError(
    'NO_SPACE',
    `the disk is full, so ${what}: free some space ('vitrine rm' and 'vitrine prune' help)`,
    { cause: error },
  )
}
