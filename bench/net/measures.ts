/** What is measured in a guest: iperf3 both ways with 1 and 8 streams, requests and answers, connections, ping. */
import type { Metric, Sample } from '../harness/benchmark.ts'
import { GATEWAY, GuestHangs, type NetGuest } from './guests.ts'

const LIMIT_MS = 60_000
const ATTEMPTS = 3

export interface ServerPorts {
  readonly iperf: number
  readonly pingpong: number
}

/** What `--only` can choose. */
export type Part = 'throughput' | 'requests' | 'connections' | 'ping' | 'frames'

interface Measure {
  readonly part: Part
  readonly metric: Metric
  command(ports: ServerPorts): string
  read(output: string): number
}

const throughput = (name: string, args: string): Measure => ({
  part: 'throughput',
  metric: { name, unit: 'Mbit/s', better: 'higher' },
  command: ({ iperf }) => `iperf3 -J -c ${GATEWAY} -p ${iperf} -t 2 -O 1 ${args}`,
  read: output => {
    const report = JSON.parse(output.slice(output.indexOf('{'), output.lastIndexOf('}') + 1)) as {
      error?: string
      end: { sum_received: { bits_per_second: number } }
    }
    if (report.error !== undefined) throw new Error(`iperf3: ${report.error}`)
    return report.end.sum_received.bits_per_second / 1e6
  },
})

const rate = (part: 'requests' | 'connections', kind: string): Measure => ({
  part,
  metric: { name: `guest: ${part}`, unit: '/s', better: 'higher' },
  command: ({ pingpong }) => `pingpong ${kind} ${GATEWAY} ${pingpong} 1500`,
  read: output => Number(/RATE ([\d.]+)/.exec(output)?.[1]),
})

const MEASURES: readonly Measure[] = [
  throughput('guest: up, 1 stream', ''),
  throughput('guest: down, 1 stream', '-R'),
  throughput('guest: up, 8 streams', '-P 8'),
  throughput('guest: down, 8 streams', '-P 8 -R'),
  rate('requests', 'rr'),
  rate('connections', 'crr'),
  {
    part: 'ping',
    metric: { name: 'guest: ping', unit: 'us', better: 'lower' },
    command: () => `ping -q -c 30 -i 0.05 ${GATEWAY}`,
    read: output => Number(/= [\d.]+\/([\d.]+)\//.exec(output)?.[1]) * 1000,
  },
]

export const GUEST_METRICS: readonly Metric[] = MEASURES.map(({ metric }) => metric)

/** The names of what the chosen parts measure in a guest. */
export const measuredIn = (parts: readonly Part[]): string[] =>
  MEASURES.filter(({ part }) => parts.includes(part)).map(({ metric }) => metric.name)

/** A guest that can be had anew when a measurement hangs in it. */
export interface Renewable {
  readonly guest: NetGuest
  /** Says why, and boots another one. */
  renew(why: string): Promise<void>
}

/** A sample of the chosen parts; a measure that a network cannot do (passt without rights to ping) is left out. */
export async function measureGuest(on: Renewable, ports: ServerPorts, parts: readonly Part[]): Promise<Sample> {
  const sample: Record<string, number> = {}
  for (const measure of MEASURES) {
    if (!parts.includes(measure.part)) continue
    const value = await measureOnce(on, ports, measure)
    if (value !== undefined) sample[measure.metric.name] = value
  }
  return sample
}

/** Undefined: this network cannot do it, or not now; that ours could never do it is for the harness to refuse. */
async function measureOnce(on: Renewable, ports: ServerPorts, measure: Measure): Promise<number | undefined> {
  for (let attempt = 1; ; attempt++) {
    try {
      const value = measure.read(await on.guest.run(measure.command(ports), LIMIT_MS))
      return Number.isFinite(value) ? value : undefined
    } catch (error) {
      if (measure.part === 'ping' && !(error instanceof GuestHangs)) return undefined
      await on.renew(`${measure.metric.name}: ${(error as Error).message}`)
      if (attempt === ATTEMPTS) return undefined
    }
  }
}
