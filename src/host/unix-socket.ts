/** Unix sockets without libuv: non-blocking descriptors for device workers, with guest buffers used in place. */
import { chmodSync, lstatSync, unlinkSync } from 'node:fs'
import { EAGAIN, EINTR, HostError } from './errors.ts'
import { closeFd } from './file.ts'
import type { IoVector } from './io-vector.ts'
import { check, lastErrno, sys } from './libc.ts'

const AF_UNIX = 1
export const SOCK_STREAM = 1
/** Like a stream, but each write is read as one piece. */
export const SOCK_SEQPACKET = 5
const SOCK_NONBLOCK = 0o4000
const SOCK_CLOEXEC = 0o2000000
const MSG_PEEK = 2
const MSG_DONTWAIT = 0x40
const EADDRINUSE = 98
const SHUT_RD = 0
const SHUT_WR = 1
/** `sun_path`, with its final NUL. */
const MAX_PATH = 108

/** Nothing to read, or no room to write, right now. */
export const WOULD_BLOCK = -1
/** The other end is gone. */
export const BROKEN = -2

/** `struct sockaddr_un`: family, then the path. */
function addressOfPath(path: string): Uint8Array {
  const bytes = new TextEncoder().encode(path)
  if (bytes.length >= MAX_PATH) throw new HostError('bind', 36, `${path} (a Unix socket's path has at most 107 bytes)`)
  const address = new Uint8Array(2 + bytes.length + 1)
  address[0] = AF_UNIX
  address.set(bytes, 2)
  return address
}

const unixSocket = (type: number): number =>
  check(sys.socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), 'socket')

/** Listens at `path`, which only this user may connect to. A socket that was there is replaced. */
export function listenUnix(path: string, backlog = 128, type = SOCK_STREAM): number {
  const address = addressOfPath(path)
  // Only a socket that was left behind is replaced, never a file of somebody's.
  const old = lstatSync(path, { throwIfNoEntry: false })
  if (old?.isSocket()) unlinkSync(path)
  else if (old) throw new HostError('bind', EADDRINUSE, path)
  const fd = unixSocket(type)
  try {
    // Safe: the kernel reads `address.length` bytes of an array of that length.
    check(sys.bind(fd, address, address.length), 'bind', path)
    chmodSync(path, 0o600)
    check(sys.listen(fd, backlog), 'listen', path)
  } catch (error) {
    closeFd(fd)
    throw error
  }
  return fd
}

/** The next connection; WOULD_BLOCK when there is none now, BROKEN when there can be none (too many descriptors). */
export function acceptUnix(fd: number): number {
  // Safe: a null address asks for none.
  return outcome(sys.accept4(fd, null, null, SOCK_NONBLOCK | SOCK_CLOEXEC))
}

/** Connects, or -1: nobody listens there, or its backlog is full. A Unix socket connects at once or not at all. */
export function connectUnix(path: string, type = SOCK_STREAM): number {
  const address = addressOfPath(path)
  const fd = unixSocket(type)
  // Safe: as in `listenUnix`.
  if (sys.connect(fd, address, address.length) === 0) return fd
  closeFd(fd)
  return -1
}

const pair = new Int32Array(2)

/** Two streams that are each other's ends; undefined when there are too many descriptors. */
export function unixPair(): readonly [number, number] | undefined {
  // Safe: two ints into a module-level array.
  if (sys.socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) < 0) return undefined
  return [pair[0]!, pair[1]!]
}

/** Bytes read (0: the end), WOULD_BLOCK or BROKEN. */
export function readVector(fd: number, vector: IoVector): number {
  // Safe: `native` holds `count` pairs that IoVector checked against its memory.
  return outcome(sys.readv(fd, vector.native, vector.count))
}

/** Bytes written, WOULD_BLOCK or BROKEN. */
export function writeVector(fd: number, vector: IoVector): number {
  // Safe: as above.
  return outcome(sys.writev(fd, vector.native, vector.count))
}

export const writeBytes = (fd: number, bytes: Uint8Array): number => outcome(sys.write(fd, bytes, bytes.length))
export const readBytes = (fd: number, into: Uint8Array): number => outcome(sys.read(fd, into, into.length))

/** Looks at what can be read without taking it. */
export function peekBytes(fd: number, into: Uint8Array): number {
  // Safe: at most `into.length` bytes are written to it.
  return outcome(sys.recv(fd, into, into.length, MSG_PEEK | MSG_DONTWAIT))
}

function outcome(result: number): number {
  if (result >= 0) return result
  const errno = lastErrno()
  return errno === EAGAIN || errno === EINTR ? WOULD_BLOCK : BROKEN
}

/** The other end reads an end after what was written. An error means that it is gone already, which is as good. */
export const shutdownWrite = (fd: number): void => void sys.shutdown(fd, SHUT_WR)
/** The other end can write no more. */
export const shutdownRead = (fd: number): void => void sys.shutdown(fd, SHUT_RD)
