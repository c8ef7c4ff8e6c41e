/**
 * Where a home keeps its snapshots:
 *
 *   snapshots/
 *     manifests/<owner>.<id>.snap   one a snapshot; owner is a box's id, `template` or `import`
 *     layers/<id>.mem, <id>.qcow2   memory and disk, never changed once they are here
 *     tmp/                          work in progress
 *     locks/guard.lock              held shared by whoever makes or uses snapshots, exclusively by whoever cleans up
 *     locks/commit.lock             held for the moment in which a name is taken
 *
 * Whoever has the guard exclusively knows that nobody is at work: what is in tmp/ then, or in layers/ without anything that
 * refers to it, is left over from a process that died.
 */
import { closeSync, fsync, fsyncSync, mkdirSync, openSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { type LockMode, ProcessLock } from '../host/process-lock.ts'
import { SnapshotError } from './errors.ts'

const SUFFIX = '.snap'

export class SnapshotFolder {
  readonly home: string
  readonly path: string

  constructor(home: string) {
    this.home = home
    this.path = join(home, 'snapshots')
  }

  get manifests(): string {
    return join(this.path, 'manifests')
  }
  get layers(): string {
    return join(this.path, 'layers')
  }
  get tmp(): string {
    return join(this.path, 'tmp')
  }
  get boxes(): string {
    return join(this.home, 'boxes')
  }

  prepare(): void {
    for (const folder of [this.manifests, this.layers, this.tmp, join(this.path, 'locks')])
      mkdirSync(folder, { recursive: true, mode: 0o700 })
  }

  manifest(owner: string, id: string): string {
    return join(this.manifests, `${owner}.${id}${SUFFIX}`)
  }

  layer(file: string): string {
    return join(this.layers, file)
  }

  /** The manifests there are, without looking into them. */
  entries(): { owner: string; id: string; path: string }[] {
    return namesIn(this.manifests).flatMap(name => {
      const match = /^([0-9a-z]+)\.([0-9a-f]{12})\.snap$/.exec(name)
      return match ? [{ owner: match[1]!, id: match[2]!, path: join(this.manifests, name) }] : []
    })
  }

  /** Waits for the guard; `waitMs` 0 only tries. */
  async guard(mode: LockMode, waitMs: number): Promise<ProcessLock | undefined> {
    this.prepare()
    return ProcessLock.acquire(join(this.path, 'locks', 'guard.lock'), mode, waitMs)
  }

  async commitLock(): Promise<ProcessLock> {
    const lock = await ProcessLock.acquire(join(this.path, 'locks', 'commit.lock'), 'exclusive', 30_000)
    if (!lock) throw busy()
    return lock
  }
}

export const busy = (): SnapshotError =>
  new SnapshotError('BUSY', 'another process works on the snapshots of this home: try again when it is done')

/** The names in a folder; none if it is not there. */
export function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder)
  } catch {
    return []
  }
}

/** Makes a file's contents, or a folder's names, durable. */
export async function sync(path: string): Promise<void> {
  const fd = openSync(path, 'r')
  try {
    await promisify(fsync)(fd)
  } finally {
    closeSync(fd)
  }
}

export function syncNow(path: string): void {
  const fd = openSync(path, 'r')
  try {
    fsyncSync(fd)
  } finally {
    closeSync(fd)
  }
}
