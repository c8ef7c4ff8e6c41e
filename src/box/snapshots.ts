/** Snapshots of boxes, from outside of their VMM processes: taking them, going back to them, making boxes of them. */
import { renameSync, rmSync } from 'node:fs'
import { createDisk } from '../qcow2/create.ts'
import type { JsonValue, SnapshotManifest } from '../snapshot/manifest.ts'
import { SnapshotStore } from '../snapshot/store.ts'
import { BoxError } from './errors.ts'
import type { BoxFolder } from './home.ts'
import { removePending, writePending } from './pending.ts'
import { type BoxConfig, type BoxRecord, readRecord, writeRecord } from './record.ts'
import type { Runtime } from './runtime.ts'
import { settingsOf } from './snapshot-settings.ts'
import { discard, reserve } from './store.ts'

/** A snapshot as people see it. */
export interface SnapshotSummary {
  readonly id: string
  readonly name: string | null
  readonly created: Date
  /** The snapshot that the box went on from. */
  readonly parent: string | null
  /** Memory and processes too, or the disk only. */
  readonly memory: boolean
}

export const summaryOf = ({ id, name, created, ancestors, memory }: SnapshotManifest): SnapshotSummary => ({
  ...{ id, name, created: new Date(created) },
  ...{ parent: ancestors[0] ?? null, memory: memory !== null },
})

export const snapshotStore = (runtime: Runtime): SnapshotStore => new SnapshotStore(runtime.home.path)

/** The snapshots of a box that are for people, oldest first. */
export function snapshotsOf(runtime: Runtime, id: string): SnapshotSummary[] {
  return snapshotStore(runtime)
    .list(id)
    .filter(({ kind }) => kind === 'snapshot')
    .map(summaryOf)
}

/** A snapshot of a box that does not run: its disk. The caller holds the box's operation lock. */
export async function snapshotDisk(
  runtime: Runtime,
  folder: BoxFolder,
  record: BoxRecord,
  name: string | null,
): Promise<SnapshotManifest> {
  const { id, baseDisk, imageId, config } = record
  const draft = await snapshotStore(runtime).begin({
    ...{ owner: id, box: { id, name: record.name }, name },
    ...{ kind: 'snapshot', parent: record.parent ?? null },
  })
  try {
    draft.freezeDisk(folder.disk)
    const manifest = await draft.commit({
      ...{ state: null, machine: null, cpu: null, base: baseDisk, image: config.image, imageId },
      settings: record as unknown as JsonValue,
    })
    writeRecord(folder, { ...record, parent: manifest.id })
    return manifest
  } finally {
    draft.abort()
  }
}

/**
 * Puts a stopped box back to a snapshot: its disk becomes a fresh overlay on the snapshot's, and its next start goes on
 * from the snapshot's memory. Whatever moment this is interrupted at, the box starts: from where it was, or from the snapshot's disk.
 */
export function putBack(store: SnapshotStore, folder: BoxFolder, manifest: SnapshotManifest): void {
  removePending(folder)
  const overlay = `${folder.disk}.back`
  rmSync(overlay, { force: true })
  overlayOn(store, overlay, manifest)
  renameSync(overlay, folder.disk)
  writeRecord(folder, { ...readRecord(folder), parent: manifest.id })
  if (manifest.memory) writePending(folder, { snapshot: { owner: manifest.owner, id: manifest.id }, why: 'start' })
}

/** A fresh overlay on the snapshot's disk; `durable` unless the box goes away when it ends. */
export function overlayOn(store: SnapshotStore, path: string, manifest: SnapshotManifest, durable = true): void {
  createDisk(path, {
    format: 'qcow2',
    size: manifest.disk.bytes,
    backing: { file: store.diskPath(manifest), format: 'qcow2' },
    durable,
  })
}

/** What may differ in a box that is made of a snapshot. */
export interface RestoreOptions {
  readonly name?: string
  readonly detach?: boolean
  readonly autoRemove?: boolean
}

/** Makes a box of a snapshot, without starting it. `store.use()` is held by the caller. */
export function boxFrom(
  runtime: Runtime,
  store: SnapshotStore,
  manifest: SnapshotManifest,
  options: RestoreOptions,
  change: (config: BoxConfig) => BoxConfig = config => config,
): BoxFolder {
  const settings = settingsOf(manifest)
  const { folder, name, done } = reserve(runtime.home, options.name)
  try {
    const { detach = settings.config.detach, autoRemove = settings.config.autoRemove } = options
    overlayOn(store, folder.disk, manifest, !autoRemove)
    // Two boxes cannot listen at one port of the host.
    const ports = settings.config.ports.map(port => ({ ...port, host: 0 }))
    writeRecord(folder, {
      ...settings,
      ...{ id: folder.id, name, created: new Date().toISOString(), parent: null },
      baseDisk: manifest.disk.base?.path ?? store.diskPath(manifest),
      config: change({ ...settings.config, detach, autoRemove, ports }),
    })
    if (manifest.memory) writePending(folder, { snapshot: { owner: manifest.owner, id: manifest.id }, why: 'start' })
  } catch (error) {
    discard(runtime.home, folder, name)
    throw error
  } finally {
    done()
  }
  return folder
}

/** By the manifest itself, an id, the name of an imported one, or `BOX@NAME`. */
export function resolveSnapshot(
  store: SnapshotStore,
  wanted: SnapshotManifest | string,
  boxId: (name: string) => string,
): SnapshotManifest {
  if (typeof wanted !== 'string') return wanted
  const at = wanted.indexOf('@')
  return at < 0 ? store.findAny(wanted) : store.find(boxId(wanted.slice(0, at)), wanted.slice(at + 1))
}

export function checkForkCount(count: number, names: readonly string[] | undefined): void {
  if (!Number.isInteger(count) || count < 1 || count > 1000) {
    throw new BoxError('INVALID', `a box cannot be forked into ${count}: give a whole number from 1 to 1000`)
  }
  if (names && names.length !== count) {
    throw new BoxError('INVALID', `${names.length} names do not fit ${count} forks: give one for each, or none`)
  }
}
