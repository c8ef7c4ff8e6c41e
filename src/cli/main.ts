#!/usr/bin/env node
/**
 * The command line. Commands are loaded when they are run, so that `vitrine --version` loads nothing else.
 *
 * Exit status: the command's own; 1 when it fails, 2 when it is used wrongly, 130 when interrupted.
 */
import { readFileSync } from 'node:fs'
import { commandHelp, parseCommandLine, UsageError } from './command.ts'
import { COMMANDS } from './commands.ts'

function version(): string {
  const path = new URL(import.meta.url.endsWith('.ts') ? '../../package.json' : '../package.json', import.meta.url)
  return (JSON.parse(readFileSync(path, 'utf8')) as { version: string }).version
}

function help(): string {
  const names = Object.keys(COMMANDS)
  const width = Math.max(...names.map(name => name.length), 0) + 3
  return [
    'Vitrine: micro-VMs that you can see into.',
    '',
    'Usage: vitrine COMMAND [OPTIONS] [ARGUMENTS]',
    '',
    'Commands:',
    ...names.map(name => `  ${name.padEnd(width)}${COMMANDS[name]!.summary}`),
    '',
    "'vitrine COMMAND --help' explains a command; 'vitrine --version' tells which this is.",
  ].join('\n')
}

/** The closest command to a mistyped one, if one is close. */
function suggestion(name: string): string {
  const close = Object.keys(COMMANDS).find(known => known.startsWith(name) || name.startsWith(known))
  return close ? `: did you mean '${close}'?` : ": 'vitrine --help' lists those there are"
}

async function main(args: readonly string[]): Promise<number> {
  const [name, ...rest] = args
  if (name === undefined || name === '--help' || name === '-h' || name === 'help') {
    process.stdout.write(`${help()}\n`)
    return name === undefined ? 2 : 0
  }
  if (name === '--version' || name === '-v') {
    process.stdout.write(`${version()}\n`)
    return 0
  }
  const entry = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined
  if (!entry) throw new UsageError(`there is no command '${name}'${suggestion(name)}`)
  const command = await entry.load()
  const ownEnd = rest.indexOf('--')
  if ((ownEnd < 0 ? rest : rest.slice(0, ownEnd))[0] === '--help' || rest[0] === '-h') {
    process.stdout.write(`${commandHelp(command)}\n`)
    return 0
  }
  return command.run(parseCommandLine(command, rest))
}

/** An error for people: what happened and what to do, without a stack trace. */
function report(error: unknown): number {
  const failure = error as Error & { code?: unknown }
  process.stderr.write(`vitrine: ${failure.message}\n`)
  if (error instanceof UsageError) {
    process.stderr.write("'vitrine COMMAND --help' shows how a command is used.\n")
    return 2
  }
  if (process.env.VITRINE_DEBUG) process.stderr.write(`${failure.stack}\n`)
  else if (typeof failure.code !== 'string') process.stderr.write('Set VITRINE_DEBUG=1 to see where it comes from.\n')
  return 1
}

// A reader that goes away (`vitrine ps | head`) is no error.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE') process.exit(0)
})

main(process.argv.slice(2)).then(
  status => {
    process.exitCode = status
  },
  (error: unknown) => {
    process.exitCode = report(error)
  },
)
