/**
 * `npm test`: everything. Installs what the tests need (or says what to install), builds, type-checks, lints, checks
 * formatting, and runs the unit tests, the tests that boot guests on the software CPU, and the KVM tests in the emulated
 * AMD host. The last line counts them all.
 */
import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { testKvm } from './kvm-tests.ts'
import { provision } from './provision.ts'
import { addCounts, formatCounts, NO_TESTS, readCounts, type TestCounts } from './test-counts.ts'

const ROOT = fileURLToPath(new URL('..', import.meta.url))

let total = NO_TESTS
const reports = mkdtempSync(join(tmpdir(), 'vitrine-test-'))
// However it ends, and an exit runs the other handlers too: those of the emulated host, which end QEMU and remove what it wrote.
process.once('exit', () => rmSync(reports, { recursive: true, force: true }))
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => process.exit(130))

function log(message: string): void {
  console.log(`test: ${message}`)
}

function finish(): never {
  console.log(formatCounts(total))
  process.exit(total.failed > 0 ? 1 : 0)
}

function timed<T>(what: string, result: T, began: number): T {
  log(`${what}: ${((Date.now() - began) / 1000).toFixed(0)} s`)
  return result
}

/** A step that the tests cannot do without: its failure counts as one and ends the run. */
function step(...[command, ...args]: [string, ...string[]]): void {
  const began = Date.now()
  const { status } = spawnSync(command, args, { cwd: ROOT, stdio: 'inherit' })
  timed([command, ...args].join(' '), status, began)
  if (status === 0) return
  total = addCounts(total, { ...NO_TESTS, failed: 1 })
  finish()
}

function vitest(project: string): TestCounts {
  const report = join(reports, `${project}.json`)
  const began = Date.now()
  const args = ['run', '--project', project, '--reporter=default', '--reporter=json']
  const { status } = spawnSync(join(ROOT, 'node_modules/.bin/vitest'), [...args, `--outputFile.json=${report}`], {
    cwd: ROOT,
    stdio: 'inherit',
  })
  return timed(`${project} tests`, readCounts(report, status), began)
}

const absent = provision(log)
step('npm', 'run', '--silent', 'build')
step('npm', 'run', '--silent', 'check')
for (const project of ['unit', 'guest']) total = addCounts(total, vitest(project))
const began = Date.now()
total = addCounts(total, timed('KVM tests', await testKvm([], log), began))
if (absent.length > 0 && process.env.CI) {
  log('on CI every package must be there')
  total = addCounts(total, { ...NO_TESTS, failed: 1 })
}
finish()
