/**
 * The software CPU against QEMU's TCG (microvm, one vCPU) with the same kernel, initramfs, command line and memory: one boot each a
 * run, in which a script does all the work and prints a mark before and after each piece. Times are taken from the marks by the host's clock.
 *
 *   npm run bench -- cpu [--runs N] [--only boot,dd,shell]
 */
import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { pathToFileURL } from 'node:url'
import * as esbuild from 'esbuild'
import { VMM_NODE_OPTIONS } from '../../src/box/vmm/node-options.ts'
import { assetPath } from '../../src/host/assets.ts'
import { buildInitramfs } from '../../src/image/initramfs.ts'
import { findKernel } from '../../src/image/kernel/find.ts'
import type { Bench, BenchContext, Benchmark, Metric, MissingPeer, Sample } from '../harness/benchmark.ts'
import { pythonFiles } from './python.ts'
import { BOOT, guestScript, PYTHON_PROGRAM, WORK, type Work } from './work.ts'

const GUEST_MIB = 256
/** A guest that says nothing for so long hangs, and is started again. */
const SILENCE_MS = 120_000
const TRIES = 3
const BUSYBOX = '/bin/busybox'
const QEMU = '/usr/bin/qemu-system-x86_64'
const COMMAND_LINE =
  'console=ttyS0 quiet panic=-1 mitigations=off initcall_blacklist=load_system_certificate_list vitrine.exec="sh /bench.sh"'

const mips = (metric: string): string => `MIPS: ${metric}`

/** Milliseconds of processor time that a process has used in all its threads; on a busy host they say more than the clock. */
function processorTime(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * 10
}

interface Mark {
  readonly clock: number
  readonly processor: number
}

/** Runs a VMM until the guest is done, and takes the time of every mark on its standard output; text when it did not get there. */
function marksOf(command: string, args: readonly string[], onError: (text: string) => void) {
  return new Promise<Map<string, Mark> | string>(resolve => {
    const began = performance.now()
    const marks = new Map<string, Mark>()
    const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'] })
    const kill = (): boolean => child.kill('SIGKILL')
    let timer = setTimeout(kill, SILENCE_MS)
    let text = ''
    let errors = ''
    child.stderr.on('data', chunk => {
      errors += chunk
    })
    child.stdout.on('data', chunk => {
      const now = { clock: performance.now() - began, processor: processorTime(child.pid!) }
      text += chunk
      clearTimeout(timer)
      timer = setTimeout(kill, SILENCE_MS)
      for (const [, mark] of text.matchAll(/@(boot|start [a-z0-9-]+|end [a-z0-9-]+|done)\r?\n/g))
        if (!marks.has(mark!)) marks.set(mark!, now)
      if (marks.has('done')) child.kill('SIGTERM')
    })
    child.on('close', () => {
      clearTimeout(timer)
      onError(errors)
      resolve(marks.has('done') ? marks : `${errors.slice(-500)}\n${text.slice(-1000)}`)
    })
  })
}

async function measure(command: string, args: readonly string[], chosen: readonly Work[], context: BenchContext) {
  for (let attempt = 1; ; attempt++) {
    let errors = ''
    const marks = await marksOf(command, args, text => {
      errors = text
    })
    if (typeof marks === 'string') {
      if (attempt === TRIES) throw new Error(`${command} did not get to its end in ${TRIES} tries: ${marks}`)
      context.log(`${command} did not get to its end; once more`)
      continue
    }
    const sample: Record<string, number> = { [BOOT.metric]: marks.get('boot')!.clock }
    let used = `${BOOT.key} ${marks.get('boot')!.processor}`
    for (const { key, metric } of chosen) {
      const [from, to] = [marks.get(`start ${key}`)!, marks.get(`end ${key}`)!]
      sample[metric] = to.clock - from.clock
      used += `, ${key} ${to.processor - from.processor}`
    }
    context.log(`processor time in ms of ${basename(command)}: ${used}`)
    return { sample, errors }
  }
}

