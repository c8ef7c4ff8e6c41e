import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, describe, expect, it } from 'vitest'
import { addCounts, formatCounts, readCounts } from './test-counts.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-counts-'))
afterAll(() => rmSync(folder, { recursive: true }))

function counted(report: object, status: number | null = 0) {
  const file = join(folder, 'report.json')
  writeFileSync(file, JSON.stringify(report))
  return readCounts(file, status)
}

describe('counting tests', () => {
  const report = { success: true, numPassedTests: 5, numFailedTests: 0, numPendingTests: 2, numTodoTests: 1 }

  it('reads a report and prints the line', () => {
    expect(formatCounts(addCounts(counted(report), { passed: 1, failed: 2, skipped: 3 }))).toBe(
      '6 passed, 2 failed, 6 skipped',
    )
  })

  it('counts a failure where there is no report, or where a file did not load', () => {
    expect(readCounts(join(folder, 'absent.json'), 0).failed).toBe(1)
    expect(counted({ ...report, success: false })).toEqual({ passed: 5, failed: 1, skipped: 3 })
    expect(counted({ ...report, success: false, numFailedTests: 4 }).failed).toBe(4)
  })

  it('counts a failure where only the exit status tells of one', () => {
    expect(counted(report, 1)).toEqual({ passed: 5, failed: 1, skipped: 3 })
    expect(counted(report, null).failed).toBe(1)
    expect(counted({ ...report, numFailedTests: 4 }, 1).failed).toBe(4)
  })

  it('counts a promise that vitest finds rejected, whose report may call it a success', { timeout: 60_000 }, () => {
    const file = join(folder, 'rejected.test.mjs')
    const vitest = fileURLToPath(new URL('../node_modules/vitest', import.meta.url))
    writeFileSync(
      file,
      `import { it } from '${vitest}/dist/index.js'\nit('passes', async () => { void Promise.reject(new Error('nobody looks')); await new Promise(r => setTimeout(r, 50)) })\n`,
    )
    const output = join(folder, 'rejected.json')
    const args = ['run', '--root', folder, '--reporter=json', `--outputFile.json=${output}`]
    const { status } = spawnSync(process.execPath, [join(vitest, 'vitest.mjs'), ...args], { cwd: folder })
    expect(status).not.toBe(0)
    expect(readCounts(output, status)).toEqual({ passed: 1, failed: 1, skipped: 0 })
  })
})
