/**
 * How the pages of a chain of memory layers become guest RAM: the fewest mappings that show the right bytes.
 *
 * In every layer page i of RAM is at byte i * 4096 of the file, so a run of pages from one layer is one mapping, and a gap
 * of zero pages inside it can stay in the mapping when the file has a hole there. Past a number of mappings the shortest
 * runs are read instead: the kernel has a limit, and each mapping costs a few microseconds at every restore and exit.
 */
import { PAGE } from './hash.ts'
import type { PageSet } from './page-set.ts'

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
const NOBODY = 0xffff

/** Runs in RAM order that do not overlap; what is in none of them is zeros. */
export function planRuns(layers: readonly PlannedLayer[], pages: number, maxMaps: number): PlannedRun[] {
  const owner = ownersOf(layers, pages)
  let gap = SMALL_GAP
  let runs = findRuns(layers, owner, pages, gap)
  while (runs.length > maxMaps && gap < LARGEST_GAP) {
    gap *= 16
    runs = findRuns(layers, owner, pages, gap)
  }
  if (runs.length <= maxMaps) return runs
  const longest = [...runs].sort((a, b) => b.length - a.length)
  const mapped = new Set(longest.slice(0, maxMaps))
  return runs.map(run => (mapped.has(run) ? run : { ...run, kind: 'read' }))
}

/** For each page the index of the layer whose data shows, or NOBODY. */
function ownersOf(layers: readonly PlannedLayer[], pages: number): Uint16Array {
  const owner = new Uint16Array(pages).fill(NOBODY)
  const words = Math.ceil(pages / 32)
  for (let word = 0; word < words; word++) {
    let open = -1
    const first = word * 32
    for (let layer = layers.length - 1; layer >= 0 && open !== 0; layer--) {
      const { data, zero } = layers[layer]!
      const shown = data.words[word]! & open
      if (shown === -1) owner.fill(layer, first, first + 32)
      else {
        for (let left = shown; left !== 0; left &= left - 1) owner[first + 31 - Math.clz32(left & -left)] = layer
      }
      open &= ~(data.words[word]! | zero.words[word]!)
    }
  }
  return owner
}

function findRuns(layers: readonly PlannedLayer[], owner: Uint16Array, pages: number, gap: number): PlannedRun[] {
  const runs: PlannedRun[] = []
  for (let page = 0; page < pages; ) {
    const layer = owner[page]!
    if (layer === NOBODY) {
      page++
      continue
    }
    const first = page
    const { data } = layers[layer]!
    let end = page
    for (;;) {
      while (end < pages && owner[end] === layer) end++
      let after = end
      const limit = Math.min(pages, end + gap)
      while (after < limit && owner[after] === NOBODY) after++
      // The same layer goes on behind a gap of zeros, and its file has a hole there.
      if (after === end || after >= pages || owner[after] !== layer || !data.isFree(end, after)) break
      end = after
    }
    runs.push({ kind: 'map', layer, offset: first * PAGE, length: (end - first) * PAGE })
    page = end
  }
  return runs
}
