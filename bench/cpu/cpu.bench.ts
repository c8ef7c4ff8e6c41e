/**
 * The software CPU against QEMU's TCG (microvm, one vCPU) with the same kernel, initramfs, command line and memory: boot, then a
 * script in the guest that prints a mark before and after each piece of work. Times are taken from the marks on the host's clock.
 */
import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { assetPath } from '../../src/host/assets.ts'
import { buildInitramfs } from '../../src/image/initramfs.ts'
import { findKernel } from '../../src/image/kernel/find.ts'
import type { Bench, BenchContext, Benchmark, Metric, Sample } from '../harness/benchmark.ts'

const GUEST_MIB = 256
const LIMIT_MS = 600_000
const BUSYBOX = '/bin/busybox'
const COMMAND_LINE =
  'console=ttyS0 quiet panic=-1 mitigations=off initcall_blacklist=load_system_certificate_list vitrine.exec="sh /bench.sh"'

/** Names of metrics, and what the guest's shell does for them. Files are made in advance, in memory. */
const WORK: Readonly<Record<string, string>> = {
  'sha256sum 64 MB': 'sha256sum /tmp/zeros > /dev/null',
  'gzip 16 MB': 'gzip -c /tmp/text > /dev/null',
  'shell loop 100,000': 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done',
  'fork+exec 200': 'n=0; while [ $n -lt 200 ]; do /bin/uname > /dev/null; n=$((n+1)); done',
  'dd 100,000 bytes': 'dd if=/dev/zero of=/dev/null bs=1 count=100000 2> /dev/null',
}
const BOOT = 'boot to user space'

function script(): string {
  const lines = [
    'echo @boot',
    'dd if=/dev/zero of=/tmp/zeros bs=1M count=64 2> /dev/null',
    'seq 1 2300000 | head -c 16777216 > /tmp/text',
  ]
  Object.values(WORK).forEach((work, index) => {
    lines.push(`echo @start ${index}`, work, `echo @end ${index}`)
  })
  return `${lines.join('\n')}\necho @done\n`
}

/** Runs a VMM and takes the time of every mark on its standard output. */
async function measure(command: string, args: readonly string[]): Promise<Sample> {
  const began = performance.now()
  const marks = new Map<string, number>()
  let text = ''
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'] })
  const timer = setTimeout(() => child.kill('SIGKILL'), LIMIT_MS)
  let errors = ''
  child.stderr.on('data', chunk => {
    errors += chunk
  })
  child.stdout.on('data', chunk => {
    const now = performance.now() - began
    text += chunk
    for (const [, mark] of text.matchAll(/@(boot|start \d|end \d|done)\s/g))
      if (!marks.has(mark!)) marks.set(mark!, now)
  })
  await new Promise<void>(resolve => child.on('close', () => resolve()))
  clearTimeout(timer)
  if (!marks.has('done'))
    throw new Error(`${command} did not get to its end: ${errors.slice(-500)}\n${text.slice(-1000)}`)
  const sample: Record<string, number> = { [BOOT]: marks.get('boot')! }
  Object.keys(WORK).forEach((name, index) => {
    sample[name] = marks.get(`end ${index}`)! - marks.get(`start ${index}`)!
  })
  return sample
}

async function open(context: BenchContext): Promise<Bench> {
  if (!existsSync(BUSYBOX)) throw new Error(`there is no ${BUSYBOX}: apt-get install busybox-static`)
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-bench-cpu-'))
  const kernel = (await findKernel({ progress: context.log })).path
  const initrd = join(folder, 'initrd')
  const files = { 'bench.sh': { content: new TextEncoder().encode(script()) } }
  writeFileSync(initrd, buildInitramfs({ busybox: BUSYBOX, files }))
  const ours = [
    ...[assetPath('cli.js'), 'boot', '--accel', 'soft', '--memory', String(GUEST_MIB)],
    ...['--kernel', kernel, '--initrd', initrd, '--cmdline', COMMAND_LINE],
  ]
  // QEMU's microvm gives the kernel nothing to measure the TSC by but the PIT, which fails on a busy host: it is told.
  const told = `tsc_early_khz=1000000 ${COMMAND_LINE}`
  const qemu = [
    ...['-M', 'microvm', '-accel', 'tcg', '-m', String(GUEST_MIB), '-nodefaults', '-no-user-config', '-no-reboot'],
    ...['-display', 'none', '-serial', 'stdio', '-kernel', kernel, '-initrd', initrd, '-append', told],
  ]
  return {
    contestants: [
      { name: 'ours', sample: () => measure(process.execPath, ours) },
      { name: 'qemu-tcg', sample: () => measure('qemu-system-x86_64', qemu) },
    ],
    host: { guestMiB: GUEST_MIB },
    close: async () => rmSync(folder, { recursive: true }),
  }
}

const milliseconds = (name: string): Metric => ({ name, unit: 'ms', better: 'lower' })

export const benchmark: Benchmark = {
  summary: 'the software CPU: boot, sha256sum, gzip, shell, fork+exec, system calls; against QEMU TCG',
  metrics: [BOOT, ...Object.keys(WORK)].map(milliseconds),
  runs: 3,
  open,
}
