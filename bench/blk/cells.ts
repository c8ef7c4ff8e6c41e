/**
 * What is measured: a table of loads for the guest, the same for every contestant. Every round has a part of each disk to
 * itself, so that what a load finds there (clusters that are new, or only in the backing file) is the same each time.
 */
import type { Metric } from '../harness/benchmark.ts'

export const DISKS = ['raw', 'qcow2', 'overlay'] as const
export type Disk = (typeof DISKS)[number]

interface Load {
  readonly name: string
  readonly write: boolean
  readonly random: boolean
  readonly depth: number
  readonly block: number
}

export interface Cell {
  readonly metric: Metric
  readonly disk: Disk
  readonly load: Load
  /** Which part of the round's share of the disk. */
  readonly zone: number
}

const KIB = 1024
const MIB = 1024 * KIB
/** A zone is written or read whole by a load in order, unless the time is up before. */
const ZONE = 16 * MIB
const ZONES = 3
export const CELL_MS = 400

const random = (write: boolean, depth: number): Load => ({
  ...{ name: `${write ? 'write' : 'read'} 4K depth ${depth}`, write, random: true, depth, block: 4 * KIB },
})
const inOrder = (write: boolean): Load => ({
  ...{ name: `${write ? 'write' : 'read'} 1M`, write, random: false, depth: 1, block: MIB },
})

/** In this order. On `raw` and `qcow2` the first load fills the zone (and allocates it), the others use it. */
const WHOLE: readonly [Load, number][] = [
  [inOrder(true), 0],
  [inOrder(false), 0],
  [random(false, 1), 0],
  [random(false, 32), 0],
  [random(true, 1), 0],
  [random(true, 32), 0],
]
/** On the overlay reads find everything in the backing file, and every write load begins with copying. */
const COPIED: readonly [Load, number][] = [
  [inOrder(false), 0],
  [random(false, 1), 0],
  [random(false, 32), 0],
  [random(true, 1), 0],
  [random(true, 32), 1],
  [inOrder(true), 2],
]

export const CELLS: readonly Cell[] = DISKS.flatMap(disk =>
  (disk === 'overlay' ? COPIED : WHOLE).map(([load, zone]) => ({
    ...{ disk, load, zone },
    metric: { name: `${disk}: ${load.name}`, unit: load.random ? 'IOPS' : 'MiB/s', better: 'higher' as const },
  })),
)

/** How large the disks must be for so many rounds. */
export const diskBytes = (rounds: number): number => rounds * ZONES * ZONE

/** The command for bench/blk/load.c. */
export function commandOf({ disk, load, zone }: Cell, round: number): string {
  const device = `/dev/vd${'abc'[DISKS.indexOf(disk)]}`
  const from = (round * ZONES + zone) * ZONE
  const how = [load.write ? 'write' : 'read', load.random ? 'random' : 'sequential', load.depth, load.block]
  return [device, ...how, from, ZONE, CELL_MS].join(' ')
}

/** The value of a cell's metric from the guest's answer `RESULT OPERATIONS NANOSECONDS`, which took so long out here. */
export function measured({ load }: Cell, answer: string, outsideMs: number): number {
  const match = /^RESULT (\d+) (\d+)/.exec(answer)
  if (!match) throw new Error(`the guest answered '${answer}' to '${load.name}'`)
  const insideMs = Number(match[2]) / 1e6
  if (insideMs > outsideMs * 1.05 + 5) {
    throw new Error(`the guest's clock is wrong: ${insideMs} ms inside were ${outsideMs} ms outside`)
  }
  const perSecond = Number(match[1]) / (insideMs / 1e3)
  return load.random ? perSecond : (perSecond * load.block) / MIB
}

/** A command that takes this long by the guest's clock, and its answer. It takes a little longer out here, for the console. */
export const CLOCK_MS = 2000
export const CLOCK_COMMAND = `sleep ${CLOCK_MS}`
export function checkClock(outsideMs: number): void {
  if (outsideMs >= CLOCK_MS * 0.97 && outsideMs <= CLOCK_MS * 1.3 + 1500) return
  throw new Error(`the guest's clock is wrong: what took ${CLOCK_MS} ms inside took ${outsideMs} ms outside`)
}
