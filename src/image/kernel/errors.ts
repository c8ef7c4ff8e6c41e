/** What can go wrong on the way to a kernel. */
export type KernelErrorCode =
  /** The file named by the user cannot be read. */
  | 'NOT_FOUND'
  /** A program that is needed is not there. */
  | 'NO_TOOL'
  /** The package could not be found or fetched. */
  | 'DOWNLOAD'
  /** What was fetched is not what it should be. */
  | 'BAD_PACKAGE'
  | 'NO_MODULE'
  /** Building the tuned kernel failed. */
  | 'BUILD'
  /** The cache cannot be written. */
  | 'CACHE'

/** A kernel that cannot be found, fetched or built. */
export class KernelError extends Error {
  readonly code: KernelErrorCode
  constructor(code: KernelErrorCode, message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'KernelError'
    this.code = code
  }
}
