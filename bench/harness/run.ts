/** Runs a benchmark: warm-up, then rounds in which every contestant is sampled once, in an order that rotates. */
import { type Bench, type BenchContext, type Benchmark, type Contestant, OURS } from './benchmark.ts'
import { ratio, type Summary, summarise } from './statistics.ts'

export interface MetricResult {
  readonly metric: string
  readonly unit: string
  readonly better: 'lower' | 'higher'
  /** How many samples of ours the summary is made of. */
  readonly runs: number
  readonly ours: Summary
  readonly peers: Readonly<Record<string, Summary>>
  /** 1.0 or less is good, whichever way the metric goes; null when the peer's figure is zero and ours is not. */
  readonly ratio: Readonly<Record<string, number | null>>
}

/** The JSON file. */
export interface Report {
  readonly bench: string
  readonly host: Readonly<Record<string, string | number>>
  readonly results: readonly MetricResult[]
  /** Peers that could not be measured, and why. */
  readonly missing: Readonly<Record<string, string>>
}

export interface RunOptions {
  readonly name: string
  readonly runs?: number
  readonly only?: readonly string[] | undefined
  readonly host: Readonly<Record<string, string | number>>
  log(message: string): void
}

type Samples = Map<Contestant, Map<string, number[]>>

async function sampleRound(bench: Bench, benchmark: Benchmark, round: number, samples: Samples | null): Promise<void> {
  const { contestants } = bench
  for (let i = 0; i < contestants.length; i++) {
    const contestant = contestants[(i + round) % contestants.length]!
    const sample = await contestant.sample()
    for (const [name, value] of Object.entries(sample)) {
      if (!benchmark.metrics.some(metric => metric.name === name))
        throw new Error(`${contestant.name} gave a value for '${name}', which is no metric of this benchmark`)
      samples?.get(contestant)?.get(name)?.push(value)
    }
  }
}

/** Fails when ours is not among the contestants, and when two have one name. */
function checkContestants(bench: Bench): void {
  const names = [...bench.contestants.map(c => c.name), ...(bench.missing ?? []).map(m => m.name)]
  if (new Set(names).size !== names.length) throw new Error(`two contestants have one name: ${names.join(', ')}`)
  if (!bench.contestants.some(c => c.name === OURS)) throw new Error(`no contestant is called '${OURS}'`)
}

export function summariseSamples(
  benchmark: Pick<Benchmark, 'metrics'>,
  ours: ReadonlyMap<string, readonly number[]>,
  peers: ReadonlyMap<string, ReadonlyMap<string, readonly number[]>>,
): MetricResult[] {
  const results: MetricResult[] = []
  for (const { name, unit, better } of benchmark.metrics) {
    const values = ours.get(name) ?? []
    if (values.length === 0) throw new Error(`ours gave no value for '${name}'`)
    const own = summarise(values)
    const peerSummaries: Record<string, Summary> = {}
    const ratios: Record<string, number | null> = {}
    for (const [peer, samples] of peers) {
      const peerValues = samples.get(name) ?? []
      if (peerValues.length === 0) continue
      peerSummaries[peer] = summarise(peerValues)
      ratios[peer] = ratio(own.median, peerSummaries[peer].median, better)
    }
    results.push({ metric: name, unit, better, runs: values.length, ours: own, peers: peerSummaries, ratio: ratios })
  }
  return results
}

export async function runBenchmark(benchmark: Benchmark, options: RunOptions): Promise<Report> {
  const runs = options.runs ?? benchmark.runs ?? 9
  const context: BenchContext = { runs, only: options.only, log: options.log }
  const bench = await benchmark.open(context)
  try {
    checkContestants(bench)
    const missing = Object.fromEntries((bench.missing ?? []).map(({ name, reason }) => [name, reason]))
    for (const [name, reason] of Object.entries(missing)) options.log(`${name} is missing: ${reason}`)
    const samples: Samples = new Map(
      bench.contestants.map(c => [c, new Map(benchmark.metrics.map(metric => [metric.name, []]))]),
    )
    const warmup = benchmark.warmup ?? 1
    for (let round = 0; round < warmup; round++) {
      options.log(`warm-up ${round + 1}/${warmup}`)
      await sampleRound(bench, benchmark, round, null)
    }
    for (let round = 0; round < runs; round++) {
      options.log(`run ${round + 1}/${runs}`)
      await sampleRound(bench, benchmark, round, samples)
    }
    const byName = (name: string) => samples.get(bench.contestants.find(c => c.name === name)!)!
    const peers = new Map(bench.contestants.filter(c => c.name !== OURS).map(c => [c.name, byName(c.name)]))
    const { measures } = bench
    const metrics = benchmark.metrics.filter(({ name }) => measures === undefined || measures.includes(name))
    return {
      bench: options.name,
      host: { ...options.host, ...bench.host },
      results: summariseSamples({ metrics }, byName(OURS), peers),
      missing,
    }
  } finally {
    await bench.close?.()
  }
}
