/** Where the blocks of a file are: the extent tree, or the older map of direct and indirect blocks (ifork.rst). */
import { ImageError } from '../../errors.ts'
import { FLAG_EXTENTS, MAX_EXTENT } from '../layout.ts'
import type { BlockSource } from './block-source.ts'

export interface FileRun {
  /** First block in the file. */
  readonly from: number
  readonly count: number
  /** First block on the disk. */
  readonly block: number
}

const EXTENT_MAGIC = 0xf30a
const MAX_DEPTH = 5
/** More would be a file system that lies: a file of 16 TiB in the smallest of pieces has fewer worth reading. */
const MAX_RUNS = 4_000_000

/** Runs of written blocks, ascending; what is in none of them reads as zeros. */
export function blockMapOf(source: BlockSource, iBlock: Uint8Array, flags: number): FileRun[] {
  const runs: FileRun[] = []
  if (flags & FLAG_EXTENTS) readExtents(source, iBlock, runs, MAX_DEPTH, undefined)
  else readIndirect(source, iBlock, runs)
  return runs
}

const corrupt = (): ImageError => new ImageError('CORRUPT', 'a file has a map of its blocks that makes no sense')

const viewOf = (bytes: Uint8Array): DataView => new DataView(bytes.buffer, bytes.byteOffset, bytes.length)

function readExtents(
  source: BlockSource,
  node: Uint8Array,
  runs: FileRun[],
  mostDepth: number,
  depthWanted: number | undefined,
): void {
  const view = viewOf(node)
  const entries = view.getUint16(2, true)
  const depth = view.getUint16(6, true)
  if (view.getUint16(0, true) !== EXTENT_MAGIC || 12 + entries * 12 > node.length) throw corrupt()
  // Each level down is one less: a tree that points back at itself ends.
  if (depth > mostDepth || (depthWanted !== undefined && depth !== depthWanted)) throw corrupt()
  for (let i = 0; i < entries; i++) {
    const at = 12 + i * 12
    if (depth > 0) {
      const leaf = view.getUint32(at + 4, true) + view.getUint16(at + 8, true) * 2 ** 32
      readExtents(source, source.block(leaf), runs, depth - 1, depth - 1)
      continue
    }
    const from = view.getUint32(at, true)
    const count = view.getUint16(at + 4, true)
    const block = view.getUint16(at + 6, true) * 2 ** 32 + view.getUint32(at + 8, true)
    if (count > MAX_EXTENT || count === 0) continue // allocated, not written: zeros
    push(runs, from, count, block)
  }
}

function push(runs: FileRun[], from: number, count: number, block: number): void {
  const last = runs.at(-1)
  if (last && from < last.from + last.count) throw corrupt()
  if (last && from === last.from + last.count && block === last.block + last.count) {
    runs[runs.length - 1] = { from: last.from, count: last.count + count, block: last.block }
    return
  }
  if (runs.length >= MAX_RUNS) throw corrupt()
  runs.push({ from, count, block })
}

function readIndirect(source: BlockSource, iBlock: Uint8Array, runs: FileRun[]): void {
  const view = viewOf(iBlock)
  const perBlock = source.blockSize / 4
  let from = 0
  for (let i = 0; i < 12; i++, from++) {
    const block = view.getUint32(i * 4, true)
    if (block !== 0) push(runs, from, 1, block)
  }
  const walk = (block: number, depth: number): void => {
    const span = perBlock ** depth
    if (block === 0) {
      from += span
      return
    }
    const table = viewOf(source.block(block))
    for (let i = 0; i < perBlock; i++) {
      const entry = table.getUint32(i * 4, true)
      if (depth > 1) walk(entry, depth - 1)
      else {
        if (entry !== 0) push(runs, from, 1, entry)
        from++
      }
    }
  }
  walk(view.getUint32(48, true), 1)
  walk(view.getUint32(52, true), 2)
  walk(view.getUint32(56, true), 3)
}
