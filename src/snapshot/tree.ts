/** Snapshots as people see them: a tree for each box, and what each node takes on the disk. */
import { statSync } from 'node:fs'
import type { SnapshotFolder } from './folder.ts'
import type { SnapshotKind, SnapshotManifest } from './manifest.ts'

/** A snapshot for people and scripts. */
export interface SnapshotInfo {
  readonly id: string
  readonly name: string | null
  readonly kind: SnapshotKind
  readonly box: { readonly id: string; readonly name: string }
  readonly created: string
  /** The nearest snapshot before it that still exists. */
  readonly parent: string | null
  /** Whether it holds a running machine, or the disk only. */
  readonly memory: boolean
  readonly accelerator: string | null
  readonly memoryMib: number | null
}

/** What a snapshot takes on the disk. */
export interface SnapshotUse {
  /** Bytes on the disk that only this snapshot needs, and that it shares with other snapshots and boxes. */
  readonly own: number
  readonly shared: number
}

/** A snapshot and those that came after it. */
export interface SnapshotNode {
  readonly info: SnapshotInfo
  readonly use: SnapshotUse
  readonly children: readonly SnapshotNode[]
}

/** `siblings` are all snapshots of the same owner: they tell which of the ancestors still exist. */
export function describeSnapshot(manifest: SnapshotManifest, siblings: readonly SnapshotManifest[]): SnapshotInfo {
  const there = new Set(siblings.map(({ id }) => id))
  return {
    id: manifest.id,
    name: manifest.name,
    kind: manifest.kind,
    box: manifest.box,
    created: manifest.created,
    parent: manifest.ancestors.find(id => there.has(id)) ?? null,
    memory: manifest.memory !== null,
    accelerator: manifest.machine?.accelerator ?? null,
    memoryMib: manifest.machine?.memoryMib ?? null,
  }
}

/** The files that a snapshot needs, or is faster with. */
export const layerFiles = ({ memory, disk, code }: SnapshotManifest): string[] =>
  [...(memory?.layers ?? []), ...disk.layers, ...(code ? [code] : [])].map(({ file }) => file)

/** What each snapshot takes. `held` are layers that boxes stand on. */
export function diskUse(
  folder: SnapshotFolder,
  all: readonly SnapshotManifest[],
  held: ReadonlySet<string>,
): Map<string, SnapshotUse> {
  const users = new Map<string, number>()
  for (const file of held) users.set(file, 1)
  for (const manifest of all) for (const file of layerFiles(manifest)) users.set(file, (users.get(file) ?? 0) + 1)
  const bytes = new Map<string, number>()
  for (const file of users.keys())
    bytes.set(file, (statSync(folder.layer(file), { throwIfNoEntry: false })?.blocks ?? 0) * 512)
  return new Map(
    all.map(manifest => {
      let own = (statSync(folder.manifest(manifest.owner, manifest.id), { throwIfNoEntry: false })?.blocks ?? 0) * 512
      let shared = 0
      for (const file of layerFiles(manifest)) {
        if (users.get(file) === 1) own += bytes.get(file)!
        else shared += bytes.get(file)!
      }
      return [manifest.id, { own, shared }]
    }),
  )
}

/** The trees of one owner, oldest first. */
export function treeOf(manifests: readonly SnapshotManifest[], use: ReadonlyMap<string, SnapshotUse>): SnapshotNode[] {
  const infos = manifests.map(manifest => describeSnapshot(manifest, manifests))
  const below = (parent: string | null): SnapshotNode[] =>
    infos
      .filter(info => info.parent === parent)
      .map(info => ({ info, use: use.get(info.id) ?? { own: 0, shared: 0 }, children: below(info.id) }))
  return below(null)
}
