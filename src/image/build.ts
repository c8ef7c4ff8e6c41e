/** Layers to one ext4 file: fetched and unpacked a few at a time, applied in order, written once. */
import { chmodSync, renameSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { spoolTar } from './decompress.ts'
import { ImageError } from './errors.ts'
import { type Ext4Result, writeExt4 } from './ext4/writer.ts'
import type { OnProgress } from './progress.ts'
import type { Inode } from './tree/inode.ts'
import { LayeredTree } from './tree/layers.ts'

export interface LayerInput {
  readonly digest: string
  /** Of the uncompressed tar. */
  readonly diffId: string
  /** The layer's blob on the disk, fetched if need be. `again` says that what came before is damaged. */
  fetch(again: boolean): Promise<string>
}

export interface BuildOptions {
  readonly contentId: string
  readonly label: string
  /** An empty folder for work in progress. */
  readonly work: string
  /** Where the image goes when it is complete. */
  readonly target: string
  readonly minimumBytes: number
  readonly maximumBytes: number
  readonly onProgress: OnProgress
}

const PARALLEL = 3

export async function buildFromLayers(layers: readonly LayerInput[], options: BuildOptions): Promise<Ext4Result> {
  const { work, maximumBytes, onProgress } = options
  const tars: string[] = []
  let next = 0
  let failed = false
  // A few lanes, each taking the next layer that nobody has taken; after a failure no lane takes another.
  const lane = async (): Promise<void> => {
    while (next < layers.length && !failed) {
      const index = next++
      try {
        tars[index] = await unpack(layers[index]!, join(work, `${index}.tar`), maximumBytes, onProgress)
      } catch (error) {
        failed = true
        throw error
      }
    }
  }
  const lanes = await Promise.allSettled(Array.from({ length: PARALLEL }, lane))
  for (const result of lanes) if (result.status === 'rejected') throw result.reason
  using tree = new LayeredTree()
  for (const [index, path] of tars.entries()) {
    await tree.applyTar(path, `layer ${layers[index]!.digest}`)
    // The descriptor keeps the spool readable until the tree is closed; the space comes back even if we are killed.
    if (path.startsWith(work)) rmSync(path)
  }
  return await buildFromTree(tree.root, options)
}

export async function buildFromTree(root: Inode, options: BuildOptions): Promise<Ext4Result> {
  const { work, target, contentId, label, minimumBytes, maximumBytes, onProgress } = options
  const path = join(work, 'disk.ext4')
  const result = await writeExt4(path, root, {
    identity: contentId,
    label,
    minimumBytes,
    maximumBytes,
    onProgress: (done, total) => onProgress({ type: 'disk', done, total }),
  })
  // Shared by every box that starts from it: nobody writes to it again. The writer has flushed it.
  chmodSync(path, 0o444)
  renameSync(path, target)
  return result
}

/** The uncompressed tar of a layer, with the digest that the config promises. */
async function unpack(layer: LayerInput, spool: string, limitBytes: number, onProgress: OnProgress): Promise<string> {
  for (let again = false; ; again = true) {
    const blob = await layer.fetch(again)
    let problem: ImageError
    try {
      const { path, diffId } = await spoolTar(blob, spool, {
        limitBytes,
        name: `layer ${layer.digest}`,
        onProgress: (done, total) => onProgress({ type: 'layer', digest: layer.digest, phase: 'unpack', done, total }),
      })
      if (diffId === layer.diffId) return path
      if (path === spool) rmSync(spool, { force: true })
      problem = new ImageError(
        'DIGEST_MISMATCH',
        `layer ${layer.digest} unpacks to ${diffId}, and the image's config says ${layer.diffId}: the image is damaged; push or make it again`,
      )
    } catch (error) {
      if (!(error instanceof ImageError) || error.code !== 'BAD_COMPRESSION') throw error
      problem = error
    }
    // A cached blob may have been damaged on the disk: it is fetched once more.
    if (again) throw problem
  }
}
