/**
 * Every libc function that we call, declared once. Nothing else in the project loads koffi.
 *
 * A declaration here is unsafe by nature: a wrong length or a stale pointer corrupts the process. Callers are the typed
 * wrappers in this folder; each says what makes its call safe. Buffers are typed arrays or numeric host addresses;
 * koffi pins a typed array for the duration of a synchronous call.
 */
import koffi from 'koffi'
import { EINTR, HostError } from './errors.ts'

/** A buffer argument: a typed array, or an address in this process. */
export type Pointer = Uint8Array | BigUint64Array | Int32Array | number | bigint | null

/**
 * Every thread that loads koffi gets a stack and a heap for its calls, and koffi 3.3 does not give them back when the thread ends: with its
 * 3 MiB, a host with huge pages loses one or two MiB a thread. Nothing that we call needs more than this.
 */
koffi.config({ sync_stack_size: 128 * 1024, sync_heap_size: 64 * 1024 })

const libc = koffi.load(null)

function declare<Args extends unknown[], Result>(name: string, result: string, args: string[]) {
  // koffi checks argument counts and kinds at run time; the TypeScript signature is the caller's.
  return libc.func(name, result, args) as unknown as (...args: Args) => Result
}

export const sys = {
  open: declare<[string, number, number], number>('open', 'int', ['str', 'int', 'int']),
  close: declare<[number], number>('close', 'int', ['int']),
  read: declare<[number, Pointer, number], number>('read', 'int64', ['int', 'void*', 'uint64']),
  write: declare<[number, Pointer, number], number>('write', 'int64', ['int', 'void*', 'uint64']),
  pread: declare<[number, Pointer, number, number], number>('pread', 'int64', ['int', 'void*', 'uint64', 'int64']),
  pwrite: declare<[number, Pointer, number, number], number>('pwrite', 'int64', ['int', 'void*', 'uint64', 'int64']),
  preadv: declare<[number, Pointer, number, number], number>('preadv', 'int64', ['int', 'void*', 'int', 'int64']),
  pwritev: declare<[number, Pointer, number, number], number>('pwritev', 'int64', ['int', 'void*', 'int', 'int64']),
  fdatasync: declare<[number], number>('fdatasync', 'int', ['int']),
  fallocate: declare<[number, number, number, number], number>('fallocate', 'int', ['int', 'int', 'int64', 'int64']),
  ioctl: declare<[number, number, Pointer], number>('ioctl', 'int', ['int', 'uint64', 'void*']),
  /** The same function for requests whose argument is a number; cheaper to call, which KVM_RUN is made of. */
  ioctlValue: declare<[number, number, number], number>('ioctl', 'int', ['int', 'uint64', 'int64']),
  fcntl: declare<[number, number, Pointer], number>('fcntl', 'int', ['int', 'int', 'void*']),
  mmap: declare<[Pointer, number, number, number, number, number], number | bigint>('mmap', 'intptr_t', [
    'void*',
    'uint64',
    'int',
    'int',
    'int',
    'int64',
  ]),
  munmap: declare<[Pointer, number], number>('munmap', 'int', ['void*', 'uint64']),
  madvise: declare<[Pointer, number, number], number>('madvise', 'int', ['void*', 'uint64', 'int']),
  eventfd: declare<[number, number], number>('eventfd', 'int', ['uint32', 'int']),
  poll: declare<[Pointer, number, number], number>('poll', 'int', ['void*', 'uint64', 'int']),
  ppoll: declare<[Pointer, number, Pointer, null], number>('ppoll', 'int', ['void*', 'uint64', 'void*', 'void*']),
  prctl: declare<[number, number, number, number, number], number>('prctl', 'int', [
    'int',
    'uint64',
    'uint64',
    'uint64',
    'uint64',
  ]),
  /** seccomp(2), which glibc has no function for. */
  seccomp: declare<[number, number, number, Pointer], number>('syscall', 'int64', ['int64', 'int64', 'int64', 'void*']),
  setrlimit: declare<[number, Pointer], number>('setrlimit', 'int', ['int', 'void*']),
  gettid: declare<[], number>('gettid', 'int', []),
  tgkill: declare<[number, number, number], number>('tgkill', 'int', ['int', 'int', 'int']),
  pipe2: declare<[Int32Array, number], number>('pipe2', 'int', ['void*', 'int']),
  memfd_create: declare<[string, number], number>('memfd_create', 'int', ['str', 'uint32']),
  lseek: declare<[number, number, number], number>('lseek', 'int64', ['int', 'int64', 'int']),
  readv: declare<[number, Pointer, number], number>('readv', 'int64', ['int', 'void*', 'int']),
  writev: declare<[number, Pointer, number], number>('writev', 'int64', ['int', 'void*', 'int']),
  socket: declare<[number, number, number], number>('socket', 'int', ['int', 'int', 'int']),
  socketpair: declare<[number, number, number, Int32Array], number>('socketpair', 'int', [
    'int',
    'int',
    'int',
    'void*',
  ]),
  bind: declare<[number, Pointer, number], number>('bind', 'int', ['int', 'void*', 'uint32']),
  listen: declare<[number, number], number>('listen', 'int', ['int', 'int']),
  connect: declare<[number, Pointer, number], number>('connect', 'int', ['int', 'void*', 'uint32']),
  accept4: declare<[number, Pointer, Pointer, number], number>('accept4', 'int', ['int', 'void*', 'void*', 'int']),
  recv: declare<[number, Pointer, number, number], number>('recv', 'int64', ['int', 'void*', 'uint64', 'int']),
  shutdown: declare<[number, number], number>('shutdown', 'int', ['int', 'int']),
  recvmsg: declare<[number, Pointer, number], number>('recvmsg', 'int64', ['int', 'void*', 'int']),
  sendto: declare<[number, Pointer, number, number, Pointer, number], number>('sendto', 'int64', [
    'int',
    'void*',
    'uint64',
    'int',
    'void*',
    'uint32',
  ]),
  recvfrom: declare<[number, Pointer, number, number, Pointer, Pointer], number>('recvfrom', 'int64', [
    'int',
    'void*',
    'uint64',
    'int',
    'void*',
    'void*',
  ]),
  setsockopt: declare<[number, number, number, Pointer, number], number>('setsockopt', 'int', [
    'int',
    'int',
    'int',
    'void*',
    'uint32',
  ]),
  getsockopt: declare<[number, number, number, Pointer, Pointer], number>('getsockopt', 'int', [
    'int',
    'int',
    'int',
    'void*',
    'void*',
  ]),
  getsockname: declare<[number, Pointer, Pointer], number>('getsockname', 'int', ['int', 'void*', 'void*']),
  epoll_create1: declare<[number], number>('epoll_create1', 'int', ['int']),
  epoll_ctl: declare<[number, number, number, Pointer], number>('epoll_ctl', 'int', ['int', 'int', 'int', 'void*']),
  epoll_wait: declare<[number, Pointer, number, number], number>('epoll_wait', 'int', ['int', 'void*', 'int', 'int']),
  timerfd_create: declare<[number, number], number>('timerfd_create', 'int', ['int', 'int']),
  timerfd_settime: declare<[number, number, Pointer, Pointer], number>('timerfd_settime', 'int', [
    'int',
    'int',
    'void*',
    'void*',
  ]),
  getrandom: declare<[Pointer, number, number], number>('getrandom', 'int64', ['void*', 'uint64', 'uint32']),
  flock: declare<[number, number], number>('flock', 'int', ['int', 'int']),
  llistxattr: declare<[Pointer, Pointer, number], number>('llistxattr', 'int64', ['void*', 'void*', 'uint64']),
  lgetxattr: declare<[Pointer, Pointer, Pointer, number], number>('lgetxattr', 'int64', [
    'void*',
    'void*',
    'void*',
    'uint64',
  ]),
  ftruncate: declare<[number, number], number>('ftruncate', 'int', ['int', 'int64']),
  fork: declare<[], number>('fork', 'int', []),
  waitpid: declare<[number, Int32Array, number], number>('waitpid', 'int', ['int', 'void*', 'int']),
  getpid: declare<[], number>('getpid', 'int', []),
  setsid: declare<[], number>('setsid', 'int', []),
  dup2: declare<[number, number], number>('dup2', 'int', ['int', 'int']),
  /** Ends the process at once: nothing of Node's runs any more. */
  exit: declare<[number], void>('_exit', 'void', ['int']),
}

