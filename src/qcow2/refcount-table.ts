/** Reading the refcount table, and planning a larger one. */
import { getU64, viewOver } from './bytes.ts'
import { DiskError } from './errors.ts'
import type { Geometry } from './geometry.ts'
import type { Header } from './header.ts'
import { MAX_OFFSET, MAX_REFCOUNT_TABLE_BYTES } from './layout.ts'
import type { Storage } from './storage.ts'

/**
 * The offsets of the refcount blocks; 0 where there is none. An impossible one is passed to `onBad`, which may throw; every other one is added to `blocks`.
 */
export function readRefcountTable(
  storage: Storage,
  header: Header,
  onBad: (index: number, offset: number) => void,
  blocks: number[] = [],
): Float64Array {
  const clusterSize = 2 ** header.clusterBits
  const bytes = new Uint8Array(header.refcountTableClusters * clusterSize)
  storage.read(bytes, header.refcountTableOffset)
  const view = viewOver(bytes)
  const table = new Float64Array(bytes.length / 8)
  // Of the thousands of entries of a young disk one is set: the rest is passed over in pieces.
  for (let piece = 0; piece < bytes.length; piece += NOTHING.length) {
    const end = Math.min(piece + NOTHING.length, bytes.length)
    if (NOTHING.compare(bytes, piece, end, 0, end - piece) === 0) continue
    for (let i = piece / 8; i < end / 8; i++) {
      // Bits 0-8 are reserved.
      const offset = getU64(view, i * 8)
      if (offset === 0) continue
      if (offset % clusterSize !== 0 || offset + clusterSize > MAX_OFFSET) onBad(i, offset)
      else {
        table[i] = offset
        blocks.push(offset)
      }
    }
  }
  return table
}

const NOTHING = Buffer.alloc(4096)

export interface TablePlan {
  /** The first cluster of the new region: blocks first, then the table. */
  readonly start: number
  readonly blocks: number
  readonly tableClusters: number
  readonly entries: number
}

/** A table half as large again, in the first clusters that the old one cannot describe. */
export function planTable(oldEntries: number, geometry: Geometry, path: string): TablePlan {
  const perCluster = geometry.clusterSize / 8
  let tableClusters = Math.ceil((oldEntries * 1.5) / perCluster)
  for (;;) {
    tableClusters++
    let blocks = 1
    while (blocks * geometry.blockEntries < blocks + tableClusters) blocks++
    const entries = tableClusters * perCluster
    if (entries * 8 > MAX_REFCOUNT_TABLE_BYTES) {
      throw new DiskError(
        'TOO_LARGE',
        path,
        'the image file cannot grow: its refcount table is at its largest; use larger clusters',
      )
    }
    if (entries > oldEntries + blocks)
      return { start: oldEntries * geometry.blockEntries, blocks, tableClusters, entries }
  }
}
