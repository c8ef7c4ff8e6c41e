#!/usr/bin/env node
/**
 * The command line. Commands are loaded when they are run, so that `vitrine --version` loads nothing else.
 *
 * Exit status: the command's own; 1 when it fails, 2 when it is used wrongly, 130 when interrupted.
 */
import { readFileSync } from 'node:fs'
import { type Command, commandHelp, parseCommandLine, UsageError } from './command.ts'

interface Entry {
  readonly summary: string
  load(): Promise<Command>
}

/** In the order in which the help shows them. */
const COMMANDS: Readonly<Record<string, Entry>> = {
  run: {
    summary: 'Run a command in a new box',
    load: async () => (await import('./run.ts')).runCommand,
  },
  exec: {
    summary: 'Run a command in a box',
    load: async () => (await import('./exec.ts')).execCommand,
  },
  create: {
    summary: 'Make a box without starting it',
    load: async () => (await import('./boxes.ts')).createCommand,
  },
  start: {
    summary: 'Start boxes',
    load: async () => (await import('./boxes.ts')).startCommand,
  },
  stop: {
    summary: 'Stop boxes; their disks stay',
    load: async () => (await import('./boxes.ts')).stopCommand,
  },
  rm: {
    summary: 'Remove boxes and their disks',
    load: async () => (await import('./boxes.ts')).rmCommand,
  },
  ps: {
    summary: 'List boxes',
    load: async () => (await import('./boxes.ts')).psCommand,
  },
  logs: {
    summary: "Show a box's output or console",
    load: async () => (await import('./boxes.ts')).logsCommand,
  },
  cp: {
    summary: 'Copy files between the host and a box',
    load: async () => (await import('./boxes.ts')).cpCommand,
  },
  stats: {
    summary: 'Show what running boxes use',
    load: async () => (await import('./boxes.ts')).statsCommand,
  },
  inspect: {
    summary: 'Show everything about boxes, as JSON',
    load: async () => (await import('./boxes.ts')).inspectCommand,
  },
  boot: {
    summary: 'Boot a kernel with its console on this terminal',
    load: async () => (await import('./boot.ts')).bootCommand,
  },
  pull: {
    summary: 'Fetch images and make disks of them',
    load: async () => (await import('./images.ts')).pullCommand,
  },
  images: {
    summary: 'List the images on this machine',
    load: async () => (await import('./images.ts')).imagesCommand,
  },
  rmi: {
    summary: 'Remove images',
    load: async () => (await import('./images.ts')).rmiCommand,
  },
  prune: {
    summary: 'Free space: remove what no image or box needs',
    load: async () => (await import('./images.ts')).pruneCommand,
  },
  kernel: {
    summary: 'Show, fetch or build the kernel that machines boot',
    load: async () => (await import('./kernel.ts')).kernelCommand,
  },
  disk: {
    summary: 'Create, inspect, check, convert and change disk images',
    load: async () => (await import('./disk.ts')).diskCommand,
  },
  doctor: {
    summary: 'Look at what this host can run machines with, and what is missing',
    load: async () => (await import('./doctor.ts')).doctorCommand,
  },
}

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
