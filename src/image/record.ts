/** What a name meant when it was last looked up: one small file a name, whose time says when it was last used. */
import { createHash } from 'node:crypto'
import { readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { filesOf, type ImageCache } from './cache.ts'
import type { ImageConfig } from './manifest.ts'
import { isDigest } from './reference.ts'

const VERSION = 1

export interface ImageRecord {
  readonly version: number
  /** The source in its full form. */
  readonly key: string
  /** The source as people write it. */
  readonly name: string
  readonly id: string
  readonly digest: string
  /** What the ext4 file is named after: the chain id of the layers. */
  readonly contentId: string
  readonly config: ImageConfig
  /** Tells whether a local file changed; empty for others. */
  readonly stamp: string
  readonly layers: readonly { readonly digest: string; readonly size: number }[]
  readonly diffIds: readonly string[]
  readonly pulled: string
}

export function recordPath(cache: ImageCache, key: string): string {
  return join(cache.refs, `${createHash('sha256').update(key).digest('hex').slice(0, 40)}.json`)
}

export async function writeRecord(cache: ImageCache, record: ImageRecord): Promise<void> {
  await cache.writeDocument(recordPath(cache, record.key), `${JSON.stringify(record, null, 1)}\n`)
}

/** The record of a source; undefined when there is none, or none that we understand: it is then made anew. */
export function readRecord(cache: ImageCache, key: string): ImageRecord | undefined {
  const record = parse(recordPath(cache, key))
  return record?.key === key ? record : undefined
}

export function readRecords(cache: ImageCache): { record: ImageRecord; lastUsed: Date }[] {
  return filesOf(cache.refs).flatMap(path => {
    const record = path.endsWith('.json') ? parse(path) : undefined
    const stat = statSync(path, { throwIfNoEntry: false })
    return record && stat ? [{ record, lastUsed: stat.mtime }] : []
  })
}

function parse(path: string): ImageRecord | undefined {
  try {
    const record = JSON.parse(readFileSync(path, 'utf8')) as ImageRecord
    const isWhole =
      record.version === VERSION &&
      typeof record.key === 'string' &&
      isDigest(record.contentId) &&
      record.layers.every(({ digest, size }) => isDigest(digest) && Number.isSafeInteger(size)) &&
      record.diffIds.every(isDigest) &&
      (record.layers.length === 0 || record.layers.length === record.diffIds.length) &&
      Array.isArray(record.config.cmd)
    return isWhole ? record : undefined
  } catch {
    return undefined
  }
}
