/** How many tests passed, failed and were skipped, from vitest's JSON report. */
import { existsSync, readFileSync } from 'node:fs'

export interface TestCounts {
  readonly passed: number
  readonly failed: number
  readonly skipped: number
}

export const NO_TESTS: TestCounts = { passed: 0, failed: 0, skipped: 0 }

export const addCounts = (a: TestCounts, b: TestCounts): TestCounts => ({
  passed: a.passed + b.passed,
  failed: a.failed + b.failed,
  skipped: a.skipped + b.skipped,
})

export const formatCounts = ({ passed, failed, skipped }: TestCounts): string =>
  `${passed} passed, ${failed} failed, ${skipped} skipped`

interface VitestReport {
  readonly success: boolean
  readonly numPassedTests: number
  readonly numFailedTests: number
  readonly numPendingTests: number
  readonly numTodoTests: number
}

/**
 * Reads a report. One that is not there is a failure, and so is one without a failed test when vitest failed all the same: a file that does
 * not load, a promise rejected between the tests (which the report itself calls a success), a signal.
 */
export function readCounts(file: string, status: number | null): TestCounts {
  if (!existsSync(file)) return { ...NO_TESTS, failed: 1 }
  const report = JSON.parse(readFileSync(file, 'utf8')) as VitestReport
  const failed = report.numFailedTests === 0 && (!report.success || status !== 0) ? 1 : report.numFailedTests
  return { passed: report.numPassedTests, failed, skipped: report.numPendingTests + report.numTodoTests }
}
