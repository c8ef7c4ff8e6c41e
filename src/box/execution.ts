/** A command in a box: its streams, its end, and ways to influence it. */
import { PassThrough, type Readable, type Writable } from 'node:stream'
import type { AgentProcess, ProcessExit } from './agent/client.ts'
import { BoxError } from './errors.ts'

/** Linux' numbers, whatever the host is; only these can be sent by name. */
const SIGNALS: Readonly<Record<string, number>> = {
  SIGHUP: 1,
  SIGINT: 2,
  SIGQUIT: 3,
  SIGILL: 4,
  SIGTRAP: 5,
  SIGABRT: 6,
  SIGBUS: 7,
  SIGFPE: 8,
  SIGKILL: 9,
  SIGUSR1: 10,
  SIGSEGV: 11,
  SIGUSR2: 12,
  SIGPIPE: 13,
  SIGALRM: 14,
  SIGTERM: 15,
  SIGSTKFLT: 16,
  SIGCHLD: 17,
  SIGCONT: 18,
  SIGSTOP: 19,
  SIGTSTP: 20,
  SIGTTIN: 21,
  SIGTTOU: 22,
  SIGURG: 23,
  SIGXCPU: 24,
  SIGXFSZ: 25,
  SIGVTALRM: 26,
  SIGPROF: 27,
  SIGWINCH: 28,
  SIGIO: 29,
  SIGPWR: 30,
  SIGSYS: 31,
}
const SIGNAL_NAMES = new Map(Object.entries(SIGNALS).map(([name, number]) => [number, name]))

/** How a command is started. */
export interface CommandOptions {
  /** Added to the box's environment. */
  readonly env?: Readonly<Record<string, string>>
  /** The box's working directory unless told. */
  readonly cwd?: string
  /** The box's user unless told: a name or a number, with `:group` if wanted. */
  readonly user?: string
  /** The command and all that it started are killed after this long. */
  readonly timeoutMs?: number
}

/** What becomes of a command's output while it is collected. */
export interface CollectOptions {
  /** Hears the output as it comes, beside its being collected. */
  readonly onStdout?: (chunk: Buffer) => void
  readonly onStderr?: (chunk: Buffer) => void
  /** A command that writes more is killed, and the call fails with `OUTPUT_LIMIT`; 256 MiB unless told. */
  readonly maxOutputBytes?: number
}

/** How a command is run to its end. */
export interface ExecOptions extends CommandOptions, CollectOptions {
  /** What the command reads; nothing unless told. */
  readonly input?: string | Uint8Array
}

/** How a command is started whose streams the caller uses. */
export interface SpawnOptions extends CommandOptions {
  /** A terminal, of 24 by 80 unless told, instead of pipes. */
  readonly tty?: boolean | { readonly rows: number; readonly columns: number }
}

/** All of it is kept in memory, and a guest can write without end. */
const MAX_OUTPUT_BYTES = 256 * 2 ** 20

/** How a command ended. */
export interface ExecutionExit {
  /** As a shell reports it: the command's own status, or 128 + the number of the signal that ended it. */
  readonly exitCode: number
  /** The signal that ended it, or null. */
  readonly signal: string | null
  /** Whether that was because its time was over. */
  readonly timedOut: boolean
}

/** A finished command with all that it wrote. */
export interface ExecutionResult extends ExecutionExit {
  /** As text (UTF-8); the bytes themselves are in `stdoutBytes`. */
  readonly stdout: string
  readonly stderr: string
  readonly stdoutBytes: Buffer
  readonly stderrBytes: Buffer
}

export function toExit(exit: ProcessExit): ExecutionExit {
  if (exit.signal === null) return { exitCode: exit.exitCode ?? 0, signal: null, timedOut: exit.timedOut }
  return {
    exitCode: 128 + exit.signal,
    signal: SIGNAL_NAMES.get(exit.signal) ?? `SIG${exit.signal}`,
    timedOut: exit.timedOut,
  }
}

