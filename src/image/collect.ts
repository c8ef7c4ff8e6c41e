/** Cleaning up the cache. Its caller holds the collector's lock exclusively: nobody reads or adds meanwhile. */
import { existsSync, rmSync, statSync } from 'node:fs'
import { basename, join } from 'node:path'
import { bytesOnDisk, filesOf, hexOf, type ImageCache } from './cache.ts'
import { readRecords, recordPath } from './record.ts'

/** What may be removed from the cache of images. */
export interface PruneOptions {
  /** Paths of ext4 files that boxes stand on: they are never removed. A function is asked once nobody can add any. */
  readonly keep?: ReadonlySet<string> | (() => ReadonlySet<string>)
  /** Forget images that were not used for so long. */
  readonly olderThanMs?: number
  /** Then remove the least recently used files until the cache takes no more than this. */
  readonly maxBytes?: number
  /** Files used this recently stay: a box may be about to stand on them. A minute unless told. */
  readonly graceMs?: number
}

/** What was removed. */
export interface PruneResult {
  readonly removedImages: readonly string[]
  readonly removedFiles: number
  readonly freedBytes: number
}

const GRACE_MS = 60_000

export function pruneCache(cache: ImageCache, options: PruneOptions = {}): PruneResult {
  const { olderThanMs, maxBytes, graceMs = GRACE_MS } = options
  const keep = typeof options.keep === 'function' ? options.keep() : (options.keep ?? new Set())
  const now = Date.now()
  const removedImages: string[] = []
  let removedFiles = 0
  let freedBytes = 0
  const remove = (path: string): void => {
    freedBytes += bytesOnDisk(path)
    removedFiles++
    rmSync(path, { recursive: true, force: true })
  }
  // Nobody works while we hold the lock: what is unfinished is left over.
  for (const path of [...filesOf(join(cache.path, 'tmp')), ...filesOf(join(cache.path, 'partial'))]) remove(path)
  for (const path of filesOf(cache.refs)) if (!path.endsWith('.json')) remove(path)

  const records = readRecords(cache)
  const kept = records.filter(({ record, lastUsed }) => {
    if (olderThanMs === undefined || now - lastUsed.getTime() < olderThanMs) return true
    rmSync(recordPath(cache, record.key), { force: true })
    removedImages.push(record.name)
    return false
  })
  const contents = new Set(kept.map(({ record }) => hexOf(record.contentId)))
  const blobs = new Set(
    kept.flatMap(({ record }) => [record.id, ...record.layers.map(({ digest }) => digest)]).map(hexOf),
  )
  const isFresh = (path: string): boolean => now - statSync(path).mtimeMs < graceMs
  for (const path of cache.disks()) {
    const content = basename(path).split('-')[0]!
    if (!contents.has(content) && !keep.has(path) && !isFresh(path)) remove(path)
  }
  for (const path of cache.blobs()) if (!blobs.has(basename(path)) && !isFresh(path)) remove(path)

  if (maxBytes !== undefined) {
    const files = [...cache.disks(), ...cache.blobs()]
      .filter(path => !keep.has(path) && !isFresh(path))
      .map(path => ({ path, used: statSync(path).mtimeMs, bytes: bytesOnDisk(path) }))
      .sort((a, b) => a.used - b.used)
    let total = cacheBytes(cache)
    for (const { path, bytes } of files) {
      if (total <= maxBytes) break
      remove(path)
      total -= bytes
    }
    // A name whose files are all gone says nothing any more.
    for (const { record } of kept) {
      const isHere =
        cache.disks().some(path => basename(path).startsWith(hexOf(record.contentId))) ||
        record.layers.some(({ digest }) => existsSync(cache.blob(digest)))
      if (isHere) continue
      rmSync(recordPath(cache, record.key), { force: true })
      removedImages.push(record.name)
    }
  }
  return { removedImages, removedFiles, freedBytes }
}

/** What the whole cache takes on the disk. */
export function cacheBytes(cache: ImageCache): number {
  const all = [...cache.disks(), ...cache.blobs(), ...filesOf(join(cache.path, 'partial'))]
  return all.reduce((sum, path) => sum + bytesOnDisk(path), 0)
}
