/** The short commands on boxes: create, start, stop, rm, ps, inspect, cp, stats. */
import { statSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { Box } from '../box/box.ts'
import { BoxError } from '../box/errors.ts'
import { discard, find as findFolder } from '../box/store.ts'
import { BOX_OPTIONS, boxOptions } from './box-options.ts'
import { cliRuntime } from './box-runtime.ts'
import { type Command, JSON_OPTION, type ParsedArgs, UsageError } from './command.ts'
import { formatAge, formatBytes, printJson, printTable } from './output.ts'

const find = (name: string): Promise<Box> => Box.get(name, cliRuntime().runtime)

/** Does something to every box that is named; all are tried, the first failure is what is reported. */
async function forEach(
  args: ParsedArgs,
  work: (box: Box) => Promise<void>,
  onDamaged?: (name: string) => void,
): Promise<number> {
  args.required(0, "the box's name")
  let failure: unknown
  for (const name of args.positionals) {
    try {
      const box = await find(name).catch((error: unknown) => {
        if (!onDamaged || !(error instanceof BoxError && error.code === 'INVALID')) throw error
        onDamaged(name)
      })
      if (box) await work(box)
      box?.close()
      process.stdout.write(`${name}\n`)
    } catch (error) {
      if (failure) process.stderr.write(`vitrine: ${(error as Error).message}\n`)
      failure ??= error
    }
  }
  if (failure) throw failure
  return 0
}

/** A box whose record cannot be read has nothing to be stopped by. */
function removeDamaged(name: string): void {
  const { home } = cliRuntime().runtime
  discard(home, findFolder(home, name), name)
}

export const createCommand: Command = {
  name: 'create',
  summary: 'Make a box without starting it.',
  usage: '[OPTIONS] [IMAGE] [COMMAND...]',
  options: { ...BOX_OPTIONS, json: JSON_OPTION },
  stopAfter: 1,
  examples: ['vitrine create --name work debian:12', 'vitrine exec -it work bash'],
  run: async args => {
    const { runtime, progress } = cliRuntime()
    try {
      const options = boxOptions(args, args.positionals[0])
      const box = await Box.create({ ...options, detach: true, ...(args.rest ? { command: args.rest } : {}) }, runtime)
      progress.clear()
      if (args.flag('json')) printJson({ id: box.id, name: box.name })
      else process.stdout.write(`${box.name}\n`)
    } finally {
      progress.clear()
    }
    return 0
  },
}

export const startCommand: Command = {
  name: 'start',
  summary: 'Start boxes that are stopped.',
  usage: 'BOX...',
  options: {},
  examples: ['vitrine start work'],
  run: args => forEach(args, box => box.start({ detach: true })),
}

export const stopCommand: Command = {
  name: 'stop',
  summary: 'Stop boxes; their disks stay.',
  usage: '[OPTIONS] BOX...',
  options: { time: { type: 'string', short: 't', value: 'TIME', help: 'How long the guest may take (15s).' } },
  examples: ['vitrine stop work', 'vitrine stop --time 0 work'],
  run: args => {
    const graceMs = args.duration('time')
    return forEach(args, box => box.stop(graceMs === undefined ? {} : { graceMs }))
  },
}

export const rmCommand: Command = {
  name: 'rm',
  summary: 'Remove boxes and their disks.',
  usage: '[OPTIONS] BOX...',
  options: { force: { type: 'boolean', short: 'f', help: 'Stop those that run.' } },
  examples: ['vitrine rm work', 'vitrine rm --force web'],
  run: args => {
    const force = args.flag('force')
    return forEach(args, box => box.remove({ force }), force ? removeDamaged : undefined)
  },
}

export const psCommand: Command = {
  name: 'ps',
  summary: 'List boxes.',
  usage: '[OPTIONS]',
  options: {
    all: { type: 'boolean', short: 'a', help: 'Those that are stopped, too.' },
    quiet: { type: 'boolean', short: 'q', help: 'Only their ids.' },
    json: JSON_OPTION,
  },
  examples: ['vitrine ps', 'vitrine ps --all --json', 'vitrine rm --force $(vitrine ps -aq)'],
  run: async args => {
    args.atMost(0)
    const boxes = (await Box.list(cliRuntime().runtime)).filter(box => args.flag('all') || box.state !== 'stopped')
    if (args.flag('json')) printJson(boxes.map(describe))
    else if (args.flag('quiet')) process.stdout.write(boxes.map(({ id }) => `${id}\n`).join(''))
    else {
      printTable(
        ['ID', 'NAME', 'IMAGE', 'STATE', 'CPUS', 'MEMORY', 'CREATED'],
        boxes.map(box => [
          box.id,
          box.name,
          box.config.image,
          stateText(box),
          String(box.config.cpus),
          formatBytes(box.config.memoryMib * 2 ** 20),
          formatAge(box.created),
        ]),
      )
    }
    return 0
  },
}

function stateText(box: Box): string {
  const exit = box.lastExit
  const { state } = box
  if (state !== 'stopped') return state
  if (!exit) return 'stopped'
  return exit.exitCode === null ? `stopped (${exit.reason})` : `stopped (${exit.exitCode})`
}

function describe(box: Box): object {
  const { id, name, created, state, config, lastExit } = box
  return { id, name, created, state, lastExit: lastExit ?? null, config, commandLine: box.commandLine() }
}

export const inspectCommand: Command = {
  name: 'inspect',
  summary: 'Show everything about boxes, as JSON.',
  usage: 'BOX...',
  options: {},
  examples: ['vitrine inspect work'],
  run: async args => {
    args.required(0, "the box's name")
    const boxes = await Promise.all(args.positionals.map(find))
    printJson(boxes.map(box => ({ ...describe(box), folder: box.folder.path, disk: diskUse(box) })))
    return 0
  },
}

function diskUse(box: Box): object {
  const stats = statSync(box.folder.disk)
  return { path: box.folder.disk, bytesOnHost: stats.blocks * 512, guestBytes: box.config.diskGib * 2 ** 30 }
}

/** `box:/path`, or a path of the host. A single letter before the colon would be no box's name worth having. */
function place(text: string): { box?: string; path: string } {
  const match = /^([a-zA-Z0-9][a-zA-Z0-9_.-]*):(\/.*)$/.exec(text)
  return match ? { box: match[1]!, path: match[2]! } : { path: text }
}

export const cpCommand: Command = {
  name: 'cp',
  summary: 'Copy files between the host and a box.',
  usage: 'SOURCE TARGET   (one of them BOX:/PATH)',
  options: {},
  examples: ['vitrine cp site web:/srv', 'vitrine cp web:/var/log/nginx .'],
  run: async args => {
    const from = place(args.required(0, 'the source'))
    const to = place(args.required(1, 'the target'))
    args.atMost(2)
    if ((from.box === undefined) === (to.box === undefined)) {
      throw new UsageError('one of the two must be in a box: write BOX:/PATH')
    }
    const box = await find(from.box ?? to.box!)
    try {
      if (to.box !== undefined) await box.copyIn(from.path, to.path)
      else await box.copyOut(from.path, to.path)
    } finally {
      box.close()
    }
    return 0
  },
}

export const statsCommand: Command = {
  name: 'stats',
  summary: 'Show what running boxes use.',
  usage: '[OPTIONS] [BOX...]',
  options: {
    follow: { type: 'boolean', short: 'f', help: 'Again every second, until interrupted or the last box stops.' },
    json: JSON_OPTION,
  },
  examples: ['vitrine stats', 'vitrine stats --follow web', 'vitrine stats --json web'],
  run: async args => {
    const named = await Promise.all(args.positionals.map(find))
    const running = async (): Promise<Box[]> =>
      (named.length > 0 ? named : await Box.list(cliRuntime().runtime)).filter(box => box.state === 'running')
    // A box that is named and does not run is an error; one that stops while it is watched is not.
    for (const box of named) await box.metrics()
    for (let first = true; ; first = false) {
      const boxes = await running()
      if (boxes.length === 0 && !first) return 0
      await showStats(boxes, args.flag('json'), args.flag('follow') && process.stdout.isTTY)
      for (const box of boxes) box.close()
      if (!args.flag('follow')) return 0
      await sleep(STATS_EVERY_MS)
    }
  },
}

const STATS_EVERY_MS = 1000
const CLEAR_SCREEN = '\x1b[H\x1b[2J'

async function showStats(boxes: readonly Box[], json: boolean, clear: boolean): Promise<void> {
  const all = await Promise.all(boxes.map(async box => ({ box, metrics: await box.metrics().catch(() => undefined) })))
  const figures = all.flatMap(({ box, metrics }) => (metrics ? [{ box, metrics }] : []))
  if (clear) process.stdout.write(CLEAR_SCREEN)
  if (json) {
    printJson(figures.map(({ box, metrics }) => ({ id: box.id, name: box.name, ...metrics })))
    return
  }
  const pair = (a: number, b: number): string => `${formatBytes(a)} / ${formatBytes(b)}`
  printTable(
    [
      'NAME',
      'CPU TIME',
      'MEMORY (HOST)',
      'MEMORY (GUEST)',
      'DISK',
      'READ / WRITTEN',
      'RECEIVED / SENT',
      'EXITS',
      'COMMANDS',
      'READY AFTER',
    ],
    figures.map(({ box, metrics: { cpuMs, residentBytes, guest, disk, network, exits, stages } }) => [
      box.name,
      `${(cpuMs / 1000).toFixed(1)} s`,
      formatBytes(residentBytes),
      guest ? `${formatBytes(guest.memoryTotal - guest.memoryAvailable)} of ${formatBytes(guest.memoryTotal)}` : '-',
      guest ? `${formatBytes(guest.diskTotal - guest.diskFree)} of ${formatBytes(guest.diskTotal)}` : '-',
      pair(disk.readBytes, disk.writtenBytes),
      pair(network.receivedBytes, network.sentBytes),
      String(exits),
      guest ? `${guest.execs.running} of ${guest.execs.started}` : '-',
      stages ? `${stages.readyMs} ms` : '-',
    ]),
  )
}
