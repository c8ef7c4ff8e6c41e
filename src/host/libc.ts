/**
 * Every libc function that we call, declared once. Nothing else in the project loads koffi.
 *
 * A declaration here is unsafe by nature: a wrong length or a stale pointer corrupts the process. Callers are the typed
 * wrappers in this folder; each says what makes its call safe. Buffers are typed arrays or numeric host addresses;
 * koffi pins a typed array for the duration of a synchronous call.
 *
 * koffi is loaded, and a function looked up, by the first call: a process that starts pays for what it uses.
 */
import { EINTR, HostError } from './errors.ts'
import { koffi, libc } from './koffi.ts'

/** A buffer argument: a typed array, or an address in this process. */
export type Pointer = Uint8Array | BigUint64Array | Int32Array | number | bigint | null

interface Declaration {
  readonly name: string
  readonly result: string
  readonly args: string[]
}

/** koffi checks argument counts and kinds at run time; the TypeScript signature is the caller's. */
function declare<Args extends unknown[], Result>(name: string, result: string, args: string[]) {
  return { name, result, args } satisfies Declaration as unknown as (...args: Args) => Result
}

type Foreign = (...args: unknown[]) => unknown

const lookUp = ({ name, result, args }: Declaration): Foreign => libc().func(name, result, args) as Foreign

/** Has every function looked up now: for a process that will be forked, so that its children need not. */
export const lookUpAll = (): void => {
  for (const each of unused.values()) each()
  for (const each of optionals) each()
}
const unused = new Map<string, () => Foreign>()
const optionals: (() => unknown)[] = []

/** Puts a function in the place of each declaration that looks it up when it is first called, and gives way to it. */
function lookedUpLater<Table extends Readonly<Record<string, unknown>>>(declarations: Table): Table {
  const table = declarations as Record<string, unknown>
  for (const [key, declaration] of Object.entries(declarations)) {
    const settle = (): Foreign => {
      const found = lookUp(declaration as Declaration)
      table[key] = found
      unused.delete(key)
      return found
    }
    unused.set(key, settle)
    table[key] = (...args: unknown[]) => settle()(...args)
  }
  return declarations
}

export const sys = lookedUpLater({
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
})

/** Functions that this process may not have; undefined, unless it has all of them. */
function optional<Table extends Readonly<Record<string, unknown>>>(declarations: Table): () => Table | undefined {
  let found: Table | undefined | null = null
  const look = (): Table | undefined => {
    if (found === null) {
      try {
        const entries = Object.entries(declarations).map(([key, each]) => [key, lookUp(each as Declaration)])
        found = Object.fromEntries(entries) as Table
      } catch {
        found = undefined
      }
    }
    return found
  }
  optionals.push(look)
  return look
}

/** What malloc() can be told; glibc only. */
export const allocator = optional({
  /** Gives what it keeps and nobody uses back to the host. */
  trim: declare<[number], number>('malloc_trim', 'int', ['uint64']),
  set: declare<[number, number], number>('mallopt', 'int', ['int', 'int']),
})

/** epoll_wait() with a timeout in nanoseconds: Linux 5.11, glibc 2.35. */
export const preciseWait = optional({
  epoll_pwait2: declare<[number, Pointer, number, Pointer, null], number>('epoll_pwait2', 'int', [
    'int',
    'void*',
    'int',
    'void*',
    'void*',
  ]),
})

/** Node's event loop, through the functions that Node exports to native addons. */
export const uv = optional({
  default_loop: declare<[], unknown>('uv_default_loop', 'void*', []),
  backend_fd: declare<[unknown], number>('uv_backend_fd', 'int', ['void*']),
  backend_timeout: declare<[unknown], number>('uv_backend_timeout', 'int', ['void*']),
  update_time: declare<[unknown], void>('uv_update_time', 'void', ['void*']),
  metrics_info: declare<[unknown, Pointer], number>('uv_metrics_info', 'int', ['void*', 'void*']),
  loop_fork: declare<[unknown], number>('uv_loop_fork', 'int', ['void*']),
})

/** The errno of the last call on this thread. Read it before anything else calls into libc through koffi. */
export const lastErrno = (): number => koffi().errno()

/** Passes a call's result on, or throws the typed error when it is negative. */
export function check(result: number, syscall: string, subject?: string): number {
  if (result < 0) throw new HostError(syscall, koffi().errno(), subject)
  return result
}

/** Calls again for as long as a signal interrupts; then as `check`. */
export function retryOnSignal(call: () => number, syscall: string, subject?: string): number {
  for (;;) {
    const result = call()
    if (result >= 0) return result
    const errno = koffi().errno()
    if (errno !== EINTR) throw new HostError(syscall, errno, subject)
  }
}

/**
 * The host address of a typed array's first byte. Stable only for memory that V8 never moves: WebAssembly memories,
 * SharedArrayBuffers, and ArrayBuffers larger than V8's inline limit (64 bytes).
 */
export const addressOf = (bytes: Uint8Array): number => Number(koffi().address(bytes))

/** An ArrayBuffer over `length` bytes at a host address: for mappings of ours, valid until they are unmapped. */
export const viewOf = (address: number | bigint, length: number): ArrayBuffer => koffi().view(address, length)
