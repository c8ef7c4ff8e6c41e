/** What can go wrong with KVM, and what to do about it. */
import type { HostError } from '../host/errors.ts'

export type KvmErrorCode =
  /** No /dev/kvm. */
  | 'ABSENT'
  /** /dev/kvm may not be opened by this user. */
  | 'FORBIDDEN'
  /** This KVM lacks something that we need. */
  | 'UNSUPPORTED'
  /** An ioctl failed. */
  | 'IOCTL'
  | 'BAD_ARGUMENT'
  /** A saved state that is corrupt, of another version, or of another kind of machine. */
  | 'BAD_STATE'
  | 'CLOSED'

export class KvmError extends Error {
  readonly code: KvmErrorCode
  /** The errno's name when a system call failed. */
  readonly errno?: string

  constructor(code: KvmErrorCode, message: string, cause?: HostError) {
    super(message, { cause })
    this.name = 'KvmError'
    this.code = code
    if (cause) this.errno = cause.code
  }
}
