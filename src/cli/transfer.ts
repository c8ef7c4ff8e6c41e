/** `vitrine export` and `vitrine import`: snapshots as one stream, through a file or a pipe. */
import { createReadStream, createWriteStream, renameSync, rmSync } from 'node:fs'
import type { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { rethrowWrite } from '../snapshot/errors.ts'
import { exportSnapshot } from '../snapshot/export.ts'
import { importSnapshot } from '../snapshot/import.ts'
import { describeSnapshot } from '../snapshot/tree.ts'
import { type Command, JSON_OPTION, type ParsedArgs, UsageError } from './command.ts'
import { formatBytes, ProgressLine, printJson } from './output.ts'
import { findSnapshot, openSnapshots, REF_HELP } from './snapshot-refs.ts'

export const exportCommand: Command = {
  name: 'export',
  summary: `Write a snapshot to a file or a pipe, for another machine. ${REF_HELP}`,
  usage: '[OPTIONS] SNAPSHOT',
  options: {
    output: { type: 'string', short: 'o', value: 'FILE', help: 'Where to; standard output unless told.' },
    'with-image': { type: 'boolean', help: 'Include the image, for a machine that cannot fetch it.' },
  },
  examples: [
    'vitrine export work@ready -o ready.vitrine',
    'vitrine export work@ready | ssh other vitrine import',
    'vitrine export --with-image work@ready -o everything.vitrine',
  ],
  run: runExport,
}

export const importCommand: Command = {
  name: 'import',
  summary: "Read a snapshot that 'export' wrote; 'vitrine restore NAME' makes a box of it.",
  usage: '[OPTIONS] [FILE]',
  options: {
    name: { type: 'string', value: 'NAME', help: 'What it is called here; as it was unless told.' },
    json: JSON_OPTION,
  },
  examples: [
    'vitrine import ready.vitrine',
    'ssh other vitrine export work@ready | vitrine import --name ready-there',
    'vitrine restore ready-there --name work2',
  ],
  run: runImport,
}

async function runExport(args: ParsedArgs): Promise<number> {
  const context = openSnapshots()
  const manifest = findSnapshot(context, args.required(0, 'the snapshot'))
  args.atMost(1)
  const output = args.text('output')
  const toFile = output !== undefined && output !== '-'
  if (!toFile && process.stdout.isTTY) {
    throw new UsageError('a snapshot is no text for a terminal: give a file with -o FILE, or pipe it')
  }
  const line = new ProgressLine()
  const stream = exportSnapshot(context.store, manifest, {
    withImage: args.flag('with-image'),
    onProgress: (done, total) => line.update(`exporting ${manifest.name ?? manifest.id}`, done, total),
  })
  const temporary = `${output}.${process.pid}.part`
  try {
    if (toFile) {
      await pipeline(stream, createWriteStream(temporary, { flags: 'wx', mode: 0o600, flush: true } as object))
      renameSync(temporary, output)
    } else await pipeline(stream, process.stdout, { end: false })
  } catch (error) {
    if (toFile) rmSync(temporary, { force: true })
    rethrowWrite(error, output ?? 'standard output')
  } finally {
    line.clear()
  }
  return 0
}

async function runImport(args: ParsedArgs): Promise<number> {
  args.atMost(1)
  const file = args.positionals[0]
  const fromFile = file !== undefined && file !== '-'
  if (!fromFile && process.stdin.isTTY) throw new UsageError('what to import is missing: give a file, or pipe it')
  const { store } = openSnapshots()
  const source: Readable = fromFile ? createReadStream(file, { highWaterMark: 1 << 20 }) : process.stdin
  const name = args.text('name')
  const line = new ProgressLine()
  try {
    const manifest = await importSnapshot(store, source, {
      where: fromFile ? file : 'standard input',
      ...(name === undefined ? {} : { name }),
      onProgress: done => line.update(`importing  ${formatBytes(done)}`),
    })
    line.clear()
    if (args.flag('json')) printJson(describeSnapshot(manifest, [manifest]))
    else process.stdout.write(`${manifest.name}\n`)
  } finally {
    line.clear()
  }
  return 0
}
