/** The parts of the benchmark, and the metrics of each. */
import type { Metric } from '../harness/benchmark.ts'

export const SIZES_MIB = [128, 512, 2048] as const
export const TOUCHED_PERCENT = [1, 50] as const
export const FORKS = [1, 10, 100] as const

export const saveMetric = (kind: 'full' | 'incremental', mib: number, percent: number, what: string): string =>
  `${kind} ${mib} MiB, ${percent} %: ${what}`
export const restoreMetric = (mib: number, what: string): string => `restore ${mib} MiB: ${what}`
export const forkMetric = (count: number, what: string): string => `fork ${count}: ${what}`

const lower = (name: string, unit: string): Metric => ({ name, unit, better: 'lower' })

const each = <T, Result>(list: readonly T[], make: (item: T) => readonly Result[]): Result[] => list.flatMap(make)

/** By the names that `--only` takes. A part for each size: the large ones take their time. */
export const PARTS: Readonly<Record<string, readonly Metric[]>> = {
  ...Object.fromEntries(
    SIZES_MIB.map(mib => [
      `save-${mib}`,
      [
        ...each(['full', 'incremental'] as const, kind =>
          each(TOUCHED_PERCENT, percent => [
            lower(saveMetric(kind, mib, percent, 'pause'), 'ms'),
            lower(saveMetric(kind, mib, percent, 'total'), 'ms'),
            lower(saveMetric(kind, mib, percent, 'written'), 'MiB'),
          ]),
        ),
        lower(restoreMetric(mib, 'process to running'), 'ms'),
        lower(restoreMetric(mib, 'to first exec'), 'ms'),
      ],
    ]),
  ),
  ...Object.fromEntries(
    FORKS.map(count => [
      `fork-${count}`,
      [
        lower(forkMetric(count, 'all answered'), 'ms'),
        lower(forkMetric(count, 'PSS each'), 'MiB'),
        lower(forkMetric(count, 'guest pages of its own, each'), 'MiB'),
        lower(forkMetric(count, 'processor time each'), 'ms'),
      ],
    ]),
  ),
  template: [
    lower('vitrine run -- true, cold', 'ms'),
    lower('vitrine run -- true, warm', 'ms'),
    { name: 'cold / warm', unit: 'x', better: 'higher' },
  ],
}
