/**
 * Runs the KVM tests with vitest inside the emulated AMD host, and counts them.
 *
 * Vitest costs about 17 s in there before the first test, and 5 s a file.
 */
import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { findKernel } from '../src/image/kernel/find.ts'
import { type AmdHost, amdHostUnavailable, withAmdHost } from '../test/testbed/amd-host.ts'
import { TestbedError } from '../test/testbed/errors.ts'
import { NO_TESTS, readCounts, type TestCounts } from './test-counts.ts'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
/** On an idle machine the tests take a fraction of it. */
const LIMIT_MS = 40 * 60_000
/** Of the emulated host. What tests write in it is memory as well: long runs of snapshots need more. */
const HOST_MIB = Number(process.env.VITRINE_HOST_MIB || 4096)
/** Every test says when it is over, and has a limit of its own; one that holds up vitest's thread for longer hangs with its host. */
const SILENCE_MS = 8 * 60_000

async function runVitest(host: AmdHost, args: readonly string[]): Promise<TestCounts> {
  const report = join(host.share, 'report.json')
  const environment = Object.entries(process.env).filter(([name]) =>
    /^(VITRINE_|CI$|NO_COLOR$|FORCE_COLOR$)/.test(name),
  )
  const { status } = await host.run(
    [
      ...[process.execPath, 'node_modules/vitest/vitest.mjs', 'run', '--config', 'test/kvm/vitest.config.ts'],
      ...['--reporter=verbose', '--reporter=json', `--outputFile.json=${report}`, ...args],
    ],
    {
      cwd: ROOT,
      timeoutMs: LIMIT_MS,
      silenceMs: SILENCE_MS,
      env: { ...Object.fromEntries(environment), VITRINE_TESTBED: 'amd-host' } as Record<string, string>,
      onOutput: (bytes, stream) => process[stream].write(bytes),
    },
  )
  return readCounts(report, status)
}

/** Runs the KVM tests. On CI a testbed that cannot be had is a failure; elsewhere its files count as skipped. */
export async function testKvm(args: readonly string[], log: (message: string) => void): Promise<TestCounts> {
  const unavailable = amdHostUnavailable()
  if (unavailable) {
    log(`the KVM tests need the emulated AMD host: ${unavailable}`)
    const files = readdirSync(join(ROOT, 'test/kvm'), { recursive: true, encoding: 'utf8' })
    const count = files.filter(file => file.endsWith('.kvm.test.ts')).length
    return process.env.CI ? { ...NO_TESTS, failed: count } : { ...NO_TESTS, skipped: count }
  }
  try {
    // The kernel that guests boot is fetched out here: inside there is no network.
    await findKernel({ progress: log, tuned: false })
  } catch (error) {
    log(`the KVM tests need a kernel for their guests: ${(error as Error).message}`)
    return { ...NO_TESTS, failed: 1 }
  }
  const attempts = 2
  for (let attempt = 1; ; attempt++) {
    try {
      return await withAmdHost(host => runVitest(host, args), { log, memoryMiB: HOST_MIB })
    } catch (error) {
      if (!(error instanceof TestbedError)) throw error
      log(error.message)
      // The emulated host can hang or die under a test too; a test of ours that hangs has a limit of its own.
      if (attempt >= attempts || error.code === 'unavailable') return { ...NO_TESTS, failed: 1 }
      log('running the KVM tests once more, in a new host')
    }
  }
}
