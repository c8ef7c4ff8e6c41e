/** Blobs from a registry into the cache: resumed where they stopped, verified before they get their name. */
import { createHash, type Hash } from 'node:crypto'
import { closeSync, createReadStream, existsSync, ftruncateSync, openSync, rmSync, statSync, writeSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { commitFile, hexOf, type ImageCache } from './cache.ts'
import { ImageError, rethrowWrite } from './errors.ts'
import type { Descriptor } from './manifest.ts'
import type { OnProgress } from './progress.ts'
import type { Reference } from './reference.ts'
import type { RegistryClient } from './registry/client.ts'

/** The path of the blob in the cache, fetched if it is not there. */
export async function fetchBlob(
  cache: ImageCache,
  client: RegistryClient,
  reference: Reference,
  descriptor: Descriptor,
  onProgress: OnProgress,
): Promise<string> {
  const { digest, size } = descriptor
  const path = cache.blob(digest)
  if (isComplete(path, size)) {
    cache.touch(path)
    return path
  }
  using _turn = await cache.turn('blob', hexOf(digest), () => onProgress({ type: 'wait', what: digest }))
  if (isComplete(path, size)) return path
  const report = (done: number): void => onProgress({ type: 'layer', digest, phase: 'download', done, total: size })
  const partial = cache.partial(digest)
  for (let attempt = 1; ; attempt++) {
    const before = existsSync(partial) ? statSync(partial).size : 0
    try {
      await download(client, reference, descriptor, partial, report)
      await commitFile(partial, path)
      return path
    } catch (error) {
      if (!isWorthRetrying(error)) throw error
      // As long as something arrives, it goes on; without progress it is given up.
      const after = existsSync(partial) ? statSync(partial).size : 0
      if (after > before) attempt = 1
      if (attempt >= client.http.attempts) {
        if (error instanceof ImageError) throw error
        throw new ImageError(
          'NETWORK',
          `the download of ${digest} from ${reference.registry} broke off at ${after} of ${size} bytes (${(error as Error).message}): try again, it goes on from there`,
          { cause: error },
        )
      }
      onProgress({ type: 'retry', what: digest, reason: (error as Error).message })
      await sleep(client.http.pause(attempt, null))
    }
  }
}

const isComplete = (path: string, size: number): boolean => existsSync(path) && statSync(path).size === size

/** Only a connection that broke; what the registry said, or a full disk, will not change. */
const isWorthRetrying = (error: unknown): boolean => !(error instanceof ImageError)

async function download(
  client: RegistryClient,
  reference: Reference,
  { digest, size }: Descriptor,
  partial: string,
  report: (done: number) => void,
): Promise<void> {
  const fd = openSync(partial, 'a+', 0o600)
  try {
    let hash = createHash('sha256')
    let done = statSync(partial).size
    if (done > size) {
      ftruncateSync(fd, 0)
      done = 0
    }
    if (done > 0) await hashFile(partial, hash)
    report(done)
    if (done < size) {
      const answer = await client.blob(reference, digest, done)
      if (!answer.resumed && done > 0) {
        ftruncateSync(fd, 0)
        hash = createHash('sha256')
        done = 0
      }
      if (answer.bytes !== undefined && done + answer.bytes !== size) {
        rmSync(partial, { force: true })
        throw mismatch(reference, digest, `${done + answer.bytes} bytes instead of ${size}`)
      }
      for await (const part of answer.body) {
        done += part.length
        if (done > size) break
        hash.update(part)
        try {
          // The file was opened for appending: every write goes to its end.
          for (let at = 0; at < part.length; ) at += writeSync(fd, part, at)
        } catch (error) {
          rethrowWrite(error, partial)
        }
        report(done)
      }
      // A connection that ends early without an error: go on from here.
      if (done < size) throw new Error(`the connection ended after ${done} of ${size} bytes`)
    }
    const actual = `sha256:${hash.digest('hex')}`
    if (done !== size || actual !== digest) {
      rmSync(partial, { force: true })
      throw mismatch(reference, digest, done > size ? `more than ${size} bytes` : `digest ${actual}`)
    }
  } finally {
    closeSync(fd)
  }
}

const mismatch = (reference: Reference, digest: string, what: string): ImageError =>
  new ImageError(
    'DIGEST_MISMATCH',
    `${reference.registry} sent ${what} for ${digest}: nothing of it was kept; try again, or another registry`,
  )

async function hashFile(path: string, hash: Hash): Promise<void> {
  for await (const part of createReadStream(path, { highWaterMark: 1 << 20 })) hash.update(part as Buffer)
}