/** Adds guest MIPS to our sample, from the counters at the marks. */
function withMips(sample: Sample, errors: string, chosen: readonly Work[], context: BenchContext): Sample {
  const counters = new Map<string, Record<string, number>>()
  for (const text of errors.split('\n')) {
    if (!text.startsWith('#{')) continue
    const { mark, ...values } = JSON.parse(text.slice(1)) as { mark: string } & Record<string, number>
    counters.set(mark, values)
  }
  const rates: Record<string, number> = {}
  const note = (metric: string, from: Record<string, number>, to: Record<string, number>): void => {
    rates[mips(metric)] = (to.instructions! - from.instructions!) / sample[metric]! / 1000
    if (process.env.BENCH_COUNTERS) {
      const differences = Object.entries(to).map(([name, value]) => `${name} ${value - (from[name] ?? 0)}`)
      context.log(`${metric}: ${sample[metric]!.toFixed(0)} ms, ${differences.join(', ')}`)
    }
  }
  note(BOOT.metric, { instructions: 0 }, counters.get('boot')!)
  for (const { key, metric } of chosen) note(metric, counters.get(`start ${key}`)!, counters.get(`end ${key}`)!)
  if (process.env.BENCH_COUNTERS) context.log(`in all: ${JSON.stringify(counters.get('end'))}`)
  return { ...sample, ...rates }
}

async function open(context: BenchContext): Promise<Bench> {
  if (!existsSync(BUSYBOX)) throw new Error(`there is no ${BUSYBOX}: apt-get install busybox-static`)
  const known = [BOOT.key, ...WORK.map(({ key }) => key)]
  for (const key of context.only ?? [])
    if (!known.includes(key)) throw new Error(`--only takes some of ${known.join(', ')}; there is no '${key}'`)
  const missing: MissingPeer[] = []
  let chosen = WORK.filter(({ key }) => context.only === undefined || context.only.includes(key))
  let files = {}
  if (chosen.some(({ python }) => python)) {
    try {
      files = { ...pythonFiles(), 'bench.py': { content: new TextEncoder().encode(PYTHON_PROGRAM) } }
    } catch (error) {
      missing.push({ name: 'python3 in the guest', reason: (error as Error).message })
      chosen = chosen.filter(({ python }) => !python)
    }
  }
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-bench-cpu-'))
  const kernel = (await findKernel({ progress: context.log })).path
  const initrd = join(folder, 'initrd')
  const script = { content: new TextEncoder().encode(guestScript(chosen)) }
  writeFileSync(initrd, buildInitramfs({ busybox: BUSYBOX, files: { ...files, 'bench.sh': script } }))
  const runner = join(folder, 'ours.mjs')
  esbuild.buildSync({
    entryPoints: [new URL('ours.ts', import.meta.url).pathname],
    bundle: true,
    format: 'esm',
    platform: 'node',
    outfile: runner,
    logLevel: 'warning',
  })
  const index = pathToFileURL(assetPath('index.js')).href
  const ours = [runner, index, kernel, initrd, COMMAND_LINE, String(GUEST_MIB)]
  // QEMU's microvm gives the kernel nothing to measure the TSC by but the PIT, which fails on a busy host: it is told.
  const told = `tsc_early_khz=1000000 ${COMMAND_LINE}`
  const qemu = [
    ...['-M', 'microvm,acpi=off', '-accel', 'tcg', '-m', String(GUEST_MIB), '-nodefaults', '-no-user-config'],
    ...['-no-reboot', '-display', 'none', '-serial', 'stdio', '-kernel', kernel, '-initrd', initrd, '-append', told],
  ]
  // As a box's VMM is started.
  const nodeArguments = process.env.BENCH_NODE?.split(' ') ?? VMM_NODE_OPTIONS
  const contestants = [
    {
      name: 'ours',
      sample: async () => {
        const { sample, errors } = await measure(process.execPath, [...nodeArguments, ...ours], chosen, context)
        return withMips(sample, errors, chosen, context)
      },
    },
  ]
  if (!existsSync(QEMU)) missing.push({ name: 'qemu-tcg', reason: `there is no ${QEMU}` })
  else if (!process.env.BENCH_ALONE)
    contestants.push({ name: 'qemu-tcg', sample: async () => (await measure(QEMU, qemu, chosen, context)).sample })
  return {
    contestants,
    missing,
    measures: [BOOT, ...chosen].flatMap(({ metric }) => [metric, mips(metric)]),
    host: { guestMiB: GUEST_MIB },
    close: async () => rmSync(folder, { recursive: true }),
  }
}

const names = [BOOT, ...WORK].map(({ metric }) => metric)

export const benchmark: Benchmark = {
  summary: 'the software CPU: boot, sha256sum, gzip, shell, fork+exec, system calls, python3; against QEMU TCG',
  metrics: [
    ...names.map((name): Metric => ({ name, unit: 'ms', better: 'lower' })),
    ...names.map((name): Metric => ({ name: mips(name), unit: 'MIPS', better: 'higher' })),
  ],
  runs: 3,
  warmup: 0,
  open,
}
