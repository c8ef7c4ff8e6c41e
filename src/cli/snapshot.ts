/** `vitrine snapshot`: the tree of saved states of each box. */
import { find, list as listBoxes } from '../box/store.ts'
import { diffSnapshots, type FileChange } from '../snapshot/diff.ts'
import type { SnapshotManifest } from '../snapshot/manifest.ts'
import { describeSnapshot, type SnapshotNode, treeOf } from '../snapshot/tree.ts'
import { type Command, JSON_OPTION, type ParsedArgs, UsageError } from './command.ts'
import { formatAge, formatBytes, ProgressLine, printJson, printTable } from './output.ts'
import { findSnapshot, openSnapshots, REF_HELP, type SnapshotContext } from './snapshot-refs.ts'

type Action = (args: ParsedArgs) => Promise<number> | number

/** Needs boxes and all that they need, which the others do not. */
const create: Action = async args => (await import('./snapshot-live.ts')).createSnapshot(args)

const ACTIONS: Readonly<Record<string, Action>> = { create, ls, tree, rm, diff, verify }

export const snapshotCommand: Command = {
  name: 'snapshot',
  summary: `Save boxes as they are; list, compare, check and remove saved states of boxes. ${REF_HELP}`,
  usage: `[OPTIONS] ${Object.keys(ACTIONS).join('|')} [ARGUMENT...]

  create BOX [NAME]     save a box: memory, processes and disk; it runs on
  ls [BOX]              the snapshots of a box, or all
  tree [BOX]            the same as a tree
  diff A [B]            files that differ between two snapshots; A alone: from the snapshot before it
  verify [SNAPSHOT...]  read everything and compare it with its checksums
  rm SNAPSHOT...        remove snapshots; others keep what they need`,
  options: {
    'disk-only': { type: 'boolean', help: 'create: save the disk, not the memory.' },
    all: { type: 'boolean', short: 'a', help: 'ls, tree: those that Vitrine made for itself, too.' },
    json: JSON_OPTION,
  },
  examples: [
    'vitrine snapshot create work before',
    'vitrine snapshot tree work',
    'vitrine snapshot diff work@before work@after',
    'vitrine snapshot rm work@before',
  ],
  async run(args) {
    const name = args.required(0, 'what to do')
    const action = Object.hasOwn(ACTIONS, name) ? ACTIONS[name] : undefined
    if (!action) throw new UsageError(`'snapshot ${name}' does not exist: one of ${Object.keys(ACTIONS).join(', ')}`)
    return action(args)
  },
}

/** The snapshots that the arguments ask for, by owner; boxes in the order of their creation, imported ones last. */
function chosen(context: SnapshotContext, args: ParsedArgs): { title: string; manifests: SnapshotManifest[] }[] {
  args.atMost(2)
  const { home, store } = context
  const box = args.positionals[1]
  const isShown = ({ kind }: SnapshotManifest): boolean => args.flag('all') || kind === 'snapshot'
  if (box !== undefined) {
    const { id } = find(home, box)
    return [{ title: box, manifests: store.list(id).filter(isShown) }]
  }
  const all = store.list().filter(isShown)
  const names = new Map(listBoxes(home).map(({ id, name }) => [id, name]))
  const owners = [...new Set([...names.keys(), ...all.map(({ owner }) => owner)])]
  return owners
    .map(owner => ({
      title: names.get(owner) ?? owner,
      manifests: all.filter(manifest => manifest.owner === owner),
    }))
    .filter(({ manifests }) => manifests.length > 0)
}

function warnOfDamage({ store }: SnapshotContext): void {
  for (const { id, error } of store.damaged())
    process.stderr.write(`vitrine: ${error.message} ('vitrine snapshot rm ${id}' removes it)\n`)
}

function ls(args: ParsedArgs): number {
  const context = openSnapshots()
  const groups = chosen(context, args)
  const use = context.store.diskUse()
  warnOfDamage(context)
  const rows = groups.flatMap(({ title, manifests }) =>
    manifests.map(manifest => ({
      ...describeSnapshot(manifest, manifests),
      of: title,
      ownBytes: use.get(manifest.id)?.own ?? 0,
      sharedBytes: use.get(manifest.id)?.shared ?? 0,
    })),
  )
  if (args.flag('json')) printJson(rows)
  else if (rows.length === 0) process.stdout.write("No snapshots yet. 'vitrine snapshot create BOX NAME' takes one.\n")
  else {
    printTable(
      ['BOX', 'NAME', 'ID', 'TAKEN', 'MEMORY', 'OWN', 'SHARED'],
      rows.map(row => [
        row.of,
        row.name ?? `(${row.kind})`,
        row.id,
        formatAge(new Date(row.created)),
        row.memoryMib === null ? 'disk only' : formatBytes(row.memoryMib * 2 ** 20),
        formatBytes(row.ownBytes),
        formatBytes(row.sharedBytes),
      ]),
    )
  }
  return 0
}

