/**
 * `npm run test:kvm [-- FILTER...]`: starts the emulated AMD host and runs the KVM tests in it. `FILTER` and further
 * options go to vitest.
 */
import { testKvm } from './kvm-tests.ts'
import { formatCounts } from './test-counts.ts'

// An exit that runs the exit handlers, which remove what the testbed wrote.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => process.exit(130))
const counts = await testKvm(process.argv.slice(2), message => console.error(`test:kvm: ${message}`))
console.log(formatCounts(counts))
process.exitCode = counts.failed > 0 ? 1 : 0
