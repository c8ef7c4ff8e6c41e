export type AcceleratorErrorCode =
  /** No accelerator of that name. */
  | 'UNKNOWN'
  /** It exists but cannot run here. */
  | 'UNUSABLE'
  /** None can run here. */
  | 'NONE'

export class AcceleratorError extends Error {
  readonly code: AcceleratorErrorCode
  constructor(code: AcceleratorErrorCode, message: string) {
    super(message)
    this.name = 'AcceleratorError'
    this.code = code
  }
}
