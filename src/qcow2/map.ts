/** The runs of a disk: which image of its chain has them, and where. The same facts as `qemu-img map --output=json`. */
import type { BlockImage } from './block-image.ts'
import { chainExtent } from './chain.ts'

/** A run of bytes and the file of the chain that holds them; the fields are those of `qemu-img map`. */
export interface MapEntry {
  start: number
  length: number
  depth: number
  present: boolean
  zero: boolean
  data: boolean
  compressed: boolean
  offset?: number
}

const STEP = 2 ** 40

/** Neighbouring runs that say the same are one. */
export function* mapDisk(image: BlockImage): Generator<MapEntry> {
  let last: MapEntry | undefined
  for (let at = 0; at < image.sizeBytes; ) {
    const extent = chainExtent(image, at, Math.min(STEP, image.sizeBytes - at))
    const entry: MapEntry = {
      start: at,
      length: extent.length,
      depth: extent.depth,
      present: extent.present,
      zero: extent.zero,
      data: extent.present && !extent.zero,
      compressed: extent.compressed,
      ...(extent.hostOffset >= 0 ? { offset: extent.hostOffset } : {}),
    }
    at += extent.length
    if (last && joins(last, entry)) last.length += entry.length
    else {
      if (last) yield last
      last = entry
    }
  }
  if (last) yield last
}

function joins(a: MapEntry, b: MapEntry): boolean {
  return (
    a.depth === b.depth &&
    a.present === b.present &&
    a.zero === b.zero &&
    a.data === b.data &&
    a.compressed === b.compressed &&
    (a.offset === undefined ? b.offset === undefined : b.offset === a.offset + a.length)
  )
}
