/** Whether a snapshot is what was written: a look at the files before every use, and all of their bytes when asked. */
import { closeFd, readAt } from '../host/file.ts'
import { checkDisk } from '../qcow2/check.ts'
import { fileSum, superblockSum } from './disk-layer.ts'
import { SnapshotError } from './errors.ts'
import type { SnapshotFolder } from './folder.ts'
import { hash64 } from './hash.ts'
import type { LayerRef } from './layer.ts'
import type { SnapshotManifest } from './manifest.ts'
import { openLayer } from './memory-image.ts'
import { hashesOffset } from './memory-index.ts'
import { hashDataPages } from './memory-writer.ts'
import { stampOf } from './stamp.ts'

/** Presence, length and stamps; a layer that was touched since is read whole and compared. */
export async function checkLayers(folder: SnapshotFolder, manifest: SnapshotManifest): Promise<void> {
  checkBase(manifest)
  for (const [ref, ramSize] of layersOf(manifest)) {
    const path = folder.layer(ref.file)
    const stamp = stampOf(path)
    if (stamp === undefined) throw missing(manifest, path)
    if (stamp !== ref.stamp) await verifyLayer(path, ref, ramSize)
  }
}

/** Reads every byte of every layer and compares with the checksums; checks that the disk layers are sound QCOW2. */
export async function verifySnapshot(
  folder: SnapshotFolder,
  manifest: SnapshotManifest,
  onProgress?: (done: number, total: number) => void,
): Promise<void> {
  checkBase(manifest)
  const layers = [...layersOf(manifest)]
  const total = layers.reduce((sum, [ref]) => sum + ref.bytes, 0)
  let done = 0
  for (const [ref, ramSize] of layers) {
    const path = folder.layer(ref.file)
    if (stampOf(path) === undefined) throw missing(manifest, path)
    await verifyLayer(path, ref, ramSize)
    if (ramSize === undefined) {
      const report = checkDisk(path)
      if (report.corruptions > 0) throw damaged(path, report.messages[0] ?? 'its tables')
    }
    done += ref.bytes
    onProgress?.(done, total)
  }
  const { code } = manifest
  // One that is gone is not missed.
  if (code && stampOf(folder.layer(code.file)) !== undefined)
    await verifyLayer(folder.layer(code.file), code, undefined)
}

function* layersOf({ memory, disk }: SnapshotManifest): Generator<[ref: LayerRef, ramSize: number | undefined]> {
  for (const ref of memory?.layers ?? []) yield [ref, memory!.bytes]
  for (const ref of disk.layers) yield [ref, undefined]
}

async function verifyLayer(path: string, ref: LayerRef, ramSize: number | undefined): Promise<void> {
  if (ramSize === undefined) {
    const { sum, bytes } = await fileSum(path)
    if (bytes < ref.bytes)
      throw new SnapshotError('TRUNCATED', `${path} was cut short: remove the snapshot, or import it again`)
    if (sum !== ref.sum) throw damaged(path, 'its contents')
    return
  }
  const { fd, index } = openLayer(path, ramSize, ref)
  try {
    const hashes = new Uint8Array(index.data.count * 8)
    readAt(fd, hashes, ramSize + hashesOffset(ramSize))
    if (hash64(hashes) !== index.hashesSum) throw damaged(path, 'its checksums')
    await hashDataPages(fd, index.data, path, (rank, some) => {
      if (Buffer.compare(some, hashes.subarray(rank * 8, rank * 8 + some.length)) !== 0)
        throw damaged(path, 'its pages')
    })
  } finally {
    closeFd(fd)
  }
}

function checkBase({ disk: { base } }: SnapshotManifest): void {
  if (!base) return
  const { sum, bytes } = superblockSum(base.path)
  if (sum === base.sum && bytes === base.bytes) return
  throw new SnapshotError(
    'MISSING_PARENT',
    `${base.path} is not the disk of ${base.image} that the snapshot was made on: fetch that image again with 'vitrine pull'`,
  )
}

const missing = (manifest: SnapshotManifest, path: string): SnapshotError =>
  new SnapshotError(
    'MISSING_PARENT',
    `the snapshot '${manifest.name ?? manifest.id}' stands on ${path}, which is gone: remove the snapshot`,
  )

const damaged = (path: string, what: string): SnapshotError =>
  new SnapshotError('CORRUPT', `${path} is damaged (${what}): remove the snapshot, or import it again`)
