/** Host errors: a failed system call with its errno turned into a name, the call and what it was about. */
import { constants } from 'node:os'

const ERRNO_NAMES = new Map<number, string>(Object.entries(constants.errno).map(([name, value]) => [value, name]))

export class HostError extends Error {
  /** The errno's name, for example `ENOENT`. */
  readonly code: string
  readonly errno: number
  /** The system call that failed. */
  readonly syscall: string

  constructor(syscall: string, errno: number, subject?: string) {
    const code = ERRNO_NAMES.get(errno) ?? `E${errno}`
    super(`${syscall}${subject === undefined ? '' : ` ${subject}`}: ${code}`)
    this.name = 'HostError'
    this.code = code
    this.errno = errno
    this.syscall = syscall
  }
}

export const EINTR = constants.errno.EINTR
export const EAGAIN = constants.errno.EAGAIN
export const EPERM = constants.errno.EPERM
export const ENOSYS = constants.errno.ENOSYS
export const ENXIO = constants.errno.ENXIO