/** A command that was started, and may have ended. */
export class Execution {
  /** What the command reads; `end()` it when there is no more. */
  readonly stdin: Writable
  readonly stdout: Readable
  /** Empty with a terminal, where both go to `stdout`. */
  readonly stderr: Readable
  /** Resolves when the command has ended and its output is complete; rejects when it could not be started. */
  readonly exit: Promise<ExecutionExit>
  readonly #process: Promise<AgentProcess>

  /** A process, or one that is still to come: its streams can be used at once, and wait for it. */
  constructor(process: AgentProcess | Promise<AgentProcess>) {
    const { stdin, stdout, stderr } = process instanceof Promise ? streamsTo(process) : process
    this.stdin = stdin
    this.stdout = stdout
    this.stderr = stderr
    this.#process = Promise.resolve(process)
    this.exit = (process instanceof Promise ? process.then(({ exit }) => exit) : process.exit).then(toExit)
    this.exit.catch(() => {})
  }

  /** The command's process id in the guest, once it runs. */
  get pid(): Promise<number> {
    return this.#process.then(({ started }) => started).then(({ pid }) => pid)
  }

  /** Sends a signal to the command and all that it started. */
  kill(signal: string | number = 'SIGTERM'): void {
    const number = typeof signal === 'number' ? signal : SIGNALS[signal]
    if (number === undefined)
      throw new TypeError(`'${signal}' is no signal that can be sent: use one of ${Object.keys(SIGNALS).join(', ')}`)
    this.#process.then(process => process.signal(number)).catch(() => {})
  }

  /** Tells the command's terminal its new size. */
  resize(rows: number, columns: number): void {
    this.#process.then(process => process.resize(rows, columns)).catch(() => {})
  }

  /** Waits for the end, collecting everything. */
  async result(options: CollectOptions = {}): Promise<ExecutionResult> {
    const limit = options.maxOutputBytes ?? MAX_OUTPUT_BYTES
    let room = limit
    const collect = async (stream: Readable, listener?: (chunk: Buffer) => void): Promise<Buffer> => {
      const chunks: Buffer[] = []
      for await (const chunk of stream as AsyncIterable<Buffer>) {
        room -= chunk.length
        if (room < 0) throw tooMuchOutput(limit)
        chunks.push(chunk)
        listener?.(chunk)
      }
      return Buffer.concat(chunks)
    }
    try {
      const [stdoutBytes, stderrBytes, exit] = await Promise.all([
        collect(this.stdout, options.onStdout),
        collect(this.stderr, options.onStderr),
        this.exit,
      ])
      return { ...exit, stdout: stdoutBytes.toString(), stderr: stderrBytes.toString(), stdoutBytes, stderrBytes }
    } catch (error) {
      // Its output is not wanted any more, by us or by a listener that failed.
      this.kill('SIGKILL')
      throw error
    }
  }
}

function tooMuchOutput(limit: number): BoxError {
  return new BoxError(
    'OUTPUT_LIMIT',
    `the command wrote more than ${limit} bytes and was killed: raise maxOutputBytes, or read its streams with spawn()`,
  )
}

/** Streams that lead to those of a process once it is there. */
function streamsTo(coming: Promise<AgentProcess>): { stdin: Writable; stdout: Readable; stderr: Readable } {
  const [stdin, stdout, stderr] = [new PassThrough(), new PassThrough(), new PassThrough()]
  // As with those of a process: an error that nobody listens for is in `exit`.
  for (const stream of [stdin, stdout, stderr]) stream.on('error', () => {})
  coming.then(
    process => {
      stdin.pipe(process.stdin)
      for (const [from, to] of [
        [process.stdout, stdout],
        [process.stderr, stderr],
      ] as const) {
        from.pipe(to)
        from.once('error', error => to.destroy(error))
        // What its reader does not want any more must not stall the process.
        to.once('close', () => from.destroy())
      }
    },
    (error: Error) => {
      stdin.destroy()
      stdout.destroy(error)
      stderr.destroy(error)
    },
  )
  return { stdin, stdout, stderr }
}
