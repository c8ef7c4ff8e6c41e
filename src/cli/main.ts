#!/usr/bin/env node
/**
 * The command line. Commands are loaded when they are run, so that `vitrine --version` loads nothing else.
 *
 * Exit status: the command's own; 1 when it fails, 2 when it is used wrongly, 130 when interrupted.
 */
import { readFileSync } from 'node:fs'
import { type Command, commandHelp, parseCommandLine, UsageError } from './command.ts'
import { COMMANDS, type Entry, GROUPS } from './commands.ts'
import { nearest } from './nearest.ts'

function version(): string {
  const path = new URL(import.meta.url.endsWith('.ts') ? '../../package.json' : '../package.json', import.meta.url)
  return (JSON.parse(readFileSync(path, 'utf8')) as { version: string }).version
}

function help(): string {
  const width = Math.max(...Object.keys(COMMANDS).map(name => name.length)) + 3
  const line = ([name, { summary }]: [string, Entry]): string => `  ${name.padEnd(width)}${summary}`
  return [
    'Vitrine: micro-VMs that you can see into.',
    '',
    'Usage: vitrine COMMAND [OPTIONS] [ARGUMENTS]',
    '       vitrine run -- uname -a    (a first one: fetches what it needs, boots, prints)',
    ...Object.entries(GROUPS).flatMap(([group, commands]) => ['', `${group}:`, ...Object.entries(commands).map(line)]),
    '',
    "'vitrine help COMMAND' explains a command; 'vitrine --version' tells which this is.",
  ].join('\n')
}

async function load(name: string): Promise<Command> {
  const entry = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined
  if (entry) return entry.load()
  const meant = nearest(name, Object.keys(COMMANDS))
  const remedy = meant ? `did you mean '${meant}'?` : "'vitrine help' lists those there are"
  throw new UsageError(`there is no command '${name}': ${remedy}`)
}

async function main(args: readonly string[]): Promise<number> {
  const [name, ...rest] = args
  const topic = name === 'help' ? rest[0] : undefined
  if (topic !== undefined) {
    process.stdout.write(`${commandHelp(await load(topic))}\n`)
    return 0
  }
  if (name === undefined || name === '--help' || name === '-h' || name === 'help') {
    ;(name === undefined ? process.stderr : process.stdout).write(`${help()}\n`)
    return name === undefined ? 2 : 0
  }
  if (name === '--version' || name === '-v' || name === '-V') {
    process.stdout.write(`${version()}\n`)
    return 0
  }
  const command = await load(name)
  const parsed = parseCommandLine(command, rest)
  if (!parsed.flag('help')) return command.run(parsed)
  process.stdout.write(`${commandHelp(command)}\n`)
  return 0
}

/** An error for people: what happened and what to do, without a stack trace. */
function report(error: unknown, name: string | undefined): number {
  const failure = error as Error & { code?: unknown }
  process.stderr.write(`vitrine: ${failure.message}\n`)
  if (error instanceof UsageError) {
    const known = name !== undefined && Object.hasOwn(COMMANDS, name)
    if (known) process.stderr.write(`'vitrine ${name} --help' shows how it is used.\n`)
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

/** At once, if all that was printed is out: to take everything down first takes Node longer than some commands. */
function leave(status: number): void {
  process.exitCode = status
  if (process.stdout.writableLength === 0 && process.stderr.writableLength === 0) process.exit()
}

main(process.argv.slice(2)).then(leave, (error: unknown) => leave(report(error, process.argv[2])))
