/** Zeroing and discarding ranges: whole clusters by their entries, the edges by writing. */
import { IoVector } from '../host/io-vector.ts'
import { HI_COPIED, LO_ZERO, TWO_32 } from './layout.ts'
import { DATA, HOLE, ZERO, ZERO_ALLOCATED } from './mapping.ts'
import type { Qcow2Image } from './qcow2-image.ts'

const ZEROS = new Uint8Array(64 * 1024)
let zeroVector: IoVector | undefined

/** Whole clusters read as zeros afterwards and take no space; a cluster only partly in the range keeps its bytes. */
export function discardRange(image: Qcow2Image, offset: number, length: number): void {
  const { clusterSize } = image
  const end = offset + length
  // The last cluster of the disk may be a short one: it is whole when the range reaches the disk's end.
  const last = end === image.sizeBytes ? Math.ceil(end / clusterSize) : Math.floor(end / clusterSize)
  unmapClusters(image, Math.ceil(offset / clusterSize), last, false)
}

/** Takes the storage of clusters `first` to `last` (exclusive) away. False when it cannot make one read as zeros. */
function unmapClusters(image: Qcow2Image, first: number, last: number, mustZero: boolean): number {
  const { metadata, clusterSize } = image
  const { mapping } = metadata
  /** Where the backing file no longer shows. */
  const shown = image.backing ? Math.ceil(image.backing.sizeBytes / clusterSize) : 0
  let cluster = first
  while (cluster < last) {
    mapping.lookup(cluster * clusterSize, (last - cluster) * clusterSize)
    const { kind } = mapping
    const run = Math.ceil(mapping.length / clusterSize)
    const hidden = cluster >= shown
    if (kind === ZERO || (kind === HOLE && hidden)) {
      cluster += run
      continue
    }
    // Version 2 has no way to say "zeros" over a backing file.
    if (!hidden && metadata.header.version < 3) {
      if (mustZero) return cluster
      cluster = Math.min(cluster + run, shown)
      continue
    }
    const lo = hidden ? 0 : LO_ZERO
    const entries = hidden && image.backing ? 1 : run
    for (let i = 0; i < entries; i++) metadata.replaceEntry(cluster + i, 0, lo)
    cluster += entries
  }
  return last
}

export function zeroRange(image: Qcow2Image, offset: number, length: number, mayUnmap: boolean): void {
  const { clusterSize } = image
  const end = offset + length
  const first = Math.ceil(offset / clusterSize)
  const last = end === image.sizeBytes ? Math.ceil(end / clusterSize) : Math.floor(end / clusterSize)
  if (last <= first) {
    writeZeros(image, offset, end)
    return
  }
  writeZeros(image, offset, first * clusterSize)
  if (mayUnmap) {
    let cluster = first
    while (cluster < last) {
      cluster = unmapClusters(image, cluster, last, true)
      if (cluster < last) writeZeros(image, cluster * clusterSize, Math.min(end, ++cluster * clusterSize))
    }
  } else keepZeroed(image, first, last, end)
  if (last * clusterSize < end) writeZeros(image, last * clusterSize, end)
}

/** Zeros that keep their clusters, so that later writes need no allocation. */
function keepZeroed(image: Qcow2Image, first: number, last: number, end: number): void {
  const { metadata, clusterSize } = image
  const { mapping } = metadata
  for (let cluster = first; cluster < last; cluster++) {
    mapping.lookupCluster(cluster)
    const { kind, host, copied } = mapping
    if (image.readsZero(kind, cluster * clusterSize)) continue
    if (metadata.header.version < 3)
      writeZeros(image, cluster * clusterSize, Math.min(end, (cluster + 1) * clusterSize))
    else if ((kind === DATA || kind === ZERO_ALLOCATED) && copied) {
      metadata.replaceEntry(cluster, (HI_COPIED | Math.floor(host / TWO_32)) >>> 0, (host % TWO_32) + LO_ZERO)
    } else metadata.replaceEntry(cluster, 0, LO_ZERO)
  }
}

/** Writes zeros from `from` to `to`, except where zeros show already. */
function writeZeros(image: Qcow2Image, from: number, to: number): void {
  const { clusterSize } = image
  zeroVector ??= new IoVector(ZEROS, 1)
  for (let at = from; at < to; ) {
    const end = Math.min(to, (Math.floor(at / clusterSize) + 1) * clusterSize, at + ZEROS.length)
    image.metadata.mapping.lookup(at, end - at)
    if (!image.readsZero(image.metadata.mapping.kind, Math.floor(at / clusterSize) * clusterSize)) {
      zeroVector.clear()
      zeroVector.push(0, end - at)
      image.writev(at, zeroVector)
    }
    at = end
  }
}
