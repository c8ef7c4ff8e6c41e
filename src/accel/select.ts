/**
 * The choice between accelerators: the only code that knows them by name. Each is loaded when it is first needed, so
 * that a machine pays for one of them only.
 */
import type { Accelerator, AcceleratorName, AcceleratorReport, Vcpu, VcpuTicket } from './contract.ts'
import { AcceleratorError } from './errors.ts'

interface Entry {
  readonly name: AcceleratorName
  load(): Promise<Accelerator>
  /** Opens a vCPU in its worker. */
  open(ticket: VcpuTicket): Promise<Vcpu>
}

/** In order of preference. */
const ENTRIES: readonly Entry[] = [
  {
    name: 'kvm',
    load: async () => (await import('../kvm/accelerator.ts')).kvmAccelerator,
    open: async ticket => (await import('../kvm/vcpu.ts')).openKvmVcpu(ticket),
  },
  {
    name: 'soft',
    load: async () => (await import('../soft/accelerator.ts')).softAccelerator,
    open: async ticket => (await import('../soft/lockstep.ts')).openSoftVcpu(ticket),
  },
]

/** Names an accelerator that is used instead of the best: `kvm`, `soft`. */
export const ACCELERATOR_VARIABLE = 'VITRINE_ACCEL'

export const acceleratorNames = (): AcceleratorName[] => ENTRIES.map(entry => entry.name)

function entryOf(name: string): Entry {
  const entry = ENTRIES.find(candidate => candidate.name === name)
  if (entry) return entry
  throw new AcceleratorError(
    'UNKNOWN',
    `there is no accelerator '${name}': choose one of ${acceleratorNames().join(', ')}`,
  )
}

/** The accelerator of that name, without asking whether it can run here. */
export const loadAccelerator = (name: string): Promise<Accelerator> => entryOf(name).load()

export interface Choice {
  /** Undefined when none can run an ordinary kernel. */
  readonly chosen: Accelerator | undefined
  /** Why, for people. */
  readonly reason: string
  /** What the probes found, as far as they were needed. */
  readonly reports: readonly AcceleratorReport[]
}

/**
 * Which accelerator to use: the one asked for, else the one that `VITRINE_ACCEL` names, else the first that its probe
 * calls usable. One that was asked for by name only has to run micro-guests: whoever names it knows why.
 */
export async function chooseAccelerator(
  wanted: string | undefined = process.env[ACCELERATOR_VARIABLE],
): Promise<Choice> {
  if (wanted !== undefined && wanted !== '' && wanted !== 'auto') {
    const accelerator = await loadAccelerator(wanted)
    const report = await accelerator.probe()
    const reason = `${wanted} was asked for`
    return { chosen: report.runsMicroGuests ? accelerator : undefined, reason, reports: [report] }
  }
  const reports: AcceleratorReport[] = []
  for (const entry of ENTRIES) {
    const accelerator = await entry.load()
    const report = await accelerator.probe()
    reports.push(report)
    if (report.usable) return { chosen: accelerator, reason: `${entry.name}: ${report.summary}`, reports }
  }
  return { chosen: undefined, reason: 'no accelerator can run an ordinary kernel here', reports }
}

/** As `chooseAccelerator`, but throws an error with the remedies when there is nothing to choose. */
export async function requireAccelerator(wanted?: string): Promise<Accelerator> {
  const { chosen, reason, reports } = await chooseAccelerator(wanted)
  if (chosen) return chosen
  const why = reports.map(({ name, summary, findings }) => {
    const remedy = findings.find(finding => finding.remedy)?.remedy
    return `${name}: ${summary}${remedy === undefined ? '' : ` (${remedy})`}`
  })
  throw new AcceleratorError(reports.length === 1 ? 'UNUSABLE' : 'NONE', `${reason}, but ${why.join('; ')}`)
}

/** In a vCPU's worker: the vCPU that a ticket stands for. */
export const openVcpu = (ticket: VcpuTicket): Promise<Vcpu> => entryOf(ticket.accelerator).open(ticket)
