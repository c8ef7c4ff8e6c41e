/**
 * What an exit costs: a port write and an MMIO write, each handled and gone back from, ours against C on the same
 * /dev/kvm with the same guest code.
 */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { kvmAccelerator } from '../../src/kvm/accelerator.ts'
import type { Bench, Benchmark, Contestant, MissingPeer } from '../harness/benchmark.ts'
import { createGuestMemory, type ExitKind } from './guest.ts'
import { OurDriver } from './ours.ts'

/** A burst that lost the processor to another program says nothing, so many short ones are taken. */
const BURSTS = 24
const EXITS = 200
const KINDS: readonly ExitKind[] = ['port', 'mmio']

/** The C driver as a process that answers one command after the other. */
class CDriver {
  readonly #process: ChildProcess
  readonly #lines: AsyncIterableIterator<string>

  constructor(program: string, ram: string, start: string) {
    this.#process = spawn(program, [ram, start], { stdio: ['pipe', 'pipe', 'inherit'] })
    this.#lines = createInterface({ input: this.#process.stdout! })[Symbol.asyncIterator]()
  }

  async measure(kind: ExitKind, exits: number): Promise<number> {
    this.#process.stdin!.write(`${kind} ${exits}\n`)
    const { value, done } = await this.#lines.next()
    if (done) throw new Error('the C driver ended')
    return Number(value) / exits / 1000
  }

  async close(): Promise<void> {
    const ended = once(this.#process, 'exit')
    this.#process.stdin!.end()
    await ended
  }
}

function compile(folder: string): string {
  const program = join(folder, 'driver')
  execFileSync('gcc', ['-O2', '-o', program, fileURLToPath(new URL('driver.c', import.meta.url))], { stdio: 'pipe' })
  return program
}

type Measure = (kind: ExitKind, exits: number) => number | Promise<number>

/** The lower quartile of the bursts. */
async function typical(measure: Measure, kind: ExitKind): Promise<number> {
  const bursts: number[] = []
  for (let i = 0; i < BURSTS; i++) bursts.push(await measure(kind, EXITS))
  return bursts.sort((a, b) => a - b)[BURSTS / 4]!
}

const sampleOf = async (measure: Measure) => ({
  'port exit': await typical(measure, 'port'),
  'mmio exit': await typical(measure, 'mmio'),
})

async function open(): Promise<Bench> {
  const report = await kvmAccelerator.probe()
  if (!report.runsMicroGuests) throw new Error(`no micro-guest runs on this host's KVM: ${report.summary}`)
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-exits-'))
  const memory = createGuestMemory()
  const ours = new OurDriver(memory)
  const contestants: Contestant[] = [
    { name: 'ours', sample: () => sampleOf((kind, exits) => ours.measure(kind, exits)) },
  ]
  const missing: MissingPeer[] = []
  let peer: CDriver | undefined
  try {
    const program = compile(folder)
    writeFileSync(join(folder, 'ram'), memory.slice(0, memory.size))
    writeFileSync(join(folder, 'start'), Buffer.concat(KINDS.map(kind => ours.nativeStart(kind))))
    const c = new CDriver(program, join(folder, 'ram'), join(folder, 'start'))
    peer = c
    contestants.push({ name: 'c', sample: () => sampleOf((kind, exits) => c.measure(kind, exits)) })
  } catch (error) {
    missing.push({ name: 'c', reason: `gcc could not compile it: ${error instanceof Error ? error.message : error}` })
  }
  return {
    contestants,
    missing,
    host: { kvm: report.summary },
    close: async () => {
      await peer?.close()
      ours.close()
      rmSync(folder, { recursive: true })
    },
  }
}

export const benchmark: Benchmark = {
  summary: 'one exit to user space and back, handled in TypeScript and in C (goal: 1.15 or less)',
  metrics: [
    { name: 'port exit', unit: 'us', better: 'lower' },
    { name: 'mmio exit', unit: 'us', better: 'lower' },
  ],
  runs: 15,
  warmup: 3,
  open,
}