/** A function that this process may not have: undefined then. */
function declareOptional<Args extends unknown[], Result>(name: string, result: string, args: string[]) {
  try {
    return declare<Args, Result>(name, result, args)
  } catch {
    return undefined
  }
}

/** Gives what malloc() keeps and nobody uses back to the host; glibc only. */
export const trimAllocator = declareOptional<[number], number>('malloc_trim', 'int', ['uint64'])

/** Settings of malloc(); glibc only. */
export const setAllocator = declareOptional<[number, number], number>('mallopt', 'int', ['int', 'int'])

/** Node's event loop, through the functions that Node exports to native addons. */
export const uv = {
  default_loop: declareOptional<[], unknown>('uv_default_loop', 'void*', []),
  backend_fd: declareOptional<[unknown], number>('uv_backend_fd', 'int', ['void*']),
  backend_timeout: declareOptional<[unknown], number>('uv_backend_timeout', 'int', ['void*']),
  update_time: declareOptional<[unknown], void>('uv_update_time', 'void', ['void*']),
  metrics_info: declareOptional<[unknown, Pointer], number>('uv_metrics_info', 'int', ['void*', 'void*']),
  loop_fork: declareOptional<[unknown], number>('uv_loop_fork', 'int', ['void*']),
}

/** The errno of the last call on this thread. Read it before anything else calls into libc through koffi. */
export const lastErrno = (): number => koffi.errno()

/** Passes a call's result on, or throws the typed error when it is negative. */
export function check(result: number, syscall: string, subject?: string): number {
  if (result < 0) throw new HostError(syscall, koffi.errno(), subject)
  return result
}

/** Calls again for as long as a signal interrupts; then as `check`. */
export function retryOnSignal(call: () => number, syscall: string, subject?: string): number {
  for (;;) {
    const result = call()
    if (result >= 0) return result
    const errno = koffi.errno()
    if (errno !== EINTR) throw new HostError(syscall, errno, subject)
  }
}

/**
 * The host address of a typed array's first byte. Stable only for memory that V8 never moves: WebAssembly memories,
 * SharedArrayBuffers, and ArrayBuffers larger than V8's inline limit (64 bytes).
 */
export const addressOf = (bytes: Uint8Array): number => Number(koffi.address(bytes))

/** An ArrayBuffer over `length` bytes at a host address: for mappings of ours, valid until they are unmapped. */
export const viewOf = (address: number | bigint, length: number): ArrayBuffer => koffi.view(address, length)
