/** Runs the benchmark command inside the emulated AMD host, on kvm-amd: for benchmarks that measure guests on whatever is there. */
import { copyFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { defaultHome } from '../../src/image/kernel/cache.ts'
import { findKernel } from '../../src/image/kernel/find.ts'
import { withAmdHost } from '../../test/testbed/amd-host.ts'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const LIMIT_MS = 60 * 60_000
/** The host has no network card, and passt wants one with a route: this leads nowhere, by addresses that are nobody's (RFC 5737). */
const ROUTE = `modprobe veth && ip link add out0 type veth peer name out1 && ip addr add 192.0.2.2/24 dev out0 &&
ip link set out0 up && ip link set out1 up && ip route add default via 192.0.2.1`

/** `args` are the command's, without those that are used up here. The exit status. */
export async function benchInAmdHost(
  args: readonly string[],
  json: string | undefined,
  log: (message: string) => void,
): Promise<number> {
  // Fetched out here: inside there is no network.
  await findKernel({ progress: log, tuned: false })
  return withAmdHost(
    async host => {
      const routed = await host.run(['sh', '-c', ROUTE])
      if (routed.status !== 0) log(`no route: ${routed.stderr}`)
      const report = join(host.share, 'report.json')
      const command = [process.execPath, '--import', 'tsx', 'bench/main.ts', ...args, '--json', report]
      const { status } = await host.run(command, {
        cwd: ROOT,
        timeoutMs: LIMIT_MS,
        env: { VITRINE_BENCH_ACCEL: 'kvm', VITRINE_HOME: defaultHome() },
        onOutput: (bytes, stream) => process[stream].write(bytes),
      })
      if (status === 0 && json !== undefined) copyFileSync(report, json)
      return status
    },
    // As many as most machines here: a device beside its vCPU. A host that dies of having two (test/testbed/README.md) is tried again by hand.
    { log, cpus: 2 },
  )
}
