/** `vitrine exec`: a command in a box that is there. */
import { Box } from '../box/box.ts'
import { CODE_USE, keepCode } from '../host/kept-code.ts'
import { attach, terminalSize } from './attach.ts'
import { BOX_OPTIONS, boxOptions } from './box-options.ts'
import { cliRuntime } from './box-runtime.ts'
import { type Command, type ParsedArgs, UsageError } from './command.ts'
import { notStarted } from './run.ts'

export const execCommand: Command = {
  name: 'exec',
  summary: 'Run a command in a box; a stopped one is started.',
  usage: '[OPTIONS] BOX COMMAND...',
  options: {
    interactive: { type: 'boolean', short: 'i', help: 'Give our standard input to the command.' },
    tty: { type: 'boolean', short: 't', help: 'Give the command a terminal.' },
    env: BOX_OPTIONS.env!,
    'env-file': BOX_OPTIONS['env-file']!,
    workdir: BOX_OPTIONS.workdir!,
    user: BOX_OPTIONS.user!,
    timeout: { type: 'string', value: 'TIME', help: 'Kill the command after this long.' },
  },
  stopAfter: 1,
  examples: ['vitrine exec web ls -la /srv', 'vitrine exec -it web sh', 'tar c . | vitrine exec -i web tar x -C /srv'],
  run,
}

async function run(args: ParsedArgs): Promise<number> {
  const name = args.required(0, "the box's name")
  const [command, ...rest] = args.rest ?? []
  if (command === undefined) throw new UsageError('the command is missing')
  const box = await Box.get(name, cliRuntime().runtime)
  const { env, workdir, user } = boxOptions(args, undefined)
  const tty = args.flag('tty')
  const timeoutMs = args.duration('timeout')
  try {
    const execution = box.spawn(command, rest, {
      ...(env ? { env } : {}),
      ...(workdir === undefined ? {} : { cwd: workdir }),
      ...(user === undefined ? {} : { user }),
      ...(timeoutMs === undefined ? {} : { timeoutMs }),
      ...(tty ? { tty: terminalSize() } : {}),
    })
    return await attach(execution, { interactive: args.flag('interactive'), tty })
  } catch (error) {
    return notStarted(error)
  } finally {
    box.close()
    keepCode(CODE_USE.usual)
  }
}
