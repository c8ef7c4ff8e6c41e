/**
 * A box from its creation to its first output, and commands in one that runs, on the accelerator that this machine has.
 *
 * What a command costs above the floor: the floor is a request that the agent answers at once (the way there and back through vsock,
 * without a process) plus what starting and ending the same program costs inside the guest, by a shell's loop of them.
 *
 * The boot part alone, kernel to user space with an init that only prints, stands against QEMU's microvm with the same kernel,
 * initramfs, command line and memory, on KVM where ours uses it and on TCG where ours is the software CPU.
 */
import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { requireAccelerator } from '../../src/accel/select.ts'
import { assetPath } from '../../src/host/assets.ts'
import { buildInitramfs } from '../../src/image/initramfs.ts'
import { findKernel } from '../../src/image/kernel/find.ts'
import { Box, Runtime } from '../../src/index.ts'
import type { Bench, Benchmark, Sample } from '../harness/benchmark.ts'
import { median } from '../harness/statistics.ts'

const GUEST_MIB = 256
const EXECS = 60
const LOOPS = 40
const QEMU = '/usr/bin/qemu-system-x86_64'
const MARKER = 'vitrine-init: ready'
const LIMIT_MS = 120_000

async function timed(work: () => Promise<unknown>): Promise<number> {
  const began = performance.now()
  await work()
  return performance.now() - began
}

async function medianOf(times: number, work: () => Promise<unknown>): Promise<number> {
  const values: number[] = []
  for (let i = 0; i < times; i++) values.push(await timed(work))
  return median(values)
}

/** From the start of a process to its marker; the process is ended then. */
function toMarker(command: string, args: readonly string[]): Promise<number> {
  return new Promise((resolve, reject) => {
    const began = performance.now()
    const child = spawn(command, args, { stdio: ['pipe', 'pipe', 'pipe'] })
    const limit = setTimeout(() => child.kill('SIGKILL'), LIMIT_MS)
    let text = ''
    const take = (bytes: Buffer): void => {
      text += bytes.toString('latin1')
      if (!text.includes(MARKER)) return
      clearTimeout(limit)
      resolve(performance.now() - began)
      child.kill('SIGKILL')
    }
    child.stdout.on('data', take)
    child.stderr.on('data', take)
    child.once('error', reject)
    child.once('close', () => reject(new Error(`${command} ended without '${MARKER}': ${text.slice(-500)}`)))
  })
}

async function sampleBox(runtime: Runtime): Promise<Sample> {
  let box: Box | undefined
  try {
    const first = await timed(async () => {
      box = await Box.create({ memoryMib: GUEST_MIB, template: false }, runtime)
      const { stdout } = await box.exec('echo', ['hello'])
      if (stdout !== 'hello\n') throw new Error(`the first output was '${stdout}'`)
    })
    const running = box!
    const shell = (script: string): Promise<unknown> => running.exec('sh', ['-c', script])
    const loop = (body: string, count: number): string => `i=0; while [ $i -lt ${count} ]; do ${body}; i=$((i+1)); done`
    await medianOf(10, () => running.exec('/bin/true'))
    const exec = await medianOf(EXECS, () => running.exec('/bin/true'))
    const request = await medianOf(EXECS, () => running.files.stat('/'))
    const empty = await medianOf(3, () => shell(loop(':', LOOPS)))
    const process = ((await medianOf(3, () => shell(loop('/bin/true', LOOPS)))) - empty) / LOOPS
    const { residentBytes, guestResidentBytes, stages } = await running.metrics()
    return {
      'create to first output': first,
      'ready after': stages?.readyMs ?? Number.NaN,
      'exec round trip': exec,
      'request round trip': request,
      'process in the guest': process,
      'exec above the floor': exec - request - process,
      'VMM memory': (residentBytes - guestResidentBytes) / 2 ** 20,
    }
  } finally {
    await box?.remove({ force: true })
  }
}

async function open(): Promise<Bench> {
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-bench-box-'))
  const { name: accel } = await requireAccelerator('auto')
  const { path: kernel, modules } = await findKernel()
  const initrd = join(folder, 'initrd')
  writeFileSync(initrd, buildInitramfs({ modules, load: [] }))
  const words = `console=ttyS0 quiet panic=-1 vitrine.mode=echo ${accel === 'soft' ? 'mitigations=off' : ''}`.trim()
  const files = ['-kernel', kernel, '-initrd', initrd, '-append', words]
  const qemu = [
    ...['-M', accel === 'soft' ? 'microvm,acpi=off' : 'microvm', '-accel', accel === 'soft' ? 'tcg' : 'kvm'],
    ...[
      '-m',
      String(GUEST_MIB),
      '-nodefaults',
      '-no-user-config',
      '-display',
      'none',
      '-serial',
      'stdio',
      '-no-reboot',
    ],
    ...files,
  ]
  const ours = [assetPath('cli.js'), 'boot', '--memory', String(GUEST_MIB), '--kernel', kernel, '--initrd', initrd]
  const runtime = new Runtime()
  const hasQemu = existsSync(QEMU)
  return {
    contestants: [
      {
        name: 'ours',
        sample: async () => ({
          ...(await sampleBox(runtime)),
          'boot to user space': await toMarker(process.execPath, [...ours, '--cmdline', words]),
        }),
      },
      ...(hasQemu
        ? [{ name: 'qemu-microvm', sample: async () => ({ 'boot to user space': await toMarker(QEMU, qemu) }) }]
        : []),
    ],
    missing: hasQemu ? [] : [{ name: 'qemu-microvm', reason: 'qemu-system-x86 is not installed' }],
    host: { accelerator: accel, guestMiB: GUEST_MIB },
    close: async () => rmSync(folder, { recursive: true }),
  }
}

export const benchmark: Benchmark = {
  summary: 'a box to its first output, commands above the floor, VMM memory; the boot part against QEMU microvm',
  metrics: [
    { name: 'create to first output', unit: 'ms', better: 'lower' },
    { name: 'ready after', unit: 'ms', better: 'lower' },
    { name: 'exec round trip', unit: 'ms', better: 'lower' },
    { name: 'request round trip', unit: 'ms', better: 'lower' },
    { name: 'process in the guest', unit: 'ms', better: 'lower' },
    { name: 'exec above the floor', unit: 'ms', better: 'lower' },
    { name: 'VMM memory', unit: 'MiB', better: 'lower' },
    { name: 'boot to user space', unit: 'ms', better: 'lower' },
  ],
  runs: 5,
  open,
}
