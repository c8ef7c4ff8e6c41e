/** Errors of talking to a guest, and the names of the guest's errno values (Linux, x86-64), whatever the host is. */

const ERRNO: Readonly<Record<number, string>> = {
  1: 'EPERM',
  2: 'ENOENT',
  4: 'EINTR',
  5: 'EIO',
  7: 'E2BIG',
  8: 'ENOEXEC',
  9: 'EBADF',
  11: 'EAGAIN',
  12: 'ENOMEM',
  13: 'EACCES',
  16: 'EBUSY',
  17: 'EEXIST',
  18: 'EXDEV',
  19: 'ENODEV',
  20: 'ENOTDIR',
  21: 'EISDIR',
  22: 'EINVAL',
  24: 'EMFILE',
  26: 'ETXTBSY',
  27: 'EFBIG',
  28: 'ENOSPC',
  30: 'EROFS',
  32: 'EPIPE',
  36: 'ENAMETOOLONG',
  38: 'ENOSYS',
  39: 'ENOTEMPTY',
  40: 'ELOOP',
  71: 'EPROTO',
}

export const errnoName = (errno: number): string => ERRNO[errno] ?? `E${errno}`

/**
 * `code` is the guest's errno name where a request failed in the guest (`ENOENT`, ...), and otherwise one of
 * `DISCONNECTED` (the guest or its VMM went away), `PROTOCOL` (it sent nonsense), `VERSION` (it speaks another version),
 * `TIMEOUT` (it did not answer).
 */
export class AgentError extends Error {
  readonly code: string
  constructor(code: string, message: string) {
    super(message)
    this.name = 'AgentError'
    this.code = code
  }
}
