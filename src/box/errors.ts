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

export class BoxError extends Error {
  readonly code: BoxErrorCode
  constructor(code: BoxErrorCode, message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'BoxError'
    this.code = code
  }
}
