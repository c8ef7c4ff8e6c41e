/**
 * A process that goes on as two: fork(2) of a running Node. All that was loaded, compiled and mapped is shared with the child until one of
 * them writes to it, and the child is there in a millisecond, where a new Node takes forty and tens of MiB.
 *
 * Node does not mean to be forked. What makes it safe here:
 *
 * - Only the calling thread goes on in the child. V8's own threads are missed by nobody if V8 was told to do everything on the caller's
 *   (`FORKABLE_NODE_OPTIONS`). With any others, workers above all, forking is refused: a lock that one of them held would stay locked for ever.
 * - V8 keeps its memory out of children (MADV_DONTFORK). It is put back in before each fork.
 * - The event loop's descriptors are shared at first. `uv_loop_fork` gives the child its own, before anything else runs. Descriptors that
 *   JavaScript opened stay shared, with their offsets: who forks has opened none but what is meant for all.
 * - Node would wait at its end for the threads that are not there, so the child ends by _exit(2), after its `exit` listeners.
 * - Random numbers: OpenSSL sees by the process id that it was forked, and seeds itself anew. Node keeps some of `randomInt` and `randomUUID` in stock, and
 *   V8 of `Math.random`: who forks has used none of the three.
 */
import { closeSync, openSync, readdirSync, readFileSync } from 'node:fs'
import { HostError } from './errors.ts'
import { FORKABLE_NODE_OPTIONS } from './forkable.ts'
import { check, lastErrno, retryOnSignal, sys, uv } from './libc.ts'

/** The main thread, V8's one, the one for V8's delayed tasks, and the one that waits for a debugger's signal. */
const NODE_THREADS = 4
const MADV_DOFORK = 11
const EINVAL = 22
const ENOTSUP = 95
const PR_SET_PDEATHSIG = 1
const SIGKILL = 9
const O_CLOEXEC = 0o2000000

/** Whether V8 has no threads in this process, as `FORKABLE_NODE_OPTIONS` ask for: it compiles nothing by the way, and code has other flags. */
export const v8IsSingleThreaded = (): boolean => process.execArgv.includes('--single-threaded')

/** Whether this Node could be forked if it was started for it: libuv's functions are there, and it is Linux. */
export const forkIsAvailable = (): boolean => process.platform === 'linux' && uv() !== undefined

/** process.uptime() when this process came from a fork; 0: it was started. */
let forkedAt = 0

/** Whether this process came from `forkProcess`. Its workers run, but none of them ends: Node has each wait for V8's threads. Nobody may wait for that. */
export const isForked = (): boolean => forkedAt > 0

/** Milliseconds since this process came to be, by being started or forked. */
export const processAge = (): number => (process.uptime() - forkedAt) * 1000

function refuse(why: string): never {
  throw new HostError('fork', ENOTSUP, `of Node (${why})`)
}

/** Ranges of this process's memory between what the kernel put into it, which is the same in every process. */
function ownRanges(): [start: number, end: number][] {
  const ranges: [number, number][] = []
  let start: number | undefined
  let end = 0
  for (const [, from, to, name] of readFileSync('/proc/self/maps', 'latin1').matchAll(
    /^([0-9a-f]+)-([0-9a-f]+) .{4} \w+ \S+ \w+ *(.*)$/gm,
  )) {
    if (/^\[v/.test(name!)) {
      if (start !== undefined) ranges.push([start, end])
      start = undefined
    } else {
      start ??= Number.parseInt(from!, 16)
      end = Number.parseInt(to!, 16)
    }
  }
  if (start !== undefined) ranges.push([start, end])
  return ranges
}

/** Has all memory copied to children, as it is unless somebody asked for something else. */
function shareMemory(): void {
  for (const [start, end] of ownRanges()) {
    // Safe: advice about what becomes of pages at a fork. Holes in the range are reported as ENOMEM when all else was done.
    if (sys.madvise(start, end - start, MADV_DOFORK) < 0 && lastErrno() === EINVAL) {
      refuse('some of its memory is a device')
    }
  }
}

/**
 * Forks: 0 in the child, the child's process id in the parent. All that waits in this process, for a promise, a timer or a descriptor, waits in
 * both of them then: there should be nothing.
 */
export function forkProcess(): number {
  if (!forkIsAvailable()) refuse('its libuv is not exported')
  if (FORKABLE_NODE_OPTIONS.some(option => !process.execArgv.includes(option))) {
    refuse(`it was started without ${FORKABLE_NODE_OPTIONS.join(' ')}`)
  }
  if (readdirSync('/proc/self/task').length > NODE_THREADS) refuse('it has threads of its own')
  shareMemory()
  // Safe: see the top of this file.
  const pid = check(sys.fork(), 'fork')
  if (pid === 0) becomeChild()
  return pid
}

function becomeChild(): void {
  // Safe: the main thread's loop, on the main thread, not inside of a pass that looks at descriptors.
  const { loop_fork, default_loop } = uv()!
  const failed = loop_fork(default_loop())
  if (failed !== 0) sys.exit(1)
  forkedAt = process.uptime()
  Object.defineProperty(process, 'pid', { value: sys.getpid(), enumerable: true, configurable: true })
  // What process.exit() calls when the listeners have run; Node's typings do not know it.
  Object.assign(process, { reallyExit: (code?: number | string): void => sys.exit(Number(code ?? 0) & 0xff) })
  process.on('beforeExit', () => process.exit())
  process.on('uncaughtException', error => {
    process.stderr.write(`${error instanceof Error ? error.stack : error}\n`)
    process.exit(1)
  })
}

/** Waits for the end of a child: `exit status 1`, `signal 9`. */
export function childEnd(pid: number): string {
  const word = new Int32Array(1)
  // Safe: one int is written.
  retryOnSignal(() => sys.waitpid(pid, word, 0), 'waitpid')
  const signal = word[0]! & 0x7f
  return signal === 0 ? `exit status ${(word[0]! >> 8) & 0xff}` : `signal ${signal}`
}

/** Has this process, a child of `parent`, killed when that ends; 0: not any more. */
export function dieWith(parent: number): void {
  // Safe: numbers.
  check(sys.prctl(PR_SET_PDEATHSIG, parent === 0 ? 0 : SIGKILL, 0, 0, 0), 'prctl')
  // It may have ended before we asked.
  if (parent !== 0 && process.ppid !== parent) sys.exit(1)
}

/** Puts this process into a session of its own, with `fd` as its output and nothing for its input. */
export function standAlone(fd: number): void {
  // Safe: numbers.
  check(sys.setsid(), 'setsid')
  takeOutput(fd)
  const nothing = openSync('/dev/null', 'r')
  // Safe: numbers.
  check(sys.dup2(nothing, 0), 'dup2')
  closeSync(nothing)
}

/** Has this process write to `fd` what it prints. */
export function takeOutput(fd: number): void {
  // Safe: numbers.
  for (const output of [1, 2]) check(sys.dup2(fd, output), 'dup2')
}

/** A pipe whose ends children have too. */
export function openPipe(): { readonly read: number; readonly write: number } {
  const ends = new Int32Array(2)
  // Safe: two descriptors are written to an array of two.
  check(sys.pipe2(ends, O_CLOEXEC), 'pipe2')
  return { read: ends[0]!, write: ends[1]! }
}
