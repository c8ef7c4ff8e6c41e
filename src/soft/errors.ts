export type SoftErrorCode = 'BAD_TICKET' | 'BAD_SETTING' | 'BAD_STATE' | 'TOO_MANY'

export class SoftError extends Error {
  readonly code: SoftErrorCode
  constructor(code: SoftErrorCode, message: string) {
    super(message)
    this.name = 'SoftError'
    this.code = code
  }
}
