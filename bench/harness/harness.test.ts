import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import type { Bench, Benchmark } from './benchmark.ts'
import { findBenchmarks, loadBenchmark } from './find.ts'
import { runBenchmark } from './run.ts'
import { median, ratio, spread, summarise } from './statistics.ts'
import { formatNumber, formatTable } from './table.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-bench-'))
afterAll(() => rmSync(folder, { recursive: true }))

describe('statistics', () => {
  it('takes the middle value, or the mean of the middle two, whatever the order', () => {
    expect(median([9, 1, 5])).toBe(5)
    expect(median([10, 2, 4, 100])).toBe(7)
    expect(median([3])).toBe(3)
    expect(() => median([])).toThrow(RangeError)
  })

  it('sorts numbers as numbers and leaves its input alone', () => {
    const values = [10, 9, 100]
    expect(summarise(values)).toEqual({ median: 10, min: 9, max: 100 })
    expect(values).toEqual([10, 9, 100])
  })

  it('refuses samples that are not numbers', () => {
    expect(() => summarise([1, Number.NaN])).toThrow(/NaN/)
  })

  it('gives a ratio of 1 or less when ours is as good or better, in both directions', () => {
    expect(ratio(2, 4, 'lower')).toBe(0.5)
    expect(ratio(4, 2, 'lower')).toBe(2)
    expect(ratio(2, 4, 'higher')).toBe(2)
    expect(ratio(4, 2, 'higher')).toBe(0.5)
    expect(ratio(0, 0, 'lower')).toBe(1)
    expect(ratio(1, 0, 'lower')).toBeNull()
  })

  it('measures spread against the median', () => {
    expect(spread({ median: 10, min: 8, max: 13 })).toBe(0.5)
    expect(spread({ median: 0, min: 0, max: 0 })).toBe(0)
  })
})

/** A benchmark whose contestants give prepared values and write down who was asked. */
function scripted(values: Record<string, Record<string, number>[]>, extra: Partial<Bench> = {}) {
  const order: string[] = []
  let closed = 0
  const benchmark: Benchmark = {
    summary: 'scripted',
    warmup: 1,
    metrics: [
      { name: 'port exit', unit: 'us', better: 'lower' },
      { name: 'throughput', unit: 'MiB/s', better: 'higher' },
    ],
    open: async () => ({
      contestants: Object.entries(values).map(([name, samples]) => ({
        name,
        sample: async () => {
          order.push(name)
          return samples.shift()!
        },
      })),
      close: async () => void closed++,
      ...extra,
    }),
  }
  return { benchmark, order, closedTimes: () => closed }
}

const run = (benchmark: Benchmark, runs: number) =>
  runBenchmark(benchmark, { name: 'exits', runs, host: { cpu: 'test' }, log: () => {} })

describe('a run', () => {
  it('interleaves, rotates, throws the warm-up away, and writes the agreed JSON', async () => {
    const sample = (port: number, through: number) => ({ 'port exit': port, throughput: through })
    const { benchmark, order, closedTimes } = scripted(
      {
        ours: [sample(1000, 1000), sample(3, 10), sample(1, 30), sample(2, 20)],
        c: [sample(1000, 1000), sample(1, 40), sample(1, 40), sample(1, 40)],
      },
      { missing: [{ name: 'qemu', reason: 'not installed' }], host: { testbed: 'emulated' } },
    )
    const report = await run(benchmark, 3)
    expect(order).toEqual(['ours', 'c', 'ours', 'c', 'c', 'ours', 'ours', 'c'])
    expect(closedTimes()).toBe(1)
    expect(JSON.parse(JSON.stringify(report))).toEqual({
      bench: 'exits',
      host: { cpu: 'test', testbed: 'emulated' },
      results: [
        {
          metric: 'port exit',
          unit: 'us',
          better: 'lower',
          runs: 3,
          ours: { median: 2, min: 1, max: 3 },
          peers: { c: { median: 1, min: 1, max: 1 } },
          ratio: { c: 2 },
        },
        {
          metric: 'throughput',
          unit: 'MiB/s',
          better: 'higher',
          runs: 3,
          ours: { median: 20, min: 10, max: 30 },
          peers: { c: { median: 40, min: 40, max: 40 } },
          ratio: { c: 2 },
        },
      ],
      missing: { qemu: 'not installed' },
    })
    const table = formatTable(report)
    expect(table).toContain('qemu: not measured: not installed')
    expect(table).toContain('2.00x')
  })

  it('leaves a peer out of the metrics that it does not have', async () => {
    const { benchmark } = scripted({
      ours: [{ 'port exit': 1, throughput: 1 }],
      c: [{ 'port exit': 1 }],
    })
    const report = await run({ ...benchmark, warmup: 0 }, 1)
    expect(report.results.map(result => Object.keys(result.peers))).toEqual([['c'], []])
  })

  it('fails, and closes the bench, when a sample has an unknown metric or ours lacks one', async () => {
    const unknown = scripted({ ours: [{ 'port exi': 1 }] })
    await expect(run({ ...unknown.benchmark, warmup: 0 }, 1)).rejects.toThrow(/port exi/)
    expect(unknown.closedTimes()).toBe(1)
    const lacking = scripted({ ours: [{ 'port exit': 1 }] })
    await expect(run({ ...lacking.benchmark, warmup: 0 }, 1)).rejects.toThrow(/no value for 'throughput'/)
  })

  it('reports only what the chosen work measures', async () => {
    const { benchmark } = scripted({ ours: [{ 'port exit': 1 }], c: [{ 'port exit': 1 }] }, { measures: ['port exit'] })
    const report = await run({ ...benchmark, warmup: 0 }, 1)
    expect(report.results.map(({ metric }) => metric)).toEqual(['port exit'])
  })

  it('fails when ours is not a contestant', async () => {
    await expect(run(scripted({ c: [] }).benchmark, 1)).rejects.toThrow(/'ours'/)
  })
})

describe('the table', () => {
  it('shows four significant digits', () => {
    expect([0, 0.012345, 1.23456, 12345.6].map(formatNumber)).toEqual(['0', '0.01235', '1.235', '12346'])
  })
})

describe('finding benchmarks', () => {
  it('takes files called NAME.bench.ts, in folders too, and refuses two of one name', async () => {
    writeFileSync(join(folder, 'one.bench.ts'), 'export const benchmark = { summary: "one" }')
    mkdirSync(join(folder, 'two'))
    writeFileSync(join(folder, 'two', 'two.bench.ts'), 'export const other = 1')
    expect([...findBenchmarks(folder).keys()]).toEqual(['one', 'two'])
    expect((await loadBenchmark(join(folder, 'one.bench.ts'))).summary).toBe('one')
    await expect(loadBenchmark(join(folder, 'two', 'two.bench.ts'))).rejects.toThrow(/does not export/)
    writeFileSync(join(folder, 'two', 'one.bench.ts'), '')
    expect(() => findBenchmarks(folder)).toThrow(/two benchmarks/)
  })
})
