/** Connecting this terminal, or these pipes, to a command in a box, so that it feels as if it ran here. */
import type { Execution } from '../box/execution.ts'

export interface AttachOptions {
  /** Our standard input goes to the command. */
  readonly interactive: boolean
  /** The command has a terminal, of our terminal's size. */
  readonly tty: boolean
}

/** The size of our terminal, or the usual one where we have none. */
export function terminalSize(): { rows: number; columns: number } {
  return { rows: process.stdout.rows ?? 24, columns: process.stdout.columns ?? 80 }
}

/** Signals that a shell would send to a command in the foreground; with a terminal they are keys and arrive as bytes. */
const FORWARDED = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT'] as const

/** Connects, waits for the command's end, and puts the terminal back as it was; the command's exit status. */
export async function attach(execution: Execution, options: AttachOptions): Promise<number> {
  const { stdin } = process
  const raw = options.tty && options.interactive && stdin.isTTY
  const undo: (() => void)[] = []
  if (options.interactive) {
    if (raw) {
      stdin.setRawMode(true)
      undo.push(() => stdin.setRawMode(false))
    }
    stdin.pipe(execution.stdin)
    undo.push(() => {
      stdin.unpipe(execution.stdin)
      stdin.pause()
      stdin.unref()
    })
  } else {
    execution.stdin.end()
  }
  if (options.tty && process.stdout.isTTY) {
    const onResize = (): void => {
      const { rows, columns } = terminalSize()
      execution.resize(rows, columns)
    }
    process.stdout.on('resize', onResize)
    undo.push(() => process.stdout.off('resize', onResize))
  }
  for (const signal of FORWARDED) {
    const forward = (): void => execution.kill(signal)
    process.on(signal, forward)
    undo.push(() => process.off(signal, forward))
  }
  // `pipe` stalls the command when whoever reads us is slow, and ends neither of our streams.
  execution.stdout.pipe(process.stdout, { end: false })
  execution.stderr.pipe(process.stderr, { end: false })
  try {
    const ends = [execution.stdout, execution.stderr].map(
      stream => new Promise(resolve => (stream.closed ? resolve(0) : stream.once('close', resolve))),
    )
    const exit = await execution.exit
    await Promise.all(ends)
    return exit.exitCode
  } finally {
    for (const step of undo.reverse()) step()
  }
}
