/**
 * Internet sockets without libuv: non-blocking, for device workers. Addresses are 16 bytes, IPv4 as ::ffff:a.b.c.d; the
 * kernel sees `sockaddr_in` or `sockaddr_in6`. Calls on the data path return a negative errno instead of throwing.
 */
import { HostError } from './errors.ts'
import { closeFd } from './file.ts'
import type { IoVector } from './io-vector.ts'
import { addressOf, check, lastErrno, sys } from './libc.ts'

export const AF_INET = 2
export const AF_INET6 = 10
export const SOCK_STREAM = 1
export const SOCK_DGRAM = 2
export const IPPROTO_ICMP = 1
export const IPPROTO_ICMPV6 = 58
const SOCK_NONBLOCK = 0o4000
const SOCK_CLOEXEC = 0o2000000
const SOL_SOCKET = 1
const SO_REUSEADDR = 2
const SO_ERROR = 4
const SO_KEEPALIVE = 9
const SO_LINGER = 13
const SO_PEEK_OFF = 42
const IPPROTO_IPV6 = 41
const IPV6_V6ONLY = 26
const IPPROTO_TCP = 6
const TCP_NODELAY = 1
const MSG_PEEK = 2
const MSG_TRUNC = 0x20
const MSG_DONTWAIT = 0x40
const SHUT_WR = 1
const FIONREAD = 0x541b
export const EINPROGRESS = 115
const EALREADY = 114

/** `struct sockaddr_in` and `sockaddr_in6`. */
export const SOCKADDR_IN = { size: 16, port: 2, address: 4 } as const
export const SOCKADDR_IN6 = { size: 28, port: 2, flow: 4, address: 8, scope: 24 } as const
/** `struct msghdr` on a 64-bit Linux. */
export const MSGHDR = { size: 56, iov: 16, iovlen: 24 } as const

const TWO_32 = 0x1_0000_0000

export function isMapped(address: Uint8Array): boolean {
  for (let i = 0; i < 10; i++) if (address[i] !== 0) return false
  return address[10] === 255 && address[11] === 255
}

/** Fills in a sockaddr for `address` and `port`; a new array, for calls that are made once a connection. */
export function socketAddress(address: Uint8Array, port: number): Uint8Array {
  if (isMapped(address)) {
    const bytes = new Uint8Array(SOCKADDR_IN.size)
    bytes[0] = AF_INET
    bytes[SOCKADDR_IN.port] = port >> 8
    bytes[SOCKADDR_IN.port + 1] = port & 255
    bytes.set(address.subarray(12, 16), SOCKADDR_IN.address)
    return bytes
  }
  const bytes = new Uint8Array(SOCKADDR_IN6.size)
  bytes[0] = AF_INET6
  bytes[SOCKADDR_IN6.port] = port >> 8
  bytes[SOCKADDR_IN6.port + 1] = port & 255
  bytes.set(address, SOCKADDR_IN6.address)
  return bytes
}

const familyOf = (address: Uint8Array): number => (isMapped(address) ? AF_INET : AF_INET6)

/** A non-blocking socket of the address's family. */
export function openSocket(address: Uint8Array, type: number, protocol = 0): number {
  return check(sys.socket(familyOf(address), type | SOCK_NONBLOCK | SOCK_CLOEXEC, protocol), 'socket')
}

/** The same, or -1: too many descriptors, or a family that this host does not have. For sockets that a guest asks for. */
export function tryOpenSocket(address: Uint8Array, type: number, protocol = 0): number {
  return sys.socket(familyOf(address), type | SOCK_NONBLOCK | SOCK_CLOEXEC, protocol)
}

/** For echo requests without privileges (icmp(7)): -1 where the group is not in net.ipv4.ping_group_range. */
export const tryOpenPing = (address: Uint8Array): number =>
  tryOpenSocket(address, SOCK_DGRAM, isMapped(address) ? IPPROTO_ICMP : IPPROTO_ICMPV6)

const outcome = (result: number): number => (result >= 0 ? result : -lastErrno())

