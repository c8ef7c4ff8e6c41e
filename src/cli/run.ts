/** `vitrine run`: a box from an image, a command in it, and the command's exit status. */
import { Box } from '../box/box.ts'
import { attach, terminalSize } from './attach.ts'
import { BOX_OPTIONS, boxOptions } from './box-options.ts'
import { cliRuntime } from './box-runtime.ts'
import type { Command, ParsedArgs } from './command.ts'

export const runCommand: Command = {
  name: 'run',
  summary: 'Runs a command in a new box.',
  usage: '[OPTIONS] [IMAGE] [COMMAND...]   or   [OPTIONS] [IMAGE] -- COMMAND...',
  options: {
    interactive: { type: 'boolean', short: 'i', help: 'Give our standard input to the command.' },
    tty: { type: 'boolean', short: 't', help: 'Give the command a terminal.' },
    rm: { type: 'boolean', help: 'Remove the box when the command ends (the default without --name).' },
    detach: {
      type: 'boolean',
      short: 'd',
      help: "Leave the box running in the background; print its name. 'logs' shows its output.",
    },
    ...BOX_OPTIONS,
  },
  stopAfter: 1,
  examples: [
    'vitrine run -- uname -a',
    'vitrine run -it python:3.12-slim',
    'vitrine run --rm -e NAME=world debian:12 sh -c \'echo "hello $NAME"\'',
    'vitrine run -d --name web -p 8080:80 nginx',
  ],
  run,
}

async function run(args: ParsedArgs): Promise<number> {
  const { runtime, progress } = cliRuntime()
  const detach = args.flag('detach')
  const options = boxOptions(args, args.positionals[0])
  const keep = (options.name !== undefined || detach) && !args.flag('rm')
  const command = detach ? { command: args.rest ?? [] } : {}
  progress.update('Preparing the image')
  let box: Box
  try {
    box = await Box.create({ ...options, detach, autoRemove: !keep, ...command }, runtime)
  } finally {
    progress.clear()
  }
  if (detach) {
    await started(box, progress)
    process.stdout.write(`${box.name}\n`)
    box.close()
    return 0
  }
  const ending = endWhenInterrupted(box, keep)
  try {
    await started(box, progress)
    const [program, ...rest] = box.commandLine(args.rest)
    const tty = args.flag('tty')
    ending.stop()
    const execution = await box.spawn(program!, rest, tty ? { tty: terminalSize() } : {})
    return await attach(execution, { interactive: args.flag('interactive'), tty })
  } catch (error) {
    return notStarted(error)
  } finally {
    ending.stop()
    await box.stop()
  }
}

async function started(box: Box, progress: { update(text: string): void; clear(): void }): Promise<void> {
  progress.update('Starting the box')
  try {
    await box.start()
  } finally {
    progress.clear()
  }
}

/** A command that is not there, or may not be run: 127 and 126, as a shell has it. */
export function notStarted(error: unknown): number {
  const { code, message } = error as { code?: string; message: string }
  const status = code === 'ENOENT' ? 127 : code === 'EACCES' || code === 'ENOEXEC' ? 126 : undefined
  if (status === undefined) throw error
  process.stderr.write(`vitrine: ${message}\n`)
  return status
}

/** While the box starts, an interrupt takes it away again. */
function endWhenInterrupted(box: Box, keep: boolean): { stop(): void } {
  const onSignal = (): void => {
    void (keep ? box.stop({ graceMs: 0 }) : box.remove({ force: true })).finally(() => process.exit(130))
  }
  process.once('SIGINT', onSignal)
  process.once('SIGTERM', onSignal)
  return {
    stop: () => {
      process.off('SIGINT', onSignal)
      process.off('SIGTERM', onSignal)
    },
  }
}
