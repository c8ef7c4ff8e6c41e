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

/** Reads a report. One that is not there, or that fails without a failed test (a file that does not load), is a failure. */
export function readCounts(file: string): TestCounts {
  if (!existsSync(file)) return { ...NO_TESTS, failed: 1 }
  const report = JSON.parse(readFileSync(file, 'utf8')) as VitestReport
  const failed = report.numFailedTests === 0 && !report.success ? 1 : report.numFailedTests
  return { passed: report.numPassedTests, failed, skipped: report.numPendingTests + report.numTodoTests }
}
