/** Forking: the time until all forks have answered a command, and what each adds to the host. */
import { readFileSync } from 'node:fs'
import { Box } from '../../src/box/box.ts'
import type { Runtime } from '../../src/box/runtime.ts'
import type { Sample } from '../harness/benchmark.ts'
import { forkMetric } from './parts.ts'

const GUEST_MIB = 128

export async function sampleForks(runtime: Runtime, count: number): Promise<Sample> {
  await using box = await Box.create({ memoryMib: GUEST_MIB, diskGib: 1 }, runtime)
  await box.exec('/bin/true')
  const began = performance.now()
  const forks = await box.fork({ count })
  try {
    await Promise.all(forks.map(fork => fork.exec('/bin/true')))
    const all = performance.now() - began
    const pids = await Promise.all(forks.map(async fork => (await fork.vmm()).pid))
    const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / count
    return {
      [forkMetric(count, 'all answered')]: all,
      [forkMetric(count, 'PSS each')]: mean(pids.map(proportionalSize)) / 1024,
      [forkMetric(count, 'guest pages of its own, each')]: mean(pids.map(ownGuestPages)) / 1024,
      [forkMetric(count, 'processor time each')]: mean(pids.map(processorTime)),
    }
  } finally {
    await Promise.all(forks.map(fork => fork.remove({ force: true })))
  }
}

/** KiB of a process, what it shares with others counted in parts. */
function proportionalSize(pid: number): number {
  return Number(/^Pss:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'))![1])
}

/** KiB of guest memory that are the process's own: what it wrote since it was restored, between the mappings of the layers and in them. */
function ownGuestPages(pid: number): number {
  let [own, pending, seen] = [0, 0, false]
  let isLayer = false
  for (const line of readFileSync(`/proc/${pid}/smaps`, 'latin1').split('\n')) {
    if (/^[0-9a-f]+-[0-9a-f]+ /.test(line)) {
      isLayer = /\.mem( \(deleted\))?$/.test(line)
      if (isLayer) {
        if (seen) own += pending
        pending = 0
        seen = true
      }
    } else if (line.startsWith('Anonymous:')) {
      const kib = Number.parseInt(line.slice(10), 10)
      if (isLayer) own += kib
      else pending += kib
    }
  }
  return own
}

/** Milliseconds, all threads. */
function processorTime(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * 10
}
