/** The few statistics that a report needs. */
import type { Better } from './benchmark.ts'

export interface Summary {
  readonly median: number
  readonly min: number
  readonly max: number
}

/** The middle of the sorted values; of an even number of them, the mean of the middle two. */
export function median(values: readonly number[]): number {
  if (values.length === 0) throw new RangeError('no values to take a median of')
  const sorted = values.toSorted((a, b) => a - b)
  const middle = sorted.length >> 1
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2
}

export function summarise(values: readonly number[]): Summary {
  for (const value of values) if (!Number.isFinite(value)) throw new RangeError(`a sample is ${value}, not a number`)
  return { median: median(values), min: Math.min(...values), max: Math.max(...values) }
}

/** How far apart the extremes are, as a fraction of the median. */
export const spread = ({ median, min, max }: Summary): number => (median === 0 ? 0 : (max - min) / Math.abs(median))

/**
 * Ours against a peer so that 1.0 or less is always good: ours/peer when lower is better, peer/ours when higher is.
 * Two zeros are equal; anything against zero that is worse has no finite ratio, and gives null.
 */
export function ratio(ours: number, peer: number, better: Better): number | null {
  const [above, below] = better === 'lower' ? [ours, peer] : [peer, ours]
  if (below === 0) return above === 0 ? 1 : null
  return above / below
}
