/** What can be wrong with a network's description: the message says which part, and what to give instead. */
export type NetErrorCode =
  | 'BAD_ADDRESS'
  | 'BAD_RULE'
  | 'BAD_PORT'
  | 'PORT_IN_USE'
  | 'PORT_DENIED'
  | 'BAD_DESCRIPTION'
  /** No network of that name. */
  | 'NO_NETWORK'
  /** The guest did not take a connection. */
  | 'REFUSED'
  /** A recording cannot be written. */
  | 'RECORDING'

export class NetError extends Error {
  readonly code: NetErrorCode
  constructor(code: NetErrorCode, message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'NetError'
    this.code = code
  }
}
