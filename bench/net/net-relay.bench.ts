/**
 * What the language costs a network card's loop: the calls that a request of a guest cannot do without, made by our loop and by one in C, with no
 * guest and no protocol on either side. Where ours is slower here by more than a peer's whole work, no stack of ours can be as fast as that peer.
 */
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Benchmark, Contestant } from '../harness/benchmark.ts'
import { compilePingPong } from './guests.ts'

const PORT = 15_203
const RUN_MS = 1500
/** V8 optimizes what has run for a while; in the emulated host that takes seconds. */
const WARM_MS = 5000
const METRICS = [
  { name: 'trips', unit: '/s', better: 'higher' },
  { name: 'processor time for one', unit: 'us', better: 'lower' },
] as const

const sourceOf = (name: string): string => fileURLToPath(new URL(name, import.meta.url))

export const benchmark: Benchmark = {
  summary: "the system calls of a request by our loop and by one in C: what is the language's share",
  metrics: METRICS,
  warmup: 0,
  open: async () => {
    const folder = mkdtempSync(join(tmpdir(), 'vitrine-bench-relay-'))
    const relay = join(folder, 'relay')
    execFileSync('gcc', ['-static', '-O2', '-Wall', '-Werror', '-s', '-o', relay, sourceOf('relay.c')])
    const server = spawn(compilePingPong(folder), ['serve', String(PORT)], { stdio: ['ignore', 'pipe', 'inherit'] })
    await once(server.stdout, 'data')
    const contestant = (name: string, warmMs: number, loop: readonly string[]): Contestant => ({
      name,
      sample: async () => {
        const driver = ['drive', String(warmMs), String(RUN_MS), ...loop, String(PORT)]
        const child = spawn(relay, driver, { stdio: ['ignore', 'pipe', 'inherit'] })
        let output = ''
        child.stdout.setEncoding('utf8').on('data', (text: string) => {
          output += text
        })
        await once(child, 'close')
        const [, rate, cpu] = /RATE ([\d.]+)\nCPU ([\d.]+)/.exec(output) ?? []
        if (rate === undefined) throw new Error(`${loop.join(' ')} did not relay: ${output}`)
        return { [METRICS[0].name]: Number(rate), [METRICS[1].name]: Number(cpu) }
      },
    })
    const ours = [process.execPath, '--import', 'tsx', sourceOf('relay.process.ts')]
    return {
      contestants: [contestant('ours', WARM_MS, ours), contestant('C', 0, [relay, 'loop'])],
      close: async () => {
        server.kill()
        rmSync(folder, { recursive: true })
      },
    }
  },
}
