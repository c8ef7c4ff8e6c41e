/**
 * The user-mode network without an emulated CPU: programs in a namespace, with the kernel as the guest, through a tap and our stack to
 * servers on loopback; pasta, which is passt for a namespace, does the same work. For orientation also the programs over the kernel's
 * loopback alone, which does none of it.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Wire, wireUnavailable } from '../../src/net/testing/wire.ts'
import type { Benchmark, Contestant, Metric, Sample } from '../harness/benchmark.ts'
import { compilePingPong, GATEWAY } from './guests.ts'

const PORTS = { iperf: 15_201, pingpong: 15_202 }
const LIMIT_MS = 30_000
const PASTA = '/usr/bin/pasta'

interface Measure {
  readonly metric: Metric
  command(pingpong: string, address: string): string[]
  read(output: string): number
}

const throughput = (name: string, ...args: string[]): Measure => ({
  metric: { name, unit: 'Gbit/s', better: 'higher' },
  command: (_, address) => ['iperf3', '-J', '-c', address, '-p', String(PORTS.iperf), '-t', '2', ...args],
  read: output => {
    const json = output.slice(output.indexOf('{'), output.lastIndexOf('}') + 1)
    const report = JSON.parse(json) as { error?: string; end: { sum_received: { bits_per_second: number } } }
    if (report.error !== undefined) throw new Error(`iperf3: ${report.error}`)
    return report.end.sum_received.bits_per_second / 1e9
  },
})

const rate = (name: string, kind: string): Measure => ({
  metric: { name, unit: '/s', better: 'higher' },
  command: (pingpong, address) => [pingpong, kind, address, String(PORTS.pingpong), '1500'],
  read: output => {
    const [, value] = /RATE ([\d.]+)/.exec(output) ?? []
    if (value === undefined) throw new Error(`no rate: ${output}`)
    return Number(value)
  },
})

const MEASURES: readonly Measure[] = [
  throughput('up, 1 stream'),
  throughput('down, 1 stream', '-R'),
  throughput('up, 8 streams', '-P', '8'),
  throughput('down, 8 streams', '-P', '8', '-R'),
  rate('requests', 'rr'),
  rate('connections', 'crr'),
]

async function startServer(command: readonly string[], port: number): Promise<ChildProcess> {
  const server = spawn(command[0]!, command.slice(1), { stdio: 'ignore' })
  for (let tries = 0; tries < 50; tries++) {
    const socket = connect(port, '127.0.0.1')
    const up = await Promise.race([
      once(socket, 'connect').then(() => true),
      once(socket, 'error').then(() => false),
    ]).catch(() => false)
    socket.destroy()
    await new Promise(resolve => setTimeout(resolve, 100))
    if (up) return server
  }
  server.kill()
  throw new Error(`${command[0]} did not start to listen`)
}

/** Runs a command out here. */
async function direct(command: readonly string[]): Promise<string> {
  const child = spawn(command[0]!, command.slice(1), { stdio: ['ignore', 'pipe', 'ignore'], timeout: LIMIT_MS })
  let output = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text
  })
  await once(child, 'close')
  return output
}

/**
 * Runs a command with a stack and a namespace of its own, as pasta gives it one. In one namespace for all samples the kernel, the guest here, would
 * run out of ports: those of connections that it closed stay taken for a minute, and from 14000 on its search for a free one is what is measured.
 */
async function inOurs(command: readonly string[]): Promise<string> {
  const wire = new Wire()
  try {
    return (await wire.run(command, LIMIT_MS)).stdout
  } finally {
    wire.close()
  }
}

const inPasta = (command: readonly string[]): Promise<string> =>
  direct([
    ...[PASTA, '--foreground', '--quiet', '--config-net', '--runas', '0', '--netns-only', '--ipv4-only'],
    ...['--address', '10.0.2.15', '--netmask', '24', '--gateway', GATEWAY, '--', ...command],
  ])

export const benchmark: Benchmark = {
  summary: "the user-mode network through a tap, against pasta; beside the kernel's loopback",
  metrics: MEASURES.map(({ metric }) => metric),
  runs: 5,
  open: async () => {
    const reason = wireUnavailable()
    if (reason !== undefined) throw new Error(`the network cannot be measured here: it ${reason}`)
    const folder = mkdtempSync(join(tmpdir(), 'vitrine-bench-tap-'))
    const pingpong = compilePingPong(folder)
    const servers = [
      await startServer(['iperf3', '-s', '-B', '127.0.0.1', '-p', String(PORTS.iperf)], PORTS.iperf),
      await startServer([pingpong, 'serve', String(PORTS.pingpong)], PORTS.pingpong),
    ]
    const contestant = (
      name: string,
      run: (command: readonly string[]) => Promise<string>,
      address: string,
    ): Contestant => ({
      name,
      sample: async (): Promise<Sample> => {
        const sample: Record<string, number> = {}
        for (const { metric, command, read } of MEASURES) {
          sample[metric.name] = read(await run(command(pingpong, address)))
        }
        return sample
      },
    })
    const hasPasta = existsSync(PASTA)
    return {
      contestants: [
        contestant('ours', inOurs, GATEWAY),
        ...(hasPasta ? [contestant('pasta', inPasta, GATEWAY)] : []),
        contestant('loopback', direct, '127.0.0.1'),
      ],
      missing: [
        { name: 'slirp', reason: 'needs a guest' },
        ...(hasPasta ? [] : [{ name: 'pasta', reason: `${PASTA} is not installed` }]),
      ],
      close: async () => {
        for (const server of servers) server.kill()
        rmSync(folder, { recursive: true })
      },
    }
  },
}
