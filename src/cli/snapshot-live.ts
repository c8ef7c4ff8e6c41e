/** Commands that save, put back and branch boxes: rollback, restore, fork, pause, resume; and `snapshot create`. */
import { Box } from '../box/box.ts'
import { cliRuntime } from './box-runtime.ts'
import { type Command, JSON_OPTION, type ParsedArgs, UsageError } from './command.ts'
import { formatBytes, printJson } from './output.ts'
import { REF_HELP } from './snapshot-refs.ts'

/** A box for the time of one command. */
async function withBox<T>(name: string, use: (box: Box) => Promise<T>): Promise<T> {
  const { runtime, progress } = cliRuntime()
  const box = await Box.get(name, runtime)
  try {
    return await use(box)
  } finally {
    progress.clear()
    box.close()
  }
}

/** `vitrine snapshot create BOX [NAME]`. */
export async function createSnapshot(args: ParsedArgs): Promise<number> {
  const name = args.required(1, "the box's name")
  args.atMost(3)
  const taken = await withBox(name, box => box.snapshot(args.positionals[2], { diskOnly: args.flag('disk-only') }))
  if (args.flag('json')) printJson(taken)
  else {
    process.stdout.write(`${taken.name ?? taken.id}\n`)
    if (process.stderr.isTTY && taken.memory) {
      process.stderr.write(
        `${formatBytes(taken.memoryBytes)} of memory; the box stood still for ${taken.pauseMs.toFixed(1)} ms\n`,
      )
    }
  }
  return 0
}

export const rollbackCommand: Command = {
  name: 'rollback',
  summary: 'Put a box back to a snapshot of it, processes and files; what came after is dropped.',
  usage: 'BOX SNAPSHOT',
  options: {},
  examples: ['vitrine rollback work before', 'vitrine rollback work 3f5a2c01d9e4'],
  run: async args => {
    const [name, snapshot] = [args.required(0, "the box's name"), args.required(1, 'the snapshot')]
    args.atMost(2)
    // The box goes on in a VMM process of its own: this one must be able to end.
    await withBox(name, box => box.rollback(snapshot))
    process.stdout.write(`${name}\n`)
    return 0
  },
}

export const restoreCommand: Command = {
  name: 'restore',
  summary: `Make a new box of a snapshot; it goes on from there. ${REF_HELP}`,
  usage: '[OPTIONS] SNAPSHOT',
  options: {
    name: { type: 'string', value: 'NAME', help: "The new box's name." },
    start: { type: 'boolean', help: 'Let it run at once; else it starts when it is first used.' },
    json: JSON_OPTION,
  },
  examples: ['vitrine restore work@before --name again', 'vitrine restore ready --start'],
  run: async args => {
    const ref = args.required(0, 'the snapshot')
    args.atMost(1)
    const name = args.text('name')
    const { runtime, progress } = cliRuntime()
    const box = await Box.restore(ref, { detach: true, ...(name === undefined ? {} : { name }) }, runtime)
    try {
      if (args.flag('start')) await box.start()
    } finally {
      progress.clear()
      box.close()
    }
    if (args.flag('json')) printJson({ id: box.id, name: box.name })
    else process.stdout.write(`${box.name}\n`)
    return 0
  },
}

const MOST_FORKS = 1000

export const forkCommand: Command = {
  name: 'fork',
  summary: 'Branch a box into more that go on from the same moment, sharing what they do not change.',
  usage: '[OPTIONS] BOX [NAME...]',
  options: {
    count: { type: 'string', short: 'n', value: 'N', help: 'How many; as many as there are names, or 1.' },
    json: JSON_OPTION,
  },
  examples: ['vitrine fork work', 'vitrine fork work red green blue', 'vitrine fork --count 10 work'],
  run: async args => {
    const name = args.required(0, "the box's name")
    const names = args.positionals.slice(1)
    const count = args.number('count') ?? Math.max(1, names.length)
    if (count < 1 || count > MOST_FORKS) throw new UsageError(`--count takes 1 to ${MOST_FORKS}`)
    if (names.length > 0 && names.length !== count) {
      throw new UsageError(`${count} boxes and ${names.length} names: give one for each, or none`)
    }
    const forks = await withBox(name, box => box.fork({ count, detach: true, ...(names.length > 0 ? { names } : {}) }))
    for (const fork of forks) fork.close()
    if (args.flag('json')) printJson(forks.map(fork => ({ id: fork.id, name: fork.name })))
    else for (const fork of forks) process.stdout.write(`${fork.name}\n`)
    return 0
  },
}

export const pauseCommand: Command = {
  name: 'pause',
  summary: 'Freeze boxes; any use of one wakes it up.',
  usage: '[OPTIONS] BOX...',
  options: { release: { type: 'boolean', help: 'Give the memory back to the host: it is kept on disk.' } },
  examples: ['vitrine pause work', 'vitrine pause --release work'],
  run: args => forEachBox(args, box => box.pause({ release: args.flag('release') })),
}

export const resumeCommand: Command = {
  name: 'resume',
  summary: 'Let paused boxes go on.',
  usage: 'BOX...',
  options: {},
  examples: ['vitrine resume work'],
  run: args => forEachBox(args, box => box.resume()),
}

/** All are tried; the first failure is what is reported. */
async function forEachBox(args: ParsedArgs, work: (box: Box) => Promise<void>): Promise<number> {
  args.required(0, "the box's name")
  let failure: unknown
  for (const name of args.positionals) {
    try {
      await withBox(name, work)
      process.stdout.write(`${name}\n`)
    } catch (error) {
      if (failure) process.stderr.write(`vitrine: ${(error as Error).message}\n`)
      failure ??= error
    }
  }
  if (failure) throw failure
  return 0
}
