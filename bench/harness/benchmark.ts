/**
 * What a benchmark is. A file `bench/NAME.bench.ts` or `bench/NAME/NAME.bench.ts` exports one as `benchmark`; the
 * harness finds it by that file name.
 *
 * A benchmark opens a bench, which holds the contestants: ours, and the peers that do the same work. The harness asks
 * them for samples in turn, so that whatever else the machine is doing falls on all of them alike.
 */

/** Whether a small or a large value is a good one. */
export type Better = 'lower' | 'higher'

export interface Metric {
  readonly name: string
  readonly unit: string
  readonly better: Better
}

/** One measurement: a value for each metric that was measured, by the metric's name. */
export type Sample = Readonly<Record<string, number>>

export interface Contestant {
  /** `ours`, or the peer's name. */
  readonly name: string
  /** Does the work once and measures it. May leave out metrics that it does not have. */
  sample(): Promise<Sample>
}

/** A peer that cannot be measured here. It is printed, and recorded in the JSON. */
export interface MissingPeer {
  readonly name: string
  readonly reason: string
}

export interface Bench {
  readonly contestants: readonly Contestant[]
  readonly missing?: readonly MissingPeer[]
  /** The names of the metrics that ours gives, when the work that was chosen has not all of them. */
  readonly measures?: readonly string[]
  /** Where the work runs, when that is not this machine itself, and other facts that belong with the figures. */
  readonly host?: Readonly<Record<string, string | number>>
  close?(): Promise<void>
}

export interface BenchContext {
  readonly runs: number
  /** The parts of the work that the user chose, for benchmarks that have parts. */
  readonly only?: readonly string[] | undefined
  /** Says what is going on; goes to standard error. */
  log(message: string): void
}

export interface Benchmark {
  /** One line for the list. */
  readonly summary: string
  readonly metrics: readonly Metric[]
  /** How many samples of each contestant count, when the user does not say. Default 9. */
  readonly runs?: number
  /** How many samples of each contestant are taken first and thrown away. Default 1. */
  readonly warmup?: number
  open(context: BenchContext): Promise<Bench>
}

/** The contestant that all others are compared with. */
export const OURS = 'ours'
