/**
 * The folder where images are kept, shared by all processes of a home:
 *
 *   images/
 *     blobs/sha256/<hex>   layers and configs as registries have them, named by their digest
 *     partial/<hex>        downloads that are not finished; the next attempt goes on from there
 *     disks/<name>.ext4    finished images, read-only
 *     refs/<hash>.json     what a name meant when it was last looked up
 *     tmp/                 work in progress; garbage when nobody works
 *     locks/
 *
 * Files appear under their final name only when they are complete. Work holds the collector's lock shared, cleaning up holds it
 * exclusively; two processes that want the same thing take turns.
 */
import {
  closeSync,
  fsync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { type LockMode, ProcessLock } from '../host/process-lock.ts'
import { ImageError, rethrowWrite } from './errors.ts'

export class ImageCache {
  readonly path: string

  /** `home` is Vitrine's home directory; the cache is its images/ folder. */
  constructor(home: string) {
    this.path = join(home, 'images')
  }

  prepare(): void {
    for (const folder of ['blobs/sha256', 'partial', 'disks', 'refs', 'tmp', 'locks']) {
      mkdirSync(join(this.path, folder), { recursive: true, mode: 0o700 })
    }
  }

  blob(digest: string): string {
    return join(this.path, 'blobs', 'sha256', hexOf(digest))
  }

  partial(digest: string): string {
    return join(this.path, 'partial', hexOf(digest))
  }

  disk(name: string): string {
    return join(this.path, 'disks', `${name}.ext4`)
  }

  disks(): string[] {
    return filesOf(join(this.path, 'disks'))
  }

  blobs(): string[] {
    return filesOf(join(this.path, 'blobs', 'sha256'))
  }

  get refs(): string {
    return join(this.path, 'refs')
  }

  /** A new folder for work in progress; the caller removes it. */
  temporaryFolder(): string {
    return mkdtempSync(join(this.path, 'tmp', 'work-'))
  }

  /** Held shared by whoever reads or adds, exclusively by whoever removes. */
  async guard(mode: LockMode, timeoutMs?: number): Promise<ProcessLock> {
    return this.#lock('collector', mode, timeoutMs)
  }

  /** One process at a time fetches a blob or builds a disk; `onWait` is called if it is not our turn. */
  async turn(kind: 'blob' | 'disk', name: string, onWait: () => void): Promise<ProcessLock> {
    // A fixed set of lock files, shared by names that begin alike: they are never removed.
    const file = `${kind}-${name.slice(0, 2)}`
    const lock = ProcessLock.tryAcquire(this.#lockPath(file))
    if (lock) return lock
    onWait()
    return this.#lock(file, 'exclusive')
  }

  async #lock(name: string, mode: LockMode, timeoutMs?: number): Promise<ProcessLock> {
    const lock = await ProcessLock.acquire(this.#lockPath(name), mode, timeoutMs)
    if (!lock)
      throw new ImageError('LOCKED', 'another process uses the image cache: wait until its pull or prune is done')
    return lock
  }

  #lockPath(name: string): string {
    return join(this.path, 'locks', `${name}.lock`)
  }

  /** Marks a file as used now, for `prune`. */
  touch(path: string): void {
    const now = new Date()
    try {
      utimesSync(path, now, now)
    } catch {
      // Gone or not ours: nothing depends on it.
    }
  }

  /** Puts a document in place at once: written beside, flushed, renamed. */
  async writeDocument(path: string, bytes: Uint8Array | string): Promise<void> {
    const temporary = `${path}.${process.pid}.${Math.random().toString(36).slice(2)}`
    try {
      writeFileSync(temporary, bytes, { mode: 0o600 })
      await commitFile(temporary, path)
    } catch (error) {
      rmSync(temporary, { force: true })
      rethrowWrite(error, path)
    }
  }
}

/** Flushes a file and gives it its final name. */
export async function commitFile(temporary: string, path: string): Promise<void> {
  const fd = openSync(temporary, 'r')
  try {
    await promisify(fsync)(fd)
  } finally {
    closeSync(fd)
  }
  renameSync(temporary, path)
}

export const hexOf = (digest: string): string => digest.slice(digest.indexOf(':') + 1)

/** What a file takes on the disk, holes not counted. */
export function bytesOnDisk(path: string): number {
  try {
    return statSync(path).blocks * 512
  } catch {
    return 0
  }
}

/** The files of a folder; none if it is not there. */
export function filesOf(folder: string): string[] {
  try {
    return readdirSync(folder).map(name => join(folder, name))
  } catch {
    return []
  }
}
