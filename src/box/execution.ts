/** A command in a box: its streams, its end, and ways to influence it. */
import type { Readable, Writable } from 'node:stream'
import type { AgentProcess, ProcessExit } from './agent/client.ts'

/** Linux' numbers, whatever the host is; only these can be sent by name. */
const SIGNALS: Readonly<Record<string, number>> = {
  SIGHUP: 1,
  SIGINT: 2,
  SIGQUIT: 3,
  SIGABRT: 6,
  SIGKILL: 9,
  SIGUSR1: 10,
  SIGSEGV: 11,
  SIGUSR2: 12,
  SIGPIPE: 13,
  SIGALRM: 14,
  SIGTERM: 15,
  SIGCHLD: 17,
  SIGCONT: 18,
  SIGSTOP: 19,
  SIGTSTP: 20,
  SIGWINCH: 28,
}
const SIGNAL_NAMES = new Map(Object.entries(SIGNALS).map(([name, number]) => [number, name]))

/** How a command ended. */
export interface ExecutionExit {
  /** As a shell reports it: the command's own status, or 128 + the number of the signal that ended it. */
  readonly exitCode: number
  /** The signal that ended it, or null. */
  readonly signal: string | null
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

export class Execution {
  /** What the command reads; `end()` it when there is no more. */
  readonly stdin: Writable
  readonly stdout: Readable
  /** Empty with a terminal, where both go to `stdout`. */
  readonly stderr: Readable
  /** Resolves when the command has ended and its output is complete; rejects when it could not be started. */
  readonly exit: Promise<ExecutionExit>
  readonly #process: AgentProcess

  constructor(process: AgentProcess) {
    this.#process = process
    this.stdin = process.stdin
    this.stdout = process.stdout
    this.stderr = process.stderr
    this.exit = process.exit.then(toExit)
    this.exit.catch(() => {})
  }

  /** The command's process id in the guest, once it runs. */
  get pid(): Promise<number> {
    return this.#process.started.then(started => started.pid)
  }

  /** Sends a signal to the command and all that it started. */
  kill(signal: string | number = 'SIGTERM'): void {
    const number = typeof signal === 'number' ? signal : SIGNALS[signal]
    if (number === undefined)
      throw new TypeError(`'${signal}' is no signal that can be sent: use one of ${Object.keys(SIGNALS).join(', ')}`)
    this.#process.signal(number)
  }

  /** Tells the command's terminal its new size. */
  resize(rows: number, columns: number): void {
    this.#process.resize(rows, columns)
  }

  /** Waits for the end, collecting everything. */
  async result(): Promise<ExecutionResult> {
    const [stdoutBytes, stderrBytes, exit] = await Promise.all([collect(this.stdout), collect(this.stderr), this.exit])
    return { ...exit, stdout: stdoutBytes.toString(), stderr: stderrBytes.toString(), stdoutBytes, stderrBytes }
  }
}

async function collect(stream: Readable): Promise<Buffer> {
  const chunks: Buffer[] = []
  try {
    for await (const chunk of stream) chunks.push(chunk as Buffer)
  } catch {
    // `exit` rejects with the reason.
  }
  return Buffer.concat(chunks)
}
