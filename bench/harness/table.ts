/** A report as a table for people. */
import type { MetricResult, Report } from './run.ts'
import { type Summary, spread } from './statistics.ts'

/** Four significant digits, without an exponent. */
export function formatNumber(value: number): string {
  if (value === 0) return '0'
  const digits = Math.max(0, 3 - Math.floor(Math.log10(Math.abs(value))))
  return value.toFixed(Math.min(digits, 6))
}

const formatRange = (summary: Summary): string =>
  `${formatNumber(summary.min)}..${formatNumber(summary.max)} (${Math.round(spread(summary) * 100)} %)`

function rowsOf(result: MetricResult): string[][] {
  const { metric, unit, better, runs } = result
  const rows = [[metric, 'ours', formatNumber(result.ours.median), unit, formatRange(result.ours), '', `${runs} runs`]]
  for (const [peer, summary] of Object.entries(result.peers)) {
    const ratio = result.ratio[peer]
    const shown = ratio === null || ratio === undefined ? '-' : `${ratio.toFixed(2)}x`
    rows.push(['', peer, formatNumber(summary.median), unit, formatRange(summary), shown, `${better} is better`])
  }
  return rows
}

export function formatTable(report: Report): string {
  const header = ['metric', 'who', 'median', 'unit', 'min..max (spread)', 'ours vs it', '']
  const rows = [header, ...report.results.flatMap(rowsOf)]
  const widths = header.map((_, column) => Math.max(...rows.map(row => row[column]!.length)))
  const right = new Set([2, 5])
  const lines = rows.map(row =>
    row
      .map((cell, i) => (right.has(i) ? cell.padStart(widths[i]!) : cell.padEnd(widths[i]!)))
      .join('  ')
      .trimEnd(),
  )
  lines.splice(1, 0, widths.map(width => '-'.repeat(width)).join('  '))
  for (const [name, reason] of Object.entries(report.missing)) lines.push(`${name}: not measured: ${reason}`)
  lines.push('ours vs it: 1.00x or less is good, whichever way the metric goes')
  const host = Object.entries(report.host).map(([key, value]) => `${key} ${value}`)
  return [`${report.bench} (${host.join(', ')})`, ...lines].join('\n')
}
