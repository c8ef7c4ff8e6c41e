/**
 * How the pages of a chain of memory layers become guest RAM: the fewest mappings that show the right bytes.
 *
 * In every layer page i of RAM is at byte i * 4096 of the file, so a run of pages from one layer is one mapping, and a gap
 * of zero pages inside it can stay in the mapping when the file has a hole there. Past a number of mappings the shortest
 * runs are read instead: the kernel has a limit, and each mapping costs a few microseconds at every restore and exit.
 */
import { PAGE } from './hash.ts'
import { PageSet } from './page-set.ts'

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

/** Runs in RAM order that do not overlap; what is in none of them is zeros. */
export function planRuns(layers: readonly PlannedLayer[], pages: number, maxMaps: number): PlannedRun[] {
  const view = viewOf(layers, pages)
  let gap = SMALL_GAP
  let runs = findRuns(layers, view, pages, gap)
  while (runs.length > maxMaps && gap < LARGEST_GAP) {
    gap *= 16
    runs = findRuns(layers, view, pages, gap)
  }
  if (runs.length <= maxMaps) return runs
  const longest = [...runs].sort((a, b) => b.length - a.length)
  const mapped = new Set(longest.slice(0, maxMaps))
  return runs.map(run => (mapped.has(run) ? run : { ...run, kind: 'read' }))
}

interface View {
  /** For each layer the pages whose data shows: no layer above says anything of them. */
  readonly shown: readonly PageSet[]
  /** All of them. */
  readonly any: PageSet
}

/** By whole words: this is done at every restore, whatever the size of the memory. */
function viewOf(layers: readonly PlannedLayer[], pages: number): View {
  if (layers.length === 1) return { shown: [layers[0]!.data], any: layers[0]!.data }
  const shown = layers.map(() => new PageSet(pages))
  const any = new PageSet(pages)
  const open = new Uint32Array(any.words.length).fill(0xffff_ffff)
  for (let layer = layers.length - 1; layer >= 0; layer--) {
    const { data, zero } = layers[layer]!
    const { words } = shown[layer]!
    for (let word = 0; word < open.length; word++) {
      words[word] = data.words[word]! & open[word]!
      any.words[word]! |= words[word]!
      open[word]! &= ~(data.words[word]! | zero.words[word]!)
    }
  }
  return { shown, any }
}

function findRuns(layers: readonly PlannedLayer[], { shown, any }: View, pages: number, gap: number): PlannedRun[] {
  const runs: PlannedRun[] = []
  for (let first = any.next(0, true); first < pages; ) {
    const layer = shown.findIndex(set => set.has(first))
    const own = shown[layer]!
    let end = own.next(first, false)
    let after = any.next(end, true)
    // The same layer goes on behind a gap of zeros, and its file has a hole there.
    while (after > end && after <= end + gap && own.has(after) && layers[layer]!.data.isFree(end, after)) {
      end = own.next(after, false)
      after = any.next(end, true)
    }
    runs.push({ kind: 'map', layer, offset: first * PAGE, length: (end - first) * PAGE })
    first = after
  }
  return runs
}
