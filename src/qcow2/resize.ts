/** Changing the size of the disk. Growing may need a longer L1 table, which moves; the header switches atomically. */
import { roundUp, setU64 } from './bytes.ts'
import { DiskError } from './errors.ts'
import { l1EntriesFor } from './header.ts'
import { HEADER, MAX_L1_BYTES, MAX_OFFSET } from './layout.ts'
import type { Qcow2Image } from './qcow2-image.ts'

export function resizeImage(image: Qcow2Image, size: number, allowShrink: boolean): void {
  const { metadata, path } = image
  const { header } = metadata
  if (!Number.isSafeInteger(size) || size < 0 || size % 512 !== 0) {
    throw new DiskError('INVALID_ARGUMENT', path, `the size ${size} is not a multiple of 512 bytes`)
  }
  if (size < header.size) {
    if (!allowShrink) {
      throw new DiskError(
        'INVALID_ARGUMENT',
        path,
        `shrinking from ${header.size} to ${size} bytes would lose data; allow it with --shrink`,
      )
    }
    shrink(image, size)
    return
  }
  const entries = l1EntriesFor(size, header.clusterBits)
  if (size > MAX_OFFSET || entries * 8 > MAX_L1_BYTES) {
    throw new DiskError('TOO_LARGE', path, `${size} bytes need an L1 table over 32 MiB; use larger clusters`)
  }
  metadata.writeBack()
  if (entries > header.l1Size) moveL1(image, entries)
  grow(image, size)
}

/** What the new part of the disk would show by accident is zeroed before the header lets it show. */
function grow(image: Qcow2Image, size: number): void {
  const { metadata } = image
  const { header } = metadata
  const old = header.size
  const shown = Math.max(roundUp(old, image.clusterSize), image.backing?.sizeBytes ?? 0)
  header.size = size
  try {
    const end = Math.min(size, shown)
    if (end > old) image.writeZeroes(old, end - old, true)
    metadata.writeBack()
    metadata.writeHeaderFields(view => setU64(view, HEADER.size, size))
  } catch (error) {
    header.size = old
    throw error
  }
}

function moveL1(image: Qcow2Image, entries: number): void {
  const { metadata } = image
  const { header, geometry, mapping, refcounts, storage } = metadata
  const { clusterSize } = geometry
  const clusters = Math.ceil((entries * 8) / clusterSize)
  const start = refcounts.allocateContiguous(clusters)
  const offset = start * clusterSize
  const bytes = new Uint8Array(clusters * clusterSize)
  for (let i = 0; i < header.l1Size; i++) mapping.encodeL1(bytes, i * 8, i)
  try {
    storage.write(bytes, offset)
    refcounts.writeBack()
    storage.flush()
  } catch (error) {
    refcounts.release(start, clusters)
    throw error
  }
  metadata.writeHeaderFields(view => {
    view.setUint32(HEADER.l1Size, entries)
    setU64(view, HEADER.l1TableOffset, offset)
  })
  const oldStart = header.l1TableOffset / clusterSize
  const oldClusters = Math.ceil((header.l1Size * 8) / clusterSize)
  mapping.growL1(entries)
  header.l1Size = entries
  header.l1TableOffset = offset
  metadata.protectedClusters.addRange(start, clusters)
  metadata.pendFree(oldStart, oldClusters)
  metadata.writeBack()
}

function shrink(image: Qcow2Image, size: number): void {
  const { metadata, clusterSize } = image
  const { header } = metadata
  const firstGone = Math.ceil(size / clusterSize)
  // A crash before the header is written leaves a disk whose end was discarded, as was asked.
  const oldClusters = Math.ceil(header.size / clusterSize)
  metadata.writeBack()
  for (let cluster = firstGone; cluster < oldClusters; ) {
    metadata.mapping.lookup(cluster * clusterSize, (oldClusters - cluster) * clusterSize)
    const run = Math.ceil(metadata.mapping.length / clusterSize)
    if (metadata.mapping.kind !== 0) for (let i = 0; i < run; i++) metadata.replaceEntry(cluster + i, 0, 0)
    cluster += run
  }
  metadata.writeBack()
  metadata.writeHeaderFields(view => setU64(view, HEADER.size, size))
  header.size = size
}
