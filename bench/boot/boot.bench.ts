/**
 * From the start of the VMM's process to the first output of user space, on KVM: ours against QEMU's microvm with the same
 * kernel, initramfs, command line and memory. Both run in the emulated AMD host, interleaved in one boot of it, so only
 * the ratios mean something. Also what the VMM's process holds beside guest RAM, and the CPU time of an idle guest.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import * as esbuild from 'esbuild'
import { assetPath } from '../../src/host/assets.ts'
import { buildInitramfs } from '../../src/image/initramfs.ts'
import { findKernel } from '../../src/image/kernel/find.ts'
import { AmdHost } from '../../test/testbed/amd-host.ts'
import type { Bench, BenchContext, Benchmark, Contestant } from '../harness/benchmark.ts'
import type { BootSample } from './measure.ts'

const GUEST_MIB = 256
const MARKER = 'vitrine-init: ready'
const COMMAND_LINE = 'console=ttyS0 quiet panic=-1 vitrine.mode=echo'
/** QEMU's TCG, which emulates the host, can hang; a sample that fails is taken again this often. */
const ATTEMPTS = 3

/** What both boot, put where the emulated host sees it. */
interface Guest {
  readonly kernel: string
  readonly initrd: string
}

async function prepareGuest(folder: string, log: BenchContext['log']): Promise<Guest> {
  const { path, modules } = await findKernel({ progress: log, tuned: false })
  const initrd = join(folder, 'initrd')
  writeFileSync(initrd, buildInitramfs({ modules, load: [] }))
  return { kernel: path, initrd }
}

const ours = ({ kernel, initrd }: Guest): string[] => [
  ...[process.execPath, assetPath('cli.js'), 'boot', '--accel', 'kvm', '--memory', String(GUEST_MIB)],
  ...['--kernel', kernel, '--initrd', initrd, '--cmdline', COMMAND_LINE],
]

const qemu = ({ kernel, initrd }: Guest): string[] => [
  ...['qemu-system-x86_64', '-M', 'microvm', '-enable-kvm', '-cpu', 'host', '-m', String(GUEST_MIB)],
  ...['-nodefaults', '-no-user-config', '-display', 'none', '-serial', 'stdio', '-no-reboot'],
  ...['-kernel', kernel, '-initrd', initrd, '-append', COMMAND_LINE],
]

/** The program that measures, as one file of JavaScript: starting it costs the slow host less. */
async function bundleMeasure(folder: string): Promise<string> {
  const output = join(folder, 'measure.mjs')
  await esbuild.build({
    entryPoints: [fileURLToPath(new URL('measure.ts', import.meta.url))],
    outfile: output,
    bundle: true,
    format: 'esm',
    platform: 'node',
    target: 'node20',
  })
  return output
}

async function measureOnce(host: AmdHost, measure: string, command: readonly string[]): Promise<BootSample> {
  const argv = [process.execPath, measure, MARKER, String(GUEST_MIB), ...command]
  const { status, stdout, stderr } = await host.run(argv, { timeoutMs: 240_000 })
  if (status !== 0) throw new Error(stderr.trim())
  return JSON.parse(stdout) as BootSample
}

function contestant(name: string, context: BenchContext, sample: () => Promise<BootSample>): Contestant {
  return {
    name,
    sample: async () => {
      for (let attempt = 1; ; attempt++) {
        try {
          const { bootMs, vmmMib, idleMsPerSecond } = await sample()
          return { 'boot to user space': bootMs, 'VMM memory': vmmMib, 'idle guest': idleMsPerSecond }
        } catch (error) {
          if (attempt >= ATTEMPTS) throw error
          context.log(`${name}: ${error instanceof Error ? error.message : error}; once more`)
        }
      }
    },
  }
}

async function open(context: BenchContext): Promise<Bench> {
  const host = await AmdHost.start({ log: context.log })
  try {
    const guest = await prepareGuest(host.share, context.log)
    const measure = await bundleMeasure(host.share)
    const contestants = [
      contestant('ours', context, () => measureOnce(host, measure, ours(guest))),
      contestant('qemu-microvm', context, () => measureOnce(host, measure, qemu(guest))),
    ]
    return {
      contestants,
      host: { testbed: 'emulated AMD host', guestMiB: GUEST_MIB },
      close: () => host.stop(),
    }
  } catch (error) {
    await host.stop()
    throw error
  }
}

export const benchmark: Benchmark = {
  summary: 'kernel to user space on KVM, VMM memory, idle CPU; against QEMU microvm, in the emulated AMD host',
  metrics: [
    { name: 'boot to user space', unit: 'ms', better: 'lower' },
    { name: 'VMM memory', unit: 'MiB', better: 'lower' },
    { name: 'idle guest', unit: 'ms/s', better: 'lower' },
  ],
  runs: 8,
  open,
}