/** 0, or a negative errno: -EINPROGRESS when the answer comes later as an edge of writing. */
export function connectSocket(fd: number, address: Uint8Array, port: number): number {
  const bytes = socketAddress(address, port)
  // Safe: the kernel reads `bytes.length` bytes of an array of that length.
  const first = outcome(sys.connect(fd, bytes, bytes.length))
  if (first !== -EINPROGRESS) return first
  // On this host the answer is there already, but the kernel looks at it only when the first call is over.
  const second = outcome(sys.connect(fd, bytes, bytes.length))
  return second === -EALREADY ? -EINPROGRESS : second
}

const value = new Int32Array(2)
const valueLength = new Int32Array(1)

function setOption(fd: number, level: number, option: number, first: number): number {
  value[0] = first
  // Safe: four bytes of a module-level array.
  return sys.setsockopt(fd, level, option, value, 4)
}

/** The error that a socket has kept, as a positive errno; reading it clears it. */
export function socketError(fd: number): number {
  valueLength[0] = 4
  // Safe: at most four bytes into a module-level array.
  return sys.getsockopt(fd, SOL_SOCKET, SO_ERROR, value, valueLength) < 0 ? lastErrno() : value[0]!
}

export const noDelay = (fd: number): void => void setOption(fd, IPPROTO_TCP, TCP_NODELAY, 1)

/** The kernel asks a silent peer whether it is still there, and ends the connection when it is not. */
export const keepAlive = (fd: number): void => void setOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1)

/** Closes with a reset instead of an orderly end. */
export function abortSocket(fd: number): void {
  value[0] = 1
  value[1] = 0
  // Safe: `struct linger` is two ints, which the module-level array has.
  sys.setsockopt(fd, SOL_SOCKET, SO_LINGER, value, 8)
  closeFd(fd)
}

/** Where the next peek begins. False: this kernel cannot for this kind of socket (TCP needs Linux 6.9). */
export const setPeekOffset = (fd: number, offset: number): boolean =>
  setOption(fd, SOL_SOCKET, SO_PEEK_OFF, offset) === 0

export const finishWriting = (fd: number): void => void sys.shutdown(fd, SHUT_WR)

/** Bytes that can be read now (of a datagram socket: of the next datagram), or a negative errno. */
export function readableBytes(fd: number): number {
  // Safe: one int into a module-level array.
  return sys.ioctl(fd, FIONREAD, value) < 0 ? -lastErrno() : value[0]!
}

/** Bytes written, or a negative errno. On a datagram socket: one datagram. */
export function writeSocket(fd: number, vector: IoVector): number {
  // Safe: `native` holds `count` pairs that IoVector checked against its memory.
  return outcome(sys.writev(fd, vector.native, vector.count))
}

export const writeSocketBytes = (fd: number, bytes: Uint8Array): number => outcome(sys.write(fd, bytes, bytes.length))

export const readSocketBytes = (fd: number, into: Uint8Array): number => outcome(sys.read(fd, into, into.length))

/** Takes `length` bytes off a TCP socket without copying them anywhere (tcp(7): MSG_TRUNC). */
export function discardBytes(fd: number, length: number): number {
  // Safe: with MSG_TRUNC a TCP socket writes nothing through the pointer.
  return outcome(sys.recv(fd, null, length, MSG_TRUNC | MSG_DONTWAIT))
}

const scratch = new Uint8Array(1 << 16)

/** The same for a Unix socket, which has to put them somewhere. */
export function takeBytes(fd: number, length: number): number {
  let done = 0
  while (done < length) {
    // Safe: at most the scratch array's length.
    const got = sys.read(fd, scratch, Math.min(scratch.length, length - done))
    if (got <= 0) break
    done += got
  }
  return done
}

/** Reads from a stream without taking: after an own offset in the kernel where that exists, else over a discarded part. */
export class PeekReader {
  readonly #message = new Uint8Array(MSGHDR.size + 16)
  readonly #messageWords = new Uint32Array(this.#message.buffer)
  readonly #vector: Uint32Array
  readonly #vectorBytes: Uint8Array
  readonly #discard: Uint8Array

