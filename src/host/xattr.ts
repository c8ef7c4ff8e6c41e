/** Extended attributes of a path, its own if it is a symbolic link. Node has no calls for them. */
import { constants } from 'node:os'
import { HostError } from './errors.ts'
import { lastErrno, sys } from './libc.ts'

const NAMES_LIMIT = 65536
const VALUE_LIMIT = 65536
const names = Buffer.alloc(NAMES_LIMIT)
const value = Buffer.alloc(VALUE_LIMIT)
/** What "there are none" looks like, besides an empty list. */
const NONE = new Set<number>([constants.errno.ENOTSUP, constants.errno.EOPNOTSUPP, constants.errno.ENODATA])

/** Name (a string with one character a byte) to value; undefined when there are none. `path` is bytes without the final zero. */
export function readXattrs(path: Uint8Array): Map<string, Uint8Array> | undefined {
  const cPath = Buffer.concat([path, new Uint8Array(1)])
  // Safe: the path ends in a zero, and the kernel writes at most NAMES_LIMIT bytes.
  const length = sys.llistxattr(cPath, names, NAMES_LIMIT)
  if (length < 0) {
    const errno = lastErrno()
    if (NONE.has(errno)) return undefined
    throw new HostError('llistxattr', errno, Buffer.from(path).toString())
  }
  if (length === 0) return undefined
  const found = new Map<string, Uint8Array>()
  for (const name of names.toString('latin1', 0, length).split('\0')) {
    if (name === '') continue
    // Safe: both strings end in a zero, and the kernel writes at most VALUE_LIMIT bytes.
    const size = sys.lgetxattr(cPath, Buffer.from(`${name}\0`, 'latin1'), value, VALUE_LIMIT)
    // An attribute can go between the two calls, or be one that only its owner may read.
    if (size >= 0) found.set(name, Uint8Array.prototype.slice.call(value, 0, size))
  }
  return found.size > 0 ? found : undefined
}
