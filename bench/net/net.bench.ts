/**
 * The user-mode network without a guest: iperf3 in a namespace, through a tap and our stack, to a server on loopback;
 * and, for orientation, the same two programs over the kernel's loopback alone, which does none of the work.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { connect } from 'node:net'
import { Wire, wireUnavailable } from '../../src/net/testing/wire.ts'
import type { Benchmark, Sample } from '../harness/benchmark.ts'

const PORT = 15_201
const SECONDS = '2'
const LIMIT_MS = 30_000
const METRICS: readonly { readonly name: string; readonly args: readonly string[] }[] = [
  { name: 'up, 1 stream', args: [] },
  { name: 'down, 1 stream', args: ['-R'] },
  { name: 'up, 8 streams', args: ['-P', '8'] },
  { name: 'down, 8 streams', args: ['-P', '8', '-R'] },
]

function gigabits(json: string): number {
  const report = JSON.parse(json) as { error?: string; end: { sum_received: { bits_per_second: number } } }
  if (report.error !== undefined) throw new Error(`iperf3: ${report.error}`)
  return report.end.sum_received.bits_per_second / 1e9
}

async function startServer(): Promise<ChildProcess> {
  const server = spawn('iperf3', ['-s', '-B', '127.0.0.1', '-p', String(PORT)], { stdio: 'ignore' })
  for (let tries = 0; tries < 50; tries++) {
    const socket = connect(PORT, '127.0.0.1')
    const up = await Promise.race([
      once(socket, 'connect').then(() => true),
      once(socket, 'error').then(() => false),
    ]).catch(() => false)
    socket.destroy()
    await new Promise(resolve => setTimeout(resolve, 100))
    if (up) return server
  }
  server.kill()
  throw new Error('iperf3 did not start to listen')
}

async function direct(command: readonly string[]): Promise<string> {
  const child = spawn(command[0]!, command.slice(1), { stdio: ['ignore', 'pipe', 'inherit'], timeout: LIMIT_MS })
  let output = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text
  })
  await once(child, 'close')
  return output
}

async function sampleWith(run: (command: readonly string[]) => Promise<string>, address: string): Promise<Sample> {
  const sample: Record<string, number> = {}
  for (const { name, args } of METRICS) {
    sample[name] = gigabits(await run(['iperf3', '-J', '-c', address, '-p', String(PORT), '-t', SECONDS, ...args]))
  }
  return sample
}

export const benchmark: Benchmark = {
  summary: "the user-mode network by iperf3 through a tap, beside the kernel's loopback",
  metrics: METRICS.map(({ name }) => ({ name, unit: 'Gbit/s', better: 'higher' })),
  runs: 5,
  open: async () => {
    const reason = wireUnavailable()
    if (reason !== undefined) throw new Error(`the network cannot be measured here: it ${reason}`)
    const server = await startServer()
    const wire = new Wire()
    const through = async (command: readonly string[]): Promise<string> => (await wire.run(command, LIMIT_MS)).stdout
    return {
      contestants: [
        { name: 'ours', sample: () => sampleWith(through, '10.0.2.2') },
        { name: 'loopback', sample: () => sampleWith(direct, '127.0.0.1') },
      ],
      missing: [
        { name: 'slirp', reason: 'needs a guest' },
        { name: 'passt', reason: 'needs a guest' },
      ],
      close: async () => {
        wire.close()
        server.kill()
      },
    }
  },
}
