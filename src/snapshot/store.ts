/** The snapshots of a home: made, found, listed, checked and removed, by any number of processes at the same time. */

import { createHash } from 'node:crypto'
import { closeSync, existsSync, openSync, readFileSync, readSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { removeFile } from '../host/remove.ts'
import { type DraftOptions, newId, SnapshotDraft } from './draft.ts'
import { SnapshotError } from './errors.ts'
import { busy, namesIn, SnapshotFolder, syncNow } from './folder.ts'
import type { LayerRef } from './layer.ts'
import { decodeFixed, decodeManifest, decodeState, FIXED_BYTES, isId, NAME, type SnapshotManifest } from './manifest.ts'
import { MemoryImage, type MemoryLayer, openLayer } from './memory-image.ts'
import { stampOfFd } from './stamp.ts'
import { HOLD_FILE, layersOfBoxes, type SweepResult, sweep } from './sweep.ts'
import { diskUse, type SnapshotUse } from './tree.ts'
import { checkLayers, verifySnapshot } from './verify.ts'

/** How long whoever wants to work waits for a cleaning up to end. */
const GUARD_WAIT_MS = 60_000

/** The snapshots of a home. Several processes may use one. */
export class SnapshotStore {
  readonly folder: SnapshotFolder

  constructor(home: string) {
    this.folder = new SnapshotFolder(home)
  }

  /** Where layers are: a folder that box disks may have their backing files in. */
  get layersFolder(): string {
    return this.folder.layers
  }

  /** Begins a snapshot. Nothing is removed from the store until it is committed or given up. */
  async begin(options: DraftOptions): Promise<SnapshotDraft> {
    checkSnapshotName(options.name)
    const id = options.key === undefined ? newId() : templateId(options.key)
    const guard = await this.#shared()
    try {
      this.checkName(options.owner, options.name, id)
      return new SnapshotDraft(this, options, id, guard)
    } catch (error) {
      guard.release()
      throw error
    }
  }

  /** Keeps everything in the store while it is held: from finding a snapshot until a box refers to its layers. */
  async use(): Promise<Disposable> {
    return this.#shared()
  }

  async #shared() {
    const guard = await this.folder.guard('shared', GUARD_WAIT_MS)
    if (!guard) throw busy()
    return guard
  }

  /** A snapshot of a box (or of `import`, `template`) by name, id or the beginning of an id. */
  find(owner: string, nameOrId: string): SnapshotManifest {
    // No name is a whole id: others need not be looked at.
    const path = isId(nameOrId) ? this.folder.manifest(owner, nameOrId) : undefined
    if (path !== undefined && existsSync(path)) return this.#read(path)
    const all = this.list(owner)
    const named = all.find(({ name }) => name === nameOrId)
    if (named) return named
    return this.#byId(nameOrId, all, owner)
  }

  /** An imported snapshot by name, or any by id or the beginning of an id. */
  findAny(nameOrId: string): SnapshotManifest {
    const named = this.list('import').find(({ name }) => name === nameOrId)
    return named ?? this.#byId(nameOrId, this.list(), undefined)
  }

  #byId(wanted: string, all: readonly SnapshotManifest[], owner: string | undefined): SnapshotManifest {
    const matches = /^[0-9a-f]{4,12}$/.test(wanted) ? all.filter(({ id }) => id.startsWith(wanted)) : []
    if (matches.length === 1) return matches[0]!
    if (matches.length > 1) {
      const list = matches.map(({ id }) => id).join(', ')
      throw new SnapshotError('NOT_FOUND', `'${wanted}' could be any of ${list}: give more of the id`)
    }
    // One that is there and cannot be read says why.
    const damaged = this.folder
      .entries()
      .find(each => each.id === wanted && (owner === undefined || owner === each.owner))
    if (damaged) return this.#read(damaged.path)
    throw new SnapshotError(
      'NOT_FOUND',
      `there is no snapshot '${wanted}': 'vitrine snapshot ls' lists those there are`,
    )
  }

  /** The template of that key; undefined when there is none that can be used. */
  template(key: string): SnapshotManifest | undefined {
    const id = templateId(key)
    try {
      const manifest = this.#read(this.folder.manifest('template', id))
      return manifest.key === key ? manifest : undefined
    } catch (error) {
      if (error instanceof SnapshotError) return undefined
      throw error
    }
  }

  /** Oldest first; those that cannot be read are left out (`damaged` lists them). */
  list(owner?: string): SnapshotManifest[] {
    return this.#readAll(owner).found.sort((a, b) => (a.created < b.created ? -1 : a.created > b.created ? 1 : 0))
  }

  /** Manifests that cannot be read, and why. */
  damaged(): { owner: string; id: string; error: SnapshotError }[] {
    return this.#readAll(undefined).damaged
  }

  #readAll(owner: string | undefined) {
    const found: SnapshotManifest[] = []
    const damaged: { owner: string; id: string; error: SnapshotError }[] = []
    for (const entry of this.folder.entries()) {
      if (owner !== undefined && entry.owner !== owner) continue
      try {
        found.push(this.#read(entry.path))
      } catch (error) {
        if (!(error instanceof SnapshotError)) throw error
        if (error.code !== 'NOT_FOUND') damaged.push({ owner: entry.owner, id: entry.id, error })
      }
    }
    return { found, damaged }
  }

  /** A manifest without the state behind it. */
  #read(path: string): SnapshotManifest {
    let fd: number
    try {
      fd = openSync(path, 'r')
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
      throw new SnapshotError('NOT_FOUND', `the snapshot ${path} is gone: 'vitrine snapshot ls' lists those there are`)
    }
    try {
      const head = Buffer.alloc(FIXED_BYTES)
      const got = readSync(fd, head, 0, FIXED_BYTES, 0)
      const { jsonBytes } = decodeFixed(head.subarray(0, got), path)
      const all = Buffer.alloc(FIXED_BYTES + jsonBytes)
      const length = readSync(fd, all, 0, all.length, 0)
      const manifest = decodeManifest(all.subarray(0, length), path)
      if (path !== this.folder.manifest(manifest.owner, manifest.id))
        throw new SnapshotError('CORRUPT', `${path} has another snapshot's name: remove it, or import it again`)
      return manifest
    } finally {
      closeSync(fd)
    }
  }

  /** The state of CPUs and devices, its checksum verified. */
  openState(manifest: SnapshotManifest): Uint8Array {
    const path = this.folder.manifest(manifest.owner, manifest.id)
    return decodeState(readFileSync(path), manifest, path)
  }

  /** The memory, ready to be mapped. The index of every layer is checked, pages are not: see `verify`. */
  openMemory(manifest: SnapshotManifest): MemoryImage {
    const { memory } = manifest
    if (!memory) {
      throw new SnapshotError(
        'NO_MEMORY_STATE',
        `the snapshot '${manifest.name ?? manifest.id}' holds a disk only: a box made from it boots`,
      )
    }
    const layers: MemoryLayer[] = []
    try {
      for (const ref of memory.layers) layers.push(openLayer(this.folder.layer(ref.file), memory.bytes, ref))
    } catch (error) {
      new MemoryImage(memory.bytes, layers).close()
      throw error
    }
    return new MemoryImage(memory.bytes, layers)
  }

  /** A descriptor of what a CPU made of the guest's code, if it is what was written, by this build; the caller closes it. */
  openCode({ code }: SnapshotManifest, build: string): { readonly fd: number; readonly bytes: number } | undefined {
    if (code?.build !== build) return undefined
    try {
      const fd = openSync(this.folder.layer(code.file), 'r')
      if (stampOfFd(fd) === code.stamp) return { fd, bytes: code.bytes }
      closeSync(fd)
    } catch {
      // Gone: it is not needed.
    }
    return undefined
  }

  /** Path of the QCOW2 layer that a new box's disk goes on. */
  diskPath(manifest: SnapshotManifest): string {
    return this.folder.layer(manifest.disk.layers.at(-1)!.file)
  }

  /**
   * Whether all that the snapshot stands on is there and was not touched, without reading it. What was touched is read and
   * compared with its checksum. Resolves to the state, which has been read for that; there is none without memory.
   */
  async check(manifest: SnapshotManifest): Promise<Uint8Array | undefined> {
    const state = manifest.memory ? this.openState(manifest) : undefined
    await checkLayers(this.folder, manifest)
    return state
  }

  /** What each snapshot of the home takes on the disk, by id. */
  diskUse(): Map<string, SnapshotUse> {
    return diskUse(this.folder, this.list(), layersOfBoxes(this.folder))
  }

  /** The ext4 files of images that snapshots stand on: they must not be removed. */
  baseDisks(): Set<string> {
    return new Set(this.list().flatMap(({ disk }) => (disk.base ? [disk.base.path] : [])))
  }

  /** Reads everything that the snapshot consists of and compares it with its checksums. */
  async verify(manifest: SnapshotManifest, onProgress?: (done: number, total: number) => void): Promise<void> {
    this.openState(manifest)
    await verifySnapshot(this.folder, manifest, onProgress)
  }

  /** Removes a snapshot; layers that others need stay. */
  async removeSnapshot(manifest: SnapshotManifest): Promise<SweepResult> {
    return this.removeById(manifest.owner, manifest.id)
  }

  /** Also for a snapshot that cannot be read any more. */
  async removeById(owner: string, id: string): Promise<SweepResult> {
    this.drop(owner, id)
    return this.sweep()
  }

  /** Removes a snapshot's manifest; what only it needed goes with the next sweep. */
  drop(owner: string, id: string): void {
    removeFile(this.folder.manifest(owner, id))
    syncNow(this.folder.manifests)
  }

  /** Removes all snapshots of a box that is gone, and the layers that only it stood on. */
  async removeOwner(owner: string): Promise<SweepResult> {
    const own = this.folder.entries().filter(entry => entry.owner === owner)
    for (const { path } of own) removeFile(path)
    const isEmpty = namesIn(this.folder.layers).length === 0
    return isEmpty ? { removedFiles: 0, freedBytes: 0, busy: false } : this.sweep()
  }

  /** Says which memory layers a box's running machine stands on, so that they stay; none: nothing. */
  hold(boxFolder: string, layerFiles: readonly string[]): void {
    const path = join(boxFolder, HOLD_FILE)
    if (layerFiles.length === 0) {
      removeFile(path)
      return
    }
    const temporary = `${path}.${process.pid}`
    writeFileSync(temporary, JSON.stringify(layerFiles))
    renameSync(temporary, path)
  }

  /** Removes layers that nothing refers to, and what dead processes left. Does nothing while somebody is at work. */
  async sweep(waitMs = 0): Promise<SweepResult> {
    const guard = await this.folder.guard('exclusive', waitMs)
    if (!guard) return { removedFiles: 0, freedBytes: 0, busy: true }
    try {
      const { found, damaged } = this.#readAll(undefined)
      return sweep(this.folder, found, damaged.length > 0)
    } finally {
      guard.release()
    }
  }

  // What drafts ask for.

  checkName(owner: string, name: string | null, except: string): void {
    if (name === null) return
    const taken = this.list(owner).find(each => each.name === name && each.id !== except)
    if (!taken) return
    throw new SnapshotError(
      'NAME_IN_USE',
      `there is a snapshot named '${name}' already (${taken.id}): choose another name, or remove it with 'vitrine snapshot rm'`,
    )
  }

  knownLayers(owner: string): ReadonlyMap<string, LayerRef> {
    return new Map(this.list(owner).flatMap(({ disk }) => disk.layers.map(ref => [ref.file, ref])))
  }

  ancestorsOf(owner: string, parent: string | null): readonly string[] {
    if (parent === null) return []
    if (!isId(parent)) throw new SnapshotError('INVALID', `'${parent}' is not the id of a snapshot`)
    const found = this.list(owner).find(({ id }) => id === parent)
    return [parent, ...(found?.ancestors ?? [])]
  }
}

export function checkSnapshotName(name: string | null): void {
  if (name === null || (NAME.test(name) && !isId(name))) return
  throw new SnapshotError(
    'INVALID',
    `'${name}' cannot be a snapshot's name: use 1 to 63 letters, digits, '_', '.' or '-', starting with a letter or a digit (and not 12 hexadecimal digits, which would be an id)`,
  )
}

const templateId = (key: string): string => createHash('sha256').update(key).digest('hex').slice(0, 12)
