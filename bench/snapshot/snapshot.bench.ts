/**
 * Snapshots, restores, forks and templates on this machine's accelerator; saving and restoring against QEMU's migration to a file.
 *
 *   npm run bench -- snapshot [--runs N] [--only save-128,save-512,save-2048,fork-1,fork-10,fork-100,template]
 */
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { requireAccelerator } from '../../src/accel/select.ts'
import { Runtime } from '../../src/box/runtime.ts'
import { findKernel } from '../../src/image/kernel/find.ts'
import type { Bench, BenchContext, Benchmark, Sample } from '../harness/benchmark.ts'
import { sampleForks } from './forks.ts'
import { FORKS, PARTS, SIZES_MIB } from './parts.ts'
import { QEMU, type QemuGuest, qemuInitramfs, sampleQemu } from './qemu.ts'
import { sampleSaving } from './saving.ts'
import { sampleTemplate } from './templates.ts'

const BUSYBOX = '/bin/busybox'

async function open(context: BenchContext): Promise<Bench> {
  const known = Object.keys(PARTS)
  for (const part of context.only ?? [])
    if (!known.includes(part)) throw new Error(`--only takes some of ${known.join(', ')}; there is no '${part}'`)
  const wanted = (part: string): boolean => context.only === undefined || context.only.includes(part)
  const { name: accel } = await requireAccelerator('auto')
  const runtime = new Runtime()
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-bench-snapshot-'))
  const saved = SIZES_MIB.filter(mib => wanted(`save-${mib}`))
  const sampleOurs = async (): Promise<Sample> => {
    const sample: Record<string, number> = {}
    for (const mib of saved) Object.assign(sample, await sampleSaving(runtime, mib))
    for (const count of FORKS) if (wanted(`fork-${count}`)) Object.assign(sample, await sampleForks(runtime, count))
    if (wanted('template')) Object.assign(sample, sampleTemplate(runtime.home.path))
    return sample
  }
  const name = `qemu-${accel === 'soft' ? 'tcg' : 'kvm'}`
  const why = [QEMU, BUSYBOX].find(path => !existsSync(path))
  const contestants = [{ name: 'ours', sample: sampleOurs }]
  if (saved.length > 0 && why === undefined) {
    const { path: kernel } = await findKernel({ progress: context.log })
    writeFileSync(join(folder, 'initrd'), qemuInitramfs(BUSYBOX))
    const guest: QemuGuest = { kernel, folder, accel: accel === 'soft' ? 'tcg' : 'kvm' }
    const sample = async (): Promise<Sample> => {
      const all: Record<string, number> = {}
      for (const mib of saved) Object.assign(all, await sampleQemu(guest, mib))
      return all
    }
    contestants.push({ name, sample })
  }
  return {
    contestants,
    missing: why === undefined ? [] : [{ name, reason: `there is no ${why}` }],
    measures: known.filter(wanted).flatMap(part => PARTS[part]!.map(metric => metric.name)),
    host: { accelerator: accel },
    close: async () => rmSync(folder, { recursive: true }),
  }
}

export const benchmark: Benchmark = {
  summary: 'snapshots: pause, size, time; restore; forks; templates; against QEMU migrating to a file',
  metrics: Object.values(PARTS).flat(),
  runs: 5,
  open,
}
