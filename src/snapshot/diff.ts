/** Files that differ between two snapshots of a disk, or between a snapshot and the image below it. */
import { dirname } from 'node:path'
import { compareVolumes, type FileChange, type IsShared } from '../image/ext4/reader/compare.ts'
import { Ext4Volume } from '../image/ext4/reader/volume.ts'
import type { BlockImage } from '../qcow2/block-image.ts'
import { chainExtent, chainOf } from '../qcow2/chain.ts'
import { openDisk } from '../qcow2/open.ts'
import { SnapshotError } from './errors.ts'
import type { SnapshotManifest } from './manifest.ts'
import type { SnapshotStore } from './store.ts'

export type { ChangedWhat, FileChange } from '../image/ext4/reader/compare.ts'

/** `before` null stands for the image that `after` was made from. What a guest had not written out yet is on neither disk. */
export async function diffSnapshots(
  store: SnapshotStore,
  before: SnapshotManifest | null,
  after: SnapshotManifest,
): Promise<FileChange[]> {
  const newer = openSnapshotDisk(store, after)
  try {
    const older = before ? openSnapshotDisk(store, before) : openBase(after)
    try {
      return await compareVolumes(new Ext4Volume(older), new Ext4Volume(newer), sharing(older, newer))
    } finally {
      older.close()
    }
  } finally {
    newer.close()
  }
}

/** Two chains share what the layers that only one of them has say nothing about. */
function sharing(older: BlockImage, newer: BlockImage): IsShared {
  const [a, b] = [chainOf(older), chainOf(newer)]
  let common = 0
  while (common < Math.min(a.length, b.length) && a.at(-1 - common)!.path === b.at(-1 - common)!.path) common++
  if (common === 0) return () => false
  const own = [a.length - common, b.length - common]
  return (offset, length) => {
    for (const [index, image] of [older, newer].entries()) {
      const end = Math.min(offset + length, image.sizeBytes)
      for (let at = offset; at < end; ) {
        const extent = chainExtent(image, at, end - at)
        // Nothing at all below the first common layer is the same for both, too.
        if (extent.present && extent.depth < own[index]!) return false
        at += extent.length
      }
    }
    return true
  }
}

function openSnapshotDisk(store: SnapshotStore, manifest: SnapshotManifest): BlockImage {
  const { base } = manifest.disk
  return openDisk(store.diskPath(manifest), {
    format: 'qcow2',
    readOnly: true,
    backingFolders: [store.layersFolder, ...(base ? [dirname(base.path)] : [])],
  })
}

function openBase({ name, id, disk }: SnapshotManifest): BlockImage {
  if (disk.base) return openDisk(disk.base.path, { format: 'raw', readOnly: true })
  throw new SnapshotError(
    'MISSING_PARENT',
    `the snapshot '${name ?? id}' came with its image, so there is nothing to compare it with: name a second snapshot`,
  )
}
