/** Saving a box and restoring it: a guest with part of its memory touched, the first snapshot, as much touched again, the second. */
import { Box } from '../../src/box/box.ts'
import type { Runtime } from '../../src/box/runtime.ts'
import type { Sample } from '../harness/benchmark.ts'
import { restoreMetric, saveMetric, TOUCHED_PERCENT } from './parts.ts'

/** What fills so many MiB of memory: pages with something in them, copied by the kernel. Both contestants' guests do the same. */
export const fillScript = (mib: string): string => `
[ -d /fill ] || { mkdir /fill; mount -t tmpfs -o size=90% fill /fill; }
[ -s /fill/seed ] || dd if=/dev/urandom of=/fill/seed bs=64k count=16 2>/dev/null
rm -f /fill/data; i=0; while [ $i -lt ${mib} ]; do cat /fill/seed; i=$((i+1)); done > /fill/data`

/** A kernel with its first processes needs this much for itself: more than the rest cannot be filled. */
const KERNEL_MIB = 96

export const touchedMib = (mib: number, percent: number): number =>
  Math.min(Math.max(1, Math.round((mib * percent) / 100)), mib - KERNEL_MIB)

async function fill(box: Box, mib: number): Promise<void> {
  const { exitCode, stderr } = await box.exec('sh', ['-c', fillScript(String(mib))])
  if (exitCode !== 0) throw new Error(`filling ${mib} MiB failed: ${stderr}`)
}

export async function sampleSaving(runtime: Runtime, mib: number): Promise<Sample> {
  const sample: Record<string, number> = {}
  for (const percent of TOUCHED_PERCENT) {
    const box = await Box.create({ memoryMib: mib, diskGib: 1, template: false, network: 'none' }, runtime)
    try {
      for (const kind of ['full', 'incremental'] as const) {
        await fill(box, touchedMib(mib, percent))
        const { pauseMs, totalMs, memoryBytes } = await box.snapshot(kind)
        sample[saveMetric(kind, mib, percent, 'pause')] = pauseMs
        sample[saveMetric(kind, mib, percent, 'total')] = totalMs
        sample[saveMetric(kind, mib, percent, 'written')] = memoryBytes / 2 ** 20
      }
      Object.assign(sample, await sampleRestore(runtime, box, mib))
    } finally {
      await box.remove({ force: true })
    }
  }
  return sample
}

async function sampleRestore(runtime: Runtime, box: Box, mib: number): Promise<Sample> {
  const { id } = (await box.snapshots()).at(-1)!
  const began = performance.now()
  const restored = await Box.restore(id, {}, runtime)
  try {
    await restored.exec('/bin/true')
    const toExec = performance.now() - began
    const { processMs, runningMs } = restored.bootStages!
    return {
      [restoreMetric(mib, 'process to running')]: runningMs - processMs,
      [restoreMetric(mib, 'to first exec')]: toExec,
    }
  } finally {
    await restored.remove({ force: true })
  }
}
