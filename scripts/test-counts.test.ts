import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { addCounts, formatCounts, readCounts } from './test-counts.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-counts-'))
afterAll(() => rmSync(folder, { recursive: true }))

function counted(report: object) {
  const file = join(folder, 'report.json')
  writeFileSync(file, JSON.stringify(report))
  return readCounts(file)
}

describe('counting tests', () => {
  const report = { success: true, numPassedTests: 5, numFailedTests: 0, numPendingTests: 2, numTodoTests: 1 }

  it('reads a report and prints the line', () => {
    expect(formatCounts(addCounts(counted(report), { passed: 1, failed: 2, skipped: 3 }))).toBe(
      '6 passed, 2 failed, 6 skipped',
    )
  })

  it('counts a failure where there is no report, or where a file did not load', () => {
    expect(readCounts(join(folder, 'absent.json')).failed).toBe(1)
    expect(counted({ ...report, success: false })).toEqual({ passed: 5, failed: 1, skipped: 3 })
    expect(counted({ ...report, success: false, numFailedTests: 4 }).failed).toBe(4)
  })
})
