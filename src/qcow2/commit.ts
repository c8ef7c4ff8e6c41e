/** Writing an overlay's changes into its backing file, and emptying the overlay. */
import { dirname } from 'node:path'
import type { BlockImage } from './block-image.ts'
import { COPY_BYTES, CopyBuffer } from './copy.ts'
import { DiskError } from './errors.ts'
import { backingFormatOf, type OpenOptions, openDisk, resolveBacking } from './open.ts'
import type { Qcow2Image } from './qcow2-image.ts'

/** How an overlay is written to the file below it. */
export interface CommitOptions {
  readonly backingFolders?: OpenOptions['backingFolders']
  /** Leaves the overlay as it is: it shows the same afterwards either way. */
  readonly keepOverlay?: boolean
  readonly onProgress?: (doneBytes: number, totalBytes: number) => void
}

/**
 * Commits the overlay at `path` to the file below it. Other overlays of that file see its contents change: it must have
 * no other users, and the lock makes sure that it has none now. A crash at any point leaves the overlay showing what it
 * did before.
 */
export function commitDisk(path: string, options: CommitOptions = {}): void {
  const overlay = openDisk(path, { format: 'qcow2', withoutBacking: true })
  try {
    const { backingFile, backingFormat } = overlay.header
    if (backingFile === undefined) throw new DiskError('INVALID_ARGUMENT', path, 'has no backing file to commit to')
    const folders = options.backingFolders ?? [dirname(path)]
    // Opened once through the chain, for its checks on where backing files may be, then for writing.
    openDisk(path, { format: 'qcow2', readOnly: true, lock: false, backingFolders: folders }).close()
    const base = openDisk(resolveBacking(path, backingFile), {
      format: backingFormatOf(path, backingFormat),
      backingFolders: folders,
    })
    try {
      copyDown(overlay, base, options)
      base.flush()
    } finally {
      base.close()
    }
    if (!options.keepOverlay) empty(overlay)
  } finally {
    overlay.close()
  }
}

function copyDown(overlay: Qcow2Image, base: BlockImage, options: CommitOptions): void {
  const size = overlay.sizeBytes
  if (base.sizeBytes < size) base.resize(size)
  const buffer = new CopyBuffer()
  for (let at = 0; at < size; ) {
    const extent = overlay.extent(at, size - at)
    const length =
      extent.kind === 'data' || extent.kind === 'compressed' ? Math.min(extent.length, COPY_BYTES) : extent.length
    if (extent.kind === 'zero') base.writeZeroes(at, length, true)
    else if (extent.kind !== 'hole') {
      buffer.read(overlay, at, length)
      buffer.write(base, at, 0, length)
    }
    at += length
    options.onProgress?.(at, size)
  }
}

/** Makes every cluster of the overlay a hole again, so that its backing file shows everywhere. */
function empty(overlay: Qcow2Image): void {
  const { metadata, clusterSize, sizeBytes } = overlay
  for (let at = 0; at < sizeBytes; ) {
    const extent = overlay.extent(at, sizeBytes - at)
    if (extent.kind !== 'hole') {
      const clusters = Math.ceil(extent.length / clusterSize)
      for (let i = 0; i < clusters; i++) metadata.replaceEntry(at / clusterSize + i, 0, 0)
    }
    at += extent.length
  }
  overlay.flush()
}
