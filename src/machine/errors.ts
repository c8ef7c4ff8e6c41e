/** Errors of the machine: bad kernels, bad settings, and use in the wrong state. */
export type MachineErrorCode =
  | 'BAD_KERNEL'
  | 'BAD_COMPRESSION'
  | 'BAD_INITRD'
  | 'BAD_SETTING'
  | 'BAD_STATE'
  | 'BAD_SAVED_STATE'
  | 'DOES_NOT_FIT'
  | 'WORKER_FAILED'

/** A machine that cannot be made, or not in this way. */
export class MachineError extends Error {
  readonly code: MachineErrorCode
  constructor(code: MachineErrorCode, message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'MachineError'
    this.code = code
  }
}
