/** Runs a program of the host and gives its output; says which package has it when it is not there. */
import { spawn } from 'node:child_process'
import { KernelError, type KernelErrorCode } from './errors.ts'

export interface ToolOptions {
  readonly cwd?: string
  /** How a failure is reported. */
  readonly code?: KernelErrorCode
  /** The Debian package that has the program. */
  readonly package: string
  /** Each line of output, as it comes. */
  readonly onLine?: (line: string) => void
  readonly env?: NodeJS.ProcessEnv
  readonly signal?: AbortSignal
}

/** How much of a failing program's output goes into the message. */
const TAIL_LINES = 6

export function runTool(command: string, args: readonly string[], options: ToolOptions): Promise<string> {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, ...options.env, LC_ALL: 'C' },
      ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
      ...(options.signal === undefined ? {} : { signal: options.signal }),
    })
    let stdout = ''
    let recent = ''
    const take = (chunk: Buffer): void => {
      const lines = (recent + chunk.toString()).split('\n')
      if (options.onLine) for (const line of lines.slice(0, -1)) options.onLine(line)
      recent = lines.slice(-TAIL_LINES).join('\n')
    }
    child.stdout.on('data', (chunk: Buffer) => {
      stdout += chunk.toString()
      take(chunk)
    })
    child.stderr.on('data', take)
    child.on('error', error => {
      const missing = (error as NodeJS.ErrnoException).code === 'ENOENT'
      reject(
        missing
          ? new KernelError('NO_TOOL', `${command} is not installed: apt-get install ${options.package}`)
          : new KernelError(options.code ?? 'DOWNLOAD', `${command} failed: ${error.message}`, { cause: error }),
      )
    })
    child.on('close', status => {
      if (status === 0) resolve(stdout)
      else {
        const why = recent.trim() || 'it said nothing'
        reject(
          new KernelError(options.code ?? 'DOWNLOAD', `${command} ${args[0] ?? ''} failed (status ${status}): ${why}`),
        )
      }
    })
  })
}
