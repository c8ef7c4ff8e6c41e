/** `vitrine disk`: what qemu-img does, with our engine. */
import { chainOf } from '../qcow2/chain.ts'
import { type CheckOptions, checkDisk } from '../qcow2/check.ts'
import { commitDisk } from '../qcow2/commit.ts'
import { convertDisk } from '../qcow2/convert.ts'
import { type CreateOptions, createDisk } from '../qcow2/create.ts'
import { infoOf } from '../qcow2/info.ts'
import { mapDisk } from '../qcow2/map.ts'
import { type DiskFormat, openDisk, probeFormat, resolveBacking } from '../qcow2/open.ts'
import { Qcow2Image } from '../qcow2/qcow2-image.ts'
import { rebaseDisk } from '../qcow2/rebase.ts'
import { type Command, JSON_OPTION, type ParsedArgs, UsageError } from './command.ts'
import { formatBytes, ProgressLine, printJson, printTable } from './output.ts'

type Action = (args: ParsedArgs) => Promise<number> | number

const ACTIONS: Readonly<Record<string, Action>> = {
  create,
  info,
  check,
  map,
  convert,
  commit,
  rebase,
  resize,
  snapshots,
}

export const diskCommand: Command = {
  name: 'disk',
  summary: 'Create, inspect, check, convert and change disk images.',
  usage: `[OPTIONS] ${Object.keys(ACTIONS).join('|')} FILE [ARGUMENT]`,
  options: {
    format: {
      type: 'string',
      short: 'f',
      value: 'raw|qcow2',
      help: 'The format of FILE; without it, qcow2 when it is named so, else raw.',
    },
    output: { type: 'string', short: 'O', value: 'raw|qcow2', help: 'convert: the format of the new file (qcow2).' },
    backing: { type: 'string', short: 'b', value: 'FILE', help: "create, rebase: the backing file; '' for none." },
    'backing-format': { type: 'string', short: 'F', value: 'raw|qcow2', help: 'create, rebase: its format.' },
    'cluster-size': { type: 'string', value: 'SIZE', help: 'create, convert: 512 to 2M (64K).' },
    'refcount-bits': { type: 'string', value: 'BITS', help: 'create, convert: 1 to 64 (16).' },
    'qcow2-version': { type: 'string', value: '2|3', help: 'create, convert: the version of the format (3).' },
    compression: { type: 'string', value: 'zlib|zstd', help: 'create, convert: how clusters are packed (zlib).' },
    compress: { type: 'boolean', short: 'c', help: 'convert: pack every cluster.' },
    repair: { type: 'string', short: 'r', value: 'leaks|all', help: 'check: set right what is found.' },
    unsafe: { type: 'boolean', short: 'u', help: 'rebase: only change the name; the contents must be the same.' },
    keep: { type: 'boolean', short: 'd', help: 'commit: do not empty the overlay.' },
    shrink: { type: 'boolean', help: 'resize: allow a smaller size, which drops data.' },
    force: { type: 'boolean', help: 'create, convert: replace a file that is there.' },
    allow: {
      type: 'string',
      multiple: true,
      value: 'DIR',
      help: "Let backing files be in DIR, besides FILE's own folder.",
    },
    json: JSON_OPTION,
  },
  examples: [
    'vitrine disk create work.qcow2 10G -b base.qcow2 -F qcow2',
    'vitrine disk convert -c work.qcow2 packed.qcow2',
    'vitrine disk check --repair leaks work.qcow2',
  ],
  async run(args) {
    const name = args.required(0, 'what to do')
    const action = Object.hasOwn(ACTIONS, name) ? ACTIONS[name] : undefined
    if (!action) throw new UsageError(`'disk ${name}' does not exist: one of ${Object.keys(ACTIONS).join(', ')}`)
    return action(args)
  },
}

const pathOf = (args: ParsedArgs): string => args.required(1, 'the file')

/** `512`, `64K`, `10G`, in bytes. */
export function parseSize(text: string): number {
  const match = /^(\d+)\s*([kmgt]?)(?:i?b)?$/i.exec(text)
  if (!match) throw new UsageError(`'${text}' is not a size such as 512M or 10G`)
  return Number(match[1]) * 1024 ** ' kmgt'.indexOf(match[2]!.toLowerCase() || ' ')
}

function parseFormat(text: string): DiskFormat {
  if (text === 'raw' || text === 'qcow2') return text
  throw new UsageError(`'${text}' is not a format: raw or qcow2`)
}

