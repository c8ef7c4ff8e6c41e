/** `vitrine run`: a box from an image, a command in it, and the command's exit status. */
import { Box } from '../box/box.ts'
import type { StartOptions } from '../box/start.ts'
import { CODE_USE, keepCode } from '../host/kept-code.ts'
import { ImageError } from '../image/errors.ts'
import { attach, terminalSize } from './attach.ts'
import { BOX_OPTIONS, boxOptions } from './box-options.ts'
import { cliRuntime } from './box-runtime.ts'
import { type Command, JSON_OPTION, type ParsedArgs, UsageError } from './command.ts'
import { printJson } from './output.ts'

export const runCommand: Command = {
  name: 'run',
  summary: 'Run a command in a new box.',
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
    copy: {
      type: 'string',
      short: 'c',
      multiple: true,
      value: 'HOST:GUEST',
      help: "Copy a file or directory of the host into the box first, as in ./src:/root/src ('cp' brings it back).",
    },
    ...BOX_OPTIONS,
    json: { ...JSON_OPTION, help: 'With --detach: print id and name as JSON.' },
  },
  stopAfter: 1,
  examples: [
    'vitrine run -- uname -a',
    'vitrine run -it python:3.12-slim',
    'vitrine run --rm -e NAME=world debian:12 sh -c \'echo "hello $NAME"\'',
    'vitrine run -c .:/work -w /work python:3.12-slim python test.py',
    'vitrine run -d --name web -p 8080:80 nginx',
  ],
  run,
}

async function run(args: ParsedArgs): Promise<number> {
  const { runtime, progress } = cliRuntime()
  const detach = args.flag('detach')
  const [image] = args.positionals
  const options = boxOptions(args, image)
  const copies = args.all('copy').map(parseCopy)
  if (detach && copies.length > 0)
    throw new UsageError(
      "--copy comes before the command, which --detach starts at once: 'create', 'cp' and 'exec' do it",
    )
  const keep = (options.name !== undefined || detach) && !args.flag('rm')
  const command = detach ? { command: args.rest ?? [] } : {}
  progress.update('Preparing the image')
  let box: Box
  try {
    box = await Box.create({ ...options, detach, autoRemove: !keep, ...command }, runtime)
  } catch (error) {
    throw args.rest === undefined ? withHint(error, image) : error
  } finally {
    progress.clear()
  }
  if (detach) {
    await started(box, progress)
    if (args.flag('json')) printJson({ id: box.id, name: box.name })
    else process.stdout.write(`${box.name}\n`)
    box.close()
    return 0
  }
  const ending = endWhenInterrupted(box, keep)
  try {
    await started(box, progress, { connect: true })
    for (const { from, to } of copies) await box.copyIn(from, to)
    const [program, ...rest] = box.commandLine(args.rest)
    const tty = args.flag('tty')
    ending.stop()
    const execution = box.spawn(program!, rest, tty ? { tty: terminalSize() } : {})
    return await attach(execution, { interactive: args.flag('interactive'), tty })
  } catch (error) {
    // A start that fails because the user ended it is no news.
    if (ending.interrupted) return 130
    return notStarted(error)
  } finally {
    ending.stop()
    // What goes away with its disk need not be written out.
    await box.stop(keep ? {} : { graceMs: 0 })
    if (box.startedFrom === 'template') keepCode(CODE_USE.usual)
  }
}

/** `HOST:GUEST`; the guest's path is absolute, so the last colon before a slash parts them. */
export function parseCopy(text: string): { from: string; to: string } {
  const at = text.lastIndexOf(':/')
  if (at <= 0) throw new UsageError(`'${text}' is nothing to copy: write HOST:GUEST, as in ./src:/root/src`)
  return { from: text.slice(0, at), to: text.slice(at + 1) }
}

/** Who types `vitrine run ls` wants a command, and not an image of that name. */
export function withHint(error: unknown, image: string | undefined): unknown {
  const missing = error instanceof ImageError && ['NOT_FOUND', 'NETWORK', 'UNAUTHORIZED'].includes(error.code)
  if (!missing || image === undefined || !/^[a-z0-9_-]+$/.test(image)) return error
  const hint = `If '${image}' is a command: vitrine run -- ${image}`
  return new ImageError(error.code, `${error.message}. ${hint}`, { cause: error })
}

async function started(
  box: Box,
  progress: { update(text: string): void; clear(): void },
  options: StartOptions = {},
): Promise<void> {
  progress.update('Starting the box')
  try {
    await box.start(options)
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
function endWhenInterrupted(box: Box, keep: boolean): { readonly interrupted: boolean; stop(): void } {
  let interrupted = false
  const onSignal = (): void => {
    interrupted = true
    void (keep ? box.stop({ graceMs: 0 }) : box.remove({ force: true })).finally(() => process.exit(130))
  }
  process.once('SIGINT', onSignal)
  process.once('SIGTERM', onSignal)
  return {
    get interrupted() {
      return interrupted
    },
    stop: () => {
      process.off('SIGINT', onSignal)
      process.off('SIGTERM', onSignal)
    },
  }
}
