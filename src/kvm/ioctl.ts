/** One ioctl on a KVM descriptor: interrupted calls are made again, failures become a KvmError that names the request. */
import { EINTR, HostError } from '../host/errors.ts'
import { lastErrno, type Pointer, sys } from '../host/libc.ts'
import { KvmError } from './errors.ts'
import { IOCTL } from './ioctls.ts'

export type IoctlName = keyof typeof IOCTL

/** Makes the request with a structure. Safe when `argument` is at least as long as the request's structure. */
export function ioctl(fd: number, name: IoctlName, argument: Pointer): number {
  for (;;) {
    const result = sys.ioctl(fd, IOCTL[name], argument)
    if (result >= 0) return result
    const errno = lastErrno()
    if (errno !== EINTR) throw failure(name, errno)
  }
}

/** Makes the request with a number. */
export function ioctlValue(fd: number, name: IoctlName, argument = 0): number {
  for (;;) {
    const result = sys.ioctlValue(fd, IOCTL[name], argument)
    if (result >= 0) return result
    const errno = lastErrno()
    if (errno !== EINTR) throw failure(name, errno)
  }
}

function failure(name: IoctlName, errno: number): KvmError {
  const cause = new HostError('ioctl', errno, name)
  return new KvmError('IOCTL', `${name} failed with ${cause.code}`, cause)
}
