/**
 * How the pages of a chain of memory layers become guest RAM: the fewest mappings that show the right bytes.
 *
 * In every layer page i of RAM is at byte i * 4096 of the file, so a run of pages from one layer is one mapping, and a gap
 * of zero pages inside it can stay in the mapping when the file has a hole there. Layers are mapped from the bottom, each over those
 * below: a few pages that changed in the middle of a run take one mapping, and not three. Past a number of mappings the shortest
 * runs are read instead: the kernel has a limit, and each mapping costs a few microseconds at every restore and exit.
 */
import { PAGE } from './hash.ts'
import type { PageSet } from './page-set.ts'
import { roomFor } from './wasm.ts'

export interface PlannedLayer {
  /** Pages that the file holds, and pages that this layer says are zeros. */
  readonly data: PageSet
  readonly zero: PageSet
}

export interface PlannedRun {
  readonly kind: 'map' | 'read'
  /** Index in the chain, bottom first. */
  readonly layer: number
  /** Bytes, in RAM and in the file. */
  readonly offset: number
  readonly length: number
}

/** Gaps up to this many zero pages are always bridged: 64 KiB of page cache at most, for one mapping less. */
const SMALL_GAP = 16
const LARGEST_GAP = 65_536
/** Layer, first page, pages: three words. */
const RUN_BYTES = 12

/** In the order in which they are to be mapped: later ones lie over earlier ones. What is in none of them is zeros. */
export function planRuns(layers: readonly PlannedLayer[], pages: number, maxMaps: number): PlannedRun[] {
  const words = Math.ceil(pages / 64)
  // What wasm/snapshot/runs.ts works on, then room for what it finds.
  const out = (2 * layers.length + 3) * words * 8
  let room = roomFor(out + maxMaps * RUN_BYTES)
  room.bytes.fill(0, 0, out)
  layers.forEach(({ data, zero }, layer) => {
    room.bytes.set(data.bytes, 2 * layer * words * 8)
    room.bytes.set(zero.bytes, (2 * layer + 1) * words * 8)
  })
  const { wasm, base } = room
  wasm.show(base, layers.length, words)
  const find = (gap: number, most: number): number =>
    wasm.runs(base, layers.length, words, pages, gap, base + out, most)
  let gap = SMALL_GAP
  let found = find(gap, maxMaps)
  while (found > maxMaps && gap < LARGEST_GAP) {
    gap *= 16
    found = find(gap, maxMaps)
  }
  if (found > maxMaps) {
    room = roomFor(out + found * RUN_BYTES)
    find(gap, found)
  }
  const numbers = new Uint32Array(room.bytes.buffer, base + out, (found * RUN_BYTES) / 4)
  const runs: PlannedRun[] = []
  for (let at = 0; at < numbers.length; at += 3) {
    const [layer, first, count] = [numbers[at]!, numbers[at + 1]!, numbers[at + 2]!]
    runs.push({ kind: 'map', layer, offset: first * PAGE, length: count * PAGE })
  }
  if (found <= maxMaps) return runs
  const longest = [...runs].sort((a, b) => b.length - a.length)
  const mapped = new Set(longest.slice(0, maxMaps))
  return runs.map(run => (mapped.has(run) ? run : { ...run, kind: 'read' }))
}