/** By the name, never by the contents alone: a guest could make its raw disk a QCOW2 image that names any file of the host. */
function formatOf(args: ParsedArgs, path: string): DiskFormat {
  const given = args.text('format')
  if (given !== undefined) return parseFormat(given)
  if (path.toLowerCase().endsWith('.qcow2')) return 'qcow2'
  if (probeFormat(path) === 'raw') return 'raw'
  throw new UsageError(
    `${path} is not named .qcow2 but begins like a QCOW2 image, which a guest can write to its raw disk: say -f raw or -f qcow2`,
  )
}

/** Backing files may be beside the image and where `--allow` says. */
function folders(args: ParsedArgs, path: string): { backingFolders: string[] } {
  return { backingFolders: [resolveBacking(path, '.'), ...args.all('allow')] }
}

function creation(args: ParsedArgs): Omit<CreateOptions, 'size'> {
  const clusterSize = args.text('cluster-size')
  const refcountBits = args.number('refcount-bits')
  const version = args.number('qcow2-version')
  const compression = args.text('compression')
  if (version !== undefined && version !== 2 && version !== 3) throw new UsageError('--qcow2-version is 2 or 3')
  if (compression !== undefined && compression !== 'zlib' && compression !== 'zstd') {
    throw new UsageError('--compression is zlib or zstd')
  }
  return {
    ...(clusterSize === undefined ? {} : { clusterSize: parseSize(clusterSize) }),
    ...(refcountBits === undefined ? {} : { refcountBits }),
    ...(version === undefined ? {} : { version }),
    ...(compression === undefined ? {} : { compression }),
  }
}

/** The backing file that the options name; undefined for none. */
function backingOf(args: ParsedArgs): CreateOptions['backing'] | undefined {
  const file = args.text('backing')
  if (file === undefined || file === '') return undefined
  const format = args.text('backing-format')
  if (format === undefined) throw new UsageError('say the format of the backing file with -F raw or -F qcow2')
  return { file, format: parseFormat(format) }
}

function progress(args: ParsedArgs, text: string): { onProgress: (done: number, total: number) => void; end(): void } {
  const line = new ProgressLine()
  return {
    onProgress: (done, total) => {
      if (!args.flag('json')) line.update(text, done, total)
    },
    end: () => line.clear(),
  }
}

function create(args: ParsedArgs): number {
  const path = pathOf(args)
  const backing = backingOf(args)
  const sizeText = args.positionals[2]
  args.atMost(3)
  let size: number
  if (sizeText !== undefined) size = parseSize(sizeText)
  else if (backing) {
    const below = openDisk(resolveBacking(path, backing.file), {
      format: backing.format,
      readOnly: true,
      ...folders(args, path),
    })
    size = below.sizeBytes
    below.close()
  } else throw new UsageError('the size is missing')
  const format = args.text('format')
  createDisk(path, {
    format: format === undefined ? 'qcow2' : parseFormat(format),
    size,
    overwrite: args.flag('force'),
    ...creation(args),
    ...(backing ? { backing } : {}),
  })
  return 0
}

function info(args: ParsedArgs): number {
  const path = pathOf(args)
  args.atMost(2)
  const format = formatOf(args, path)
  const image = openDisk(path, { format, readOnly: true, lock: false, withoutBacking: true })
  const facts = infoOf(image)
  image.close()
  if (args.flag('json')) {
    printJson(facts)
    return 0
  }
  const rows: [string, string][] = [
    ['file', facts.path],
    ['format', facts.qcow2 ? `qcow2 version ${facts.qcow2.version}` : facts.format],
    ['size', `${formatBytes(facts.virtualSize)} (${facts.virtualSize} bytes)`],
    ['on the host', formatBytes(facts.actualSize)],
  ]
  const { qcow2 } = facts
  if (qcow2) {
    rows.push(['clusters', formatBytes(qcow2.clusterSize)], ['refcounts', `${qcow2.refcountBits} bits`])
    rows.push(['compression', qcow2.compression])
    if (qcow2.backingFile !== undefined)
      rows.push(['backing file', `${qcow2.backingFile} (${qcow2.backingFormat ?? 'format not said'})`])
    if (qcow2.snapshots.length > 0) rows.push(['snapshots', String(qcow2.snapshots.length)])
    if (qcow2.dirty) rows.push(['state', 'dirty: not closed; check --repair all sets it right'])
    if (qcow2.corrupt) rows.push(['state', 'marked corrupt; check --repair all sets it right'])
  }
  for (const [name, value] of rows) process.stdout.write(`${`${name}:`.padEnd(14)}${value}\n`)
  return 0
}

