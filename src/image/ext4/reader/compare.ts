/** Which files differ between two file systems: both are walked at once, and contents are read only where they may differ. */
import { setImmediate as turn } from 'node:timers/promises'
import { ImageError } from '../../errors.ts'
import type { FileRun } from './block-map.ts'
import type { Ext4Volume, VolumeInode } from './volume.ts'

/** What of a path is different. */
export type ChangedWhat = 'type' | 'content' | 'mode' | 'owner' | 'target' | 'device' | 'attributes'

/** A file that is not the same in two file systems. */
export interface FileChange {
  readonly kind: 'added' | 'removed' | 'changed'
  readonly path: string
  /** Only of what changed. */
  readonly what?: readonly ChangedWhat[]
}

/** Deeper than any path that a program can use. */
const MAX_DEPTH = 2048
const COMPARE_BYTES = 1 << 20

/** Whether so many bytes of the disk are the same in both, known without reading them. */
export type IsShared = (offset: number, length: number) => boolean

/** Sorted by path. With `isShared` files whose blocks both disks share are not read. */
export async function compareVolumes(
  before: Ext4Volume,
  after: Ext4Volume,
  isShared: IsShared = () => false,
): Promise<FileChange[]> {
  const changes: FileChange[] = []
  await new Comparison(before, after, isShared, changes).directories('', before.root, after.root, 0)
  return changes.sort((a, b) => (a.path < b.path ? -1 : a.path > b.path ? 1 : 0))
}

class Comparison {
  readonly #before: Ext4Volume
  readonly #after: Ext4Volume
  readonly #isShared: IsShared
  readonly #changes: FileChange[]
  #steps = 0

  constructor(before: Ext4Volume, after: Ext4Volume, isShared: IsShared, changes: FileChange[]) {
    this.#isShared = isShared
    this.#before = before
    this.#after = after
    this.#changes = changes
  }

  async directories(path: string, before: VolumeInode, after: VolumeInode, depth: number): Promise<void> {
    if (depth > MAX_DEPTH) throw new ImageError('CORRUPT', 'directories are nested without an end: check the disk')
    const old = new Map(this.#before.entries(before).map(({ name, inode }) => [name, inode]))
    for (const { name, inode } of this.#after.entries(after)) {
      const full = `${path}/${name}`
      const now = this.#after.inode(inode)
      const previous = old.get(name)
      old.delete(name)
      if (++this.#steps % 1000 === 0) await turn()
      if (previous === undefined) await this.#all('added', this.#after, full, now, depth)
      else await this.#compare(full, this.#before.inode(previous), now, depth)
    }
    for (const [name, inode] of old) {
      await this.#all('removed', this.#before, `${path}/${name}`, this.#before.inode(inode), depth)
    }
  }

  /** A path and everything below it. */
  async #all(
    kind: 'added' | 'removed',
    volume: Ext4Volume,
    path: string,
    inode: VolumeInode,
    depth: number,
  ): Promise<void> {
    if (depth > MAX_DEPTH) throw new ImageError('CORRUPT', 'directories are nested without an end: check the disk')
    this.#changes.push({ kind, path: toText(path) })
    if (++this.#steps % 1000 === 0) await turn()
    if (inode.kind !== 'directory') return
    for (const entry of volume.entries(inode)) {
      await this.#all(kind, volume, `${path}/${entry.name}`, volume.inode(entry.inode), depth + 1)
    }
  }

  async #compare(path: string, before: VolumeInode, after: VolumeInode, depth: number): Promise<void> {
    const what: ChangedWhat[] = []
    if (before.kind !== after.kind) {
      if (before.kind === 'directory') await this.#below('removed', this.#before, path, before, depth)
      this.#changes.push({ kind: 'changed', path: toText(path), what: ['type'] })
      if (after.kind === 'directory') await this.#below('added', this.#after, path, after, depth)
      return
    }
    if (before.mode !== after.mode) what.push('mode')
    if (before.uid !== after.uid || before.gid !== after.gid) what.push('owner')
    if (before.device !== after.device) what.push('device')
    if (after.kind === 'file' && !(await this.#sameContent(before, after))) what.push('content')
    if (after.kind === 'symlink' && this.#before.target(before) !== this.#after.target(after)) what.push('target')
    if (this.#attributes(this.#before, before) !== this.#attributes(this.#after, after)) what.push('attributes')
    if (what.length > 0) this.#changes.push({ kind: 'changed', path: toText(path), what })
    if (after.kind === 'directory') await this.directories(path, before, after, depth + 1)
  }

  async #below(kind: 'added' | 'removed', volume: Ext4Volume, path: string, inode: VolumeInode, depth: number) {
    for (const entry of volume.entries(inode))
      await this.#all(kind, volume, `${path}/${entry.name}`, volume.inode(entry.inode), depth + 1)
  }

  #attributes(volume: Ext4Volume, inode: VolumeInode): string {
    const list = volume
      .attributes(inode)
      // Contents of small files and directories.
      .filter(({ name }) => name !== 'system.data')
      .map(({ name, value, size }) => [name, size, Buffer.from(value).toString('hex')])
    return JSON.stringify(list)
  }

  /** The same blocks of the disk, which nobody has written since. */
  #sameBlocks(old: readonly FileRun[], now: readonly FileRun[]): boolean {
    const size = this.#after.blockSize
    if (old.length !== now.length || this.#before.blockSize !== size) return false
    return now.every((run, i) => {
      const { from, count, block } = old[i]!
      if (from !== run.from || count !== run.count || block !== run.block) return false
      if (this.#before.isReplaced(block, count) || this.#after.isReplaced(block, count)) return false
      return this.#isShared(block * size, count * size)
    })
  }

  async #sameContent(before: VolumeInode, after: VolumeInode): Promise<boolean> {
    if (before.size !== after.size) return false
    const old = this.#before.runs(before)
    const now = this.#after.runs(after)
    const isStored = old.length + now.length > 0
    if (isStored && this.#sameBlocks(old, now)) return true
    for (let at = 0; at < after.size; ) {
      // Where neither has anything both are zeros; a file may be mostly that.
      const next = isStored
        ? Math.min(nextData(old, at, this.#before.blockSize), nextData(now, at, this.#after.blockSize))
        : at
      if (next >= after.size) break
      at = next
      const a = this.#before.read(before, at, COMPARE_BYTES, old)
      const b = this.#after.read(after, at, COMPARE_BYTES, now)
      if (Buffer.compare(a, b) !== 0) return false
      at += COMPARE_BYTES
      await turn()
    }
    return true
  }
}

function nextData(runs: readonly FileRun[], at: number, blockSize: number): number {
  let low = 0
  let high = runs.length
  while (low < high) {
    const middle = (low + high) >>> 1
    const run = runs[middle]!
    if ((run.from + run.count) * blockSize <= at) low = middle + 1
    else high = middle
  }
  const run = runs[low]
  return run ? Math.max(at, run.from * blockSize) : Number.MAX_SAFE_INTEGER
}

/** UTF-8, as names mostly are; bytes that are not stay what they look like in Latin-1. */
function toText(path: string): string {
  const bytes = Buffer.from(path, 'latin1')
  const text = bytes.toString('utf8')
  return Buffer.compare(Buffer.from(text), bytes) === 0 ? text : path
}
