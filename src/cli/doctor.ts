/** `vitrine doctor`: can this host run machines, with what, and what to do about what is missing. */
import type { AcceleratorReport, Finding } from '../accel/contract.ts'
import { type Diagnosis, diagnose } from '../accel/doctor.ts'
import { type Command, JSON_OPTION } from './command.ts'
import { printJson } from './output.ts'

export const doctorCommand: Command = {
  name: 'doctor',
  summary: 'Look at what this host can run machines with, and what is missing.',
  usage: '[--json]',
  options: { json: JSON_OPTION },
  examples: ['vitrine doctor', 'vitrine doctor --json | jq .chosen'],
  async run(args) {
    args.atMost(0)
    const diagnosis = await diagnose()
    if (args.flag('json')) printJson(diagnosis)
    else process.stdout.write(`${formatDiagnosis(diagnosis).join('\n')}\n`)
    return diagnosis.chosen === null ? 1 : 0
  },
}

export function formatDiagnosis({ host, accelerators, chosen, reason }: Diagnosis): string[] {
  return [
    `Host: ${host.platform} ${host.kernel} on ${host.arch}, ${host.cpu} (${host.cpus} CPUs), ${host.memoryMib} MiB, Node ${host.node}`,
    ...accelerators.flatMap(report => ['', ...formatReport(report)]),
    '',
    chosen === null ? `No machine can run here: ${reason}.` : `Machines will use ${chosen} (${reason}).`,
  ]
}

function formatReport({ name, usable, runsMicroGuests, summary, findings }: AcceleratorReport): string[] {
  const verdict = usable ? 'usable' : runsMicroGuests ? 'micro-guests only' : 'not usable'
  const width = Math.max(...findings.map(finding => finding.what.length), 0)
  return [`${name}: ${verdict}: ${summary}`, ...findings.flatMap(finding => formatFinding(finding, width))]
}

function formatFinding({ what, ok, detail, remedy }: Finding, width: number): string[] {
  const line = `  ${ok ? 'ok ' : 'no '} ${what.padEnd(width)}  ${detail}`
  return ok || remedy === undefined ? [line] : [line, `      ${''.padEnd(width)}  -> ${remedy}`]
}
