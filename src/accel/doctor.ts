/** `vitrine doctor`: what this host offers, what will be used, and why. Probes every accelerator, prints nothing. */
import { arch, availableParallelism, cpus, platform, release, totalmem } from 'node:os'
import type { AcceleratorName, AcceleratorReport } from './contract.ts'
import { ACCELERATOR_VARIABLE, acceleratorNames, loadAccelerator } from './select.ts'

export interface Diagnosis {
  readonly host: {
    readonly platform: string
    readonly arch: string
    readonly kernel: string
    readonly node: string
    readonly cpu: string
    readonly cpus: number
    readonly memoryMib: number
  }
  /** In order of preference. */
  readonly accelerators: readonly AcceleratorReport[]
  /** What a machine would use now; null when there is nothing. */
  readonly chosen: AcceleratorName | null
  readonly reason: string
}

export async function diagnose(): Promise<Diagnosis> {
  const accelerators: AcceleratorReport[] = []
  for (const name of acceleratorNames()) accelerators.push(await (await loadAccelerator(name)).probe())
  return {
    host: {
      platform: platform(),
      arch: arch(),
      kernel: release(),
      node: process.version,
      cpu: cpus()[0]?.model.trim() ?? 'unknown',
      cpus: availableParallelism(),
      memoryMib: Math.floor(totalmem() / 2 ** 20),
    },
    accelerators,
    ...decide(accelerators, process.env[ACCELERATOR_VARIABLE]),
  }
}

/** The rule of `chooseAccelerator`, on reports that are there already. */
export function decide(
  reports: readonly AcceleratorReport[],
  wanted: string | undefined,
): Pick<Diagnosis, 'chosen' | 'reason'> {
  if (wanted !== undefined && wanted !== '' && wanted !== 'auto') {
    const report = reports.find(candidate => candidate.name === wanted)
    const asked = `${ACCELERATOR_VARIABLE} asks for ${wanted}`
    if (!report) return { chosen: null, reason: `${asked}, which does not exist` }
    if (!report.runsMicroGuests) return { chosen: null, reason: `${asked}, but ${report.summary}` }
    return { chosen: report.name, reason: asked }
  }
  const best = reports.find(report => report.usable)
  if (!best) return { chosen: null, reason: 'no accelerator can run an ordinary kernel here' }
  const better = reports.slice(0, reports.indexOf(best)).map(report => `${report.name}: ${report.summary}`)
  return { chosen: best.name, reason: better.length === 0 ? best.summary : better.join('; ') }
}
