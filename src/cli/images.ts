/** `vitrine pull`, `images`, `rmi` and `prune`: the images of a home. */
import { Home } from '../box/home.ts'
import { list as listBoxes } from '../box/store.ts'
import { cacheBytes, type PruneResult } from '../image/collect.ts'
import { ProgressSummary } from '../image/progress.ts'
import { ImageStore } from '../image/store.ts'
import { SnapshotStore } from '../snapshot/store.ts'
import { type Command, JSON_OPTION, type ParsedArgs, UsageError } from './command.ts'
import { formatAge, formatBytes, ProgressLine, printJson, printTable } from './output.ts'

export const pullCommand: Command = {
  name: 'pull',
  summary: 'Fetch images and make disks of them, so that boxes start at once.',
  usage: '[OPTIONS] IMAGE...',
  options: {
    json: JSON_OPTION,
    'disk-size': { type: 'string', value: 'SIZE', help: 'The size of the disk that it is for (10G).' },
  },
  examples: [
    'vitrine pull python:3.12-slim',
    'vitrine pull localhost:5000/app@sha256:...   # by digest; registries on this machine need no TLS',
    'vitrine pull ./rootfs.tar.gz                 # also: docker save archives, OCI layouts, directories',
    'vitrine pull base                            # the built-in image',
  ],
  run: pull,
}

export const imagesCommand: Command = {
  name: 'images',
  summary: 'List the images on this machine, most recently used first.',
  usage: '[OPTIONS]',
  options: { json: JSON_OPTION },
  examples: ['vitrine images', "vitrine images --json | jq -r '.[].name'"],
  run: images,
}

export const rmiCommand: Command = {
  name: 'rmi',
  summary: 'Remove images. Boxes made from them go on.',
  usage: '[OPTIONS] IMAGE...',
  options: { json: JSON_OPTION },
  examples: ['vitrine rmi python:3.12-slim', 'vitrine rmi 3f5a2c   # by the beginning of its id'],
  run: rmi,
}

export const pruneCommand: Command = {
  name: 'prune',
  summary:
    'Free space: remove downloads, layers and disks that nothing needs, and snapshots that only make starts fast.',
  usage: '[OPTIONS]',
  options: {
    json: JSON_OPTION,
    'older-than': {
      type: 'string',
      value: 'TIME',
      help: 'Remove images that were not used for so long, too (24h, 10m).',
    },
    max: {
      type: 'string',
      value: 'SIZE',
      help: 'Then remove what was not used for longest until so much is left (20G).',
    },
  },
  examples: ['vitrine prune', 'vitrine prune --older-than 168h', 'vitrine prune --max 20G'],
  run: prune,
}

const openStore = (): { home: Home; store: ImageStore } => {
  const home = new Home()
  return { home, store: new ImageStore({ home: home.path }) }
}

/** The disks that boxes and snapshots stand on. */
const disksInUse = (home: Home): Set<string> =>
  new Set([...listBoxes(home).map(({ baseDisk }) => baseDisk), ...new SnapshotStore(home.path).baseDisks()])

async function pull(args: ParsedArgs): Promise<number> {
  args.required(0, 'the image')
  const { store } = openStore()
  const diskMib = args.mebibytes('disk-size')
  const pulled = []
  for (const name of args.positionals) {
    const [summary, line] = [new ProgressSummary(name), new ProgressLine()]
    try {
      const size = diskMib === undefined ? {} : { diskBytes: diskMib * 2 ** 20 }
      pulled.push(
        await store.get(name, { pull: 'always', onProgress: event => line.show(summary.add(event)), ...size }),
      )
    } finally {
      line.clear()
    }
    const image = pulled.at(-1)!
    if (!args.flag('json')) process.stdout.write(`${image.name}  ${image.digest}\n`)
  }
  if (args.flag('json')) printJson(pulled)
  return 0
}

async function images(args: ParsedArgs): Promise<number> {
  args.atMost(0)
  const found = openStore().store.list()
  if (args.flag('json')) printJson(found)
  else if (found.length === 0) {
    process.stdout.write("No images yet. 'vitrine pull NAME' fetches one; 'base' is built in.\n")
  } else {
    printTable(
      ['IMAGE', 'ID', 'FETCHED', 'USED', 'LAYERS', 'DISK'],
      found.map(image => [
        image.name,
        image.id.slice(7, 19),
        formatAge(new Date(image.pulled)),
        formatAge(new Date(image.lastUsed)),
        formatBytes(image.layerBytes),
        formatBytes(image.diskBytes),
      ]),
    )
  }
  return 0
}

async function rmi(args: ParsedArgs): Promise<number> {
  args.required(0, 'the image')
  const { home, store } = openStore()
  const results: PruneResult[] = []
  for (const name of args.positionals) results.push(await store.remove(name, () => disksInUse(home)))
  report(results, args)
  return 0
}

async function prune(args: ParsedArgs): Promise<number> {
  args.atMost(0)
  const { home, store } = openStore()
  const olderThanMs = args.duration('older-than')
  const maxMib = args.mebibytes('max')
  const snapshots = new SnapshotStore(home.path)
  if (olderThanMs === 0) throw new UsageError('--older-than takes a time above zero')
  // The next box of their kind boots, and leaves another.
  for (const { owner, id, created } of snapshots.list('template')) {
    if (Date.now() - Date.parse(created) >= (olderThanMs ?? 0)) snapshots.drop(owner, id)
  }
  const swept = await snapshots.sweep(1000)
  const result = await store.prune({
    keep: () => disksInUse(home),
    ...(olderThanMs !== undefined && { olderThanMs }),
    ...(maxMib !== undefined && { maxBytes: maxMib * 2 ** 20 }),
  })
  report([{ ...swept, removedImages: [] }, result], args)
  if (!args.flag('json')) process.stdout.write(`Images take ${formatBytes(cacheBytes(store.cache))}.\n`)
  return 0
}

function report(results: readonly PruneResult[], args: ParsedArgs): void {
  const removedImages = results.flatMap(result => result.removedImages)
  const freedBytes = results.reduce((sum, result) => sum + result.freedBytes, 0)
  const removedFiles = results.reduce((sum, result) => sum + result.removedFiles, 0)
  if (args.flag('json')) {
    printJson({ removedImages, removedFiles, freedBytes })
    return
  }
  for (const name of removedImages) process.stdout.write(`Removed ${name}\n`)
  process.stdout.write(`Freed ${formatBytes(freedBytes)}.\n`)
}