function tree(args: ParsedArgs): number {
  const context = openSnapshots()
  const groups = chosen(context, args)
  const use = context.store.diskUse()
  warnOfDamage(context)
  const trees = groups.map(({ title, manifests }) => ({ box: title, snapshots: treeOf(manifests, use) }))
  if (args.flag('json')) printJson(trees)
  else {
    for (const { box, snapshots } of trees) {
      process.stdout.write(`${box}\n`)
      snapshots.forEach((node, i) => {
        printNode(node, '', i === snapshots.length - 1)
      })
    }
  }
  return 0
}

function printNode({ info, use, children }: SnapshotNode, indent: string, isLast: boolean): void {
  const what = info.memory ? '' : ', disk only'
  const size = `${formatBytes(use.own)}${use.shared > 0 ? ` and ${formatBytes(use.shared)} shared` : ''}`
  const line = `${info.name ?? `(${info.kind})`}  ${info.id}  ${formatAge(new Date(info.created))}, ${size}${what}`
  process.stdout.write(`${indent}${isLast ? '└─' : '├─'} ${line}\n`)
  children.forEach((child, i) => {
    printNode(child, `${indent}${isLast ? '   ' : '│  '}`, i === children.length - 1)
  })
}

async function rm(args: ParsedArgs): Promise<number> {
  args.required(1, 'the snapshot')
  const context = openSnapshots()
  const { store } = context
  let freed = 0
  let later = false
  for (const ref of args.positionals.slice(1)) {
    const damaged = store.damaged().find(({ id }) => id === ref)
    const { owner, id } = damaged ?? findSnapshot(context, ref)
    const result = await store.removeById(owner, id)
    freed += result.freedBytes
    later ||= result.busy
    if (!args.flag('json')) process.stdout.write(`${ref}\n`)
  }
  if (args.flag('json')) printJson({ removed: args.positionals.slice(1), freedBytes: freed, later })
  else if (later) process.stderr.write('Space is freed later: another process is using snapshots.\n')
  return 0
}

async function verify(args: ParsedArgs): Promise<number> {
  const context = openSnapshots()
  const { store } = context
  const refs = args.positionals.slice(1)
  const manifests = refs.length > 0 ? refs.map(ref => findSnapshot(context, ref)) : store.list()
  const line = new ProgressLine()
  const results: { id: string; name: string | null; error: string | null }[] = []
  using _guard = await store.use()
  for (const manifest of manifests) {
    const { id, name } = manifest
    let error: string | null = null
    try {
      await store.verify(manifest, (done, total) => line.update(`${name ?? id}: verifying`, done, total))
    } catch (problem) {
      error = (problem as Error).message
    }
    line.clear()
    results.push({ id, name, error })
    if (!args.flag('json')) process.stdout.write(`${id}  ${name ?? `(${manifest.kind})`}  ${error ?? 'whole'}\n`)
  }
  if (refs.length === 0) {
    for (const { id, error } of store.damaged()) {
      results.push({ id, name: null, error: error.message })
      if (!args.flag('json')) process.stdout.write(`${id}  ${error.message}\n`)
    }
  }
  if (args.flag('json')) printJson(results)
  return results.some(({ error }) => error !== null) ? 1 : 0
}

async function diff(args: ParsedArgs): Promise<number> {
  const context = openSnapshots()
  const { store } = context
  args.atMost(3)
  const first = findSnapshot(context, args.required(1, 'the snapshot'))
  const second = args.positionals[2] === undefined ? undefined : findSnapshot(context, args.positionals[2])
  using _guard = await store.use()
  const before = second ? first : parentOf(context, first)
  const after = second ?? first
  const changes = await diffSnapshots(store, before, after)
  if (args.flag('json')) printJson(changes)
  else for (const change of changes) process.stdout.write(`${describeChange(change)}\n`)
  return 0
}

/** The snapshot before; `null` stands for the image. */
function parentOf({ store }: SnapshotContext, manifest: SnapshotManifest): SnapshotManifest | null {
  const { parent } = describeSnapshot(manifest, store.list(manifest.owner))
  return parent === null ? null : store.find(manifest.owner, parent)
}

const LETTERS = { added: 'A', removed: 'D', changed: 'C' } as const

/** As `docker diff` prints it, with what changed behind it. */
function describeChange({ kind, path, what }: FileChange): string {
  return `${LETTERS[kind]} ${printable(path)}${what ? `  (${what.join(', ')})` : ''}`
}

/** A guest chooses the names of its files: control characters are not for our terminal. */
function printable(path: string): string {
  return /[\p{Cc}\p{Cf}]/u.test(path) ? JSON.stringify(path) : path
}