  /** `maxSkip`: the most that will ever be skipped. */
  constructor(segments: number, maxSkip: number) {
    this.#vectorBytes = new Uint8Array((segments + 1) * 16)
    this.#vector = new Uint32Array(this.#vectorBytes.buffer)
    this.#discard = new Uint8Array(new SharedArrayBuffer(maxSkip))
    const words = this.#messageWords
    const vectorAddress = addressOf(this.#vectorBytes)
    words[MSGHDR.iov / 4] = vectorAddress >>> 0
    words[MSGHDR.iov / 4 + 1] = vectorAddress / TWO_32
  }

  /** Peeks into `vector`, after skipping `skip` bytes. Bytes that went into `vector`, or a negative errno. */
  peek(fd: number, vector: IoVector, skip: number): number {
    if (skip > this.#discard.length) throw new RangeError('a peek further than this reader was made for')
    let at = 0
    if (skip > 0) {
      const address = addressOf(this.#discard)
      this.#vector[0] = address >>> 0
      this.#vector[1] = address / TWO_32
      this.#vector[2] = skip
      this.#vector[3] = 0
      at = 4
    }
    const room = Math.min(vector.count, (this.#vector.length - at) / 4)
    for (let i = 0; i < room; i++, at += 4) {
      const address = vector.base + vector.offsets[i]!
      this.#vector[at] = address >>> 0
      this.#vector[at + 1] = address / TWO_32
      this.#vector[at + 2] = vector.lengths[i]!
      this.#vector[at + 3] = 0
    }
    this.#messageWords[MSGHDR.iovlen / 4] = at / 4
    // Safe: the message names `at / 4` ranges, the first our own, the rest checked by IoVector against its memory.
    const got = sys.recvmsg(fd, this.#message, MSG_PEEK | MSG_DONTWAIT)
    return got < 0 ? -lastErrno() : Math.max(0, got - skip)
  }
}

/** Listens on `address`:`port` (0: any free one). Throws HostError: EADDRINUSE, EACCES... */
export function listenSocket(address: Uint8Array, port: number, type: number, name: string): number {
  const fd = openSocket(address, type)
  try {
    if (type === SOCK_STREAM) setOption(fd, SOL_SOCKET, SO_REUSEADDR, 1)
    if (!isMapped(address)) setOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1)
    const bytes = socketAddress(address, port)
    // Safe: as in `connectSocket`.
    check(sys.bind(fd, bytes, bytes.length), 'bind', name)
    if (type === SOCK_STREAM) check(sys.listen(fd, 128), 'listen', name)
    return fd
  } catch (error) {
    closeFd(fd)
    throw error
  }
}

/** A connection with its peer's address in `peer` (16 bytes), or a negative errno. */
export function acceptSocket(fd: number, from: PeerAddress): number {
  from.prepare()
  // Safe: the kernel writes at most the length given, which is the array's.
  const result = outcome(sys.accept4(fd, from.bytes, from.length, SOCK_NONBLOCK | SOCK_CLOEXEC))
  if (result >= 0) from.decode()
  return result
}

/** One datagram into `into`, its sender into `from`; its length or a negative errno. */
export function receiveFrom(fd: number, into: Uint8Array, from: PeerAddress): number {
  from.prepare()
  // Safe: both lengths are those of the arrays.
  const result = outcome(sys.recvfrom(fd, into, into.length, MSG_DONTWAIT, from.bytes, from.length))
  if (result >= 0) from.decode()
  return result
}

export function sendTo(fd: number, bytes: Uint8Array, address: Uint8Array, port: number): number {
  const to = socketAddress(address, port)
  // Safe: as above.
  return outcome(sys.sendto(fd, bytes, bytes.length, MSG_DONTWAIT, to, to.length))
}

/** An address that the kernel fills in. */
export class PeerAddress {
  readonly bytes = new Uint8Array(SOCKADDR_IN6.size)
  readonly length = new Int32Array(1)
  readonly address = new Uint8Array(16)
  port = 0

  prepare(): void {
    this.length[0] = this.bytes.length
  }

  decode(): void {
    const { bytes, address } = this
    this.port = (bytes[2]! << 8) | bytes[3]!
    if (bytes[0] === AF_INET6) address.set(bytes.subarray(SOCKADDR_IN6.address, SOCKADDR_IN6.address + 16))
    else {
      address.fill(0)
      address[10] = 255
      address[11] = 255
      address.set(bytes.subarray(SOCKADDR_IN.address, SOCKADDR_IN.address + 4), 12)
    }
  }

  /** The socket's own address. */
  ofSocket(fd: number): this {
    this.prepare()
    // Safe: as in `acceptSocket`.
    if (sys.getsockname(fd, this.bytes, this.length) < 0) throw new HostError('getsockname', lastErrno())
    this.decode()
    return this
  }
}