/** Exit status as qemu-img check: 0 clean, 2 corrupt, 3 only leaks. */
function check(args: ParsedArgs): number {
  const path = pathOf(args)
  args.atMost(2)
  const repair = args.text('repair')
  if (repair !== undefined && repair !== 'leaks' && repair !== 'all') throw new UsageError('--repair is leaks or all')
  const line = progress(args, 'checking')
  const options: CheckOptions = { ...(repair === undefined ? {} : { repair }), onProgress: line.onProgress }
  const report = checkDisk(path, options)
  line.end()
  if (args.flag('json')) printJson(report)
  else {
    for (const message of report.messages) process.stdout.write(`${message}\n`)
    if (report.corruptionsFixed + report.leaksFixed > 0) {
      process.stdout.write(`repaired: ${report.corruptionsFixed} errors, ${report.leaksFixed} leaks\n`)
    }
    const share = report.totalClusters === 0 ? 0 : (report.allocatedClusters / report.totalClusters) * 100
    process.stdout.write(`${report.corruptions} errors, ${report.leaks} leaks\n`)
    process.stdout.write(
      `${report.allocatedClusters} of ${report.totalClusters} clusters in use (${share.toFixed(1)} %), ` +
        `${report.fragmentedClusters} fragmented, ${report.compressedClusters} compressed\n`,
    )
  }
  return report.corruptions > 0 ? 2 : report.leaks > 0 ? 3 : 0
}

function map(args: ParsedArgs): number {
  const path = pathOf(args)
  args.atMost(2)
  const image = openDisk(path, { format: formatOf(args, path), readOnly: true, ...folders(args, path) })
  try {
    const entries = [...mapDisk(image)]
    if (args.flag('json')) printJson(entries)
    else {
      const files = chainOf(image).map(layer => layer.path)
      printTable(
        ['OFFSET', 'LENGTH', 'KIND', 'AT', 'FILE'],
        entries.map(entry => [
          String(entry.start),
          String(entry.length),
          entry.compressed ? 'compressed' : entry.zero ? 'zeros' : 'data',
          entry.offset === undefined ? '-' : String(entry.offset),
          entry.present ? files[entry.depth]! : '-',
        ]),
      )
    }
  } finally {
    image.close()
  }
  return 0
}

async function convert(args: ParsedArgs): Promise<number> {
  const path = pathOf(args)
  const target = args.required(2, 'the new file')
  args.atMost(3)
  const source = openDisk(path, { format: formatOf(args, path), readOnly: true, ...folders(args, path) })
  const line = progress(args, 'converting')
  try {
    await convertDisk(source, target, {
      format: parseFormat(args.text('output') ?? 'qcow2'),
      compress: args.flag('compress'),
      overwrite: args.flag('force'),
      ...creation(args),
      onProgress: line.onProgress,
    })
  } finally {
    line.end()
    source.close()
  }
  if (args.flag('json')) printJson({ path: target })
  return 0
}

function commit(args: ParsedArgs): number {
  const path = pathOf(args)
  args.atMost(2)
  const line = progress(args, 'committing')
  commitDisk(path, { keepOverlay: args.flag('keep'), ...folders(args, path), onProgress: line.onProgress })
  line.end()
  return 0
}

function rebase(args: ParsedArgs): number {
  const path = pathOf(args)
  args.atMost(2)
  if (args.text('backing') === undefined)
    throw new UsageError("say the new backing file with -b FILE, or -b '' for none")
  const line = progress(args, 'rebasing')
  rebaseDisk(path, {
    backing: backingOf(args),
    unsafe: args.flag('unsafe'),
    ...folders(args, path),
    onProgress: line.onProgress,
  })
  line.end()
  return 0
}

function resize(args: ParsedArgs): number {
  const path = pathOf(args)
  const size = parseSize(args.required(2, 'the new size'))
  args.atMost(3)
  const image = openDisk(path, { format: formatOf(args, path), ...folders(args, path) })
  try {
    if (image instanceof Qcow2Image) image.resize(size, args.flag('shrink'))
    else {
      if (size < image.sizeBytes && !args.flag('shrink'))
        throw new UsageError('a smaller size drops data: allow it with --shrink')
      image.resize(size)
    }
    image.flush()
  } finally {
    image.close()
  }
  return 0
}

function snapshots(args: ParsedArgs): number {
  const path = pathOf(args)
  args.atMost(2)
  const image = openDisk(path, { format: 'qcow2', readOnly: true, lock: false, withoutBacking: true })
  const list = image.snapshots
  image.close()
  if (args.flag('json')) printJson(list)
  else {
    printTable(
      ['ID', 'NAME', 'DATE', 'DISK', 'STATE'],
      list.map(({ id, name, date, diskSize, vmStateSize }) => [
        id,
        name,
        new Date(date * 1000).toISOString(),
        formatBytes(diskSize),
        formatBytes(vmStateSize),
      ]),
    )
  }
  return 0
}
