/** Compares what an image refers to with what its refcounts say, and repairs the difference on request. */
import { viewOver } from './bytes.ts'
import { CheckReport } from './check-report.ts'
import { ReferenceWalk, type WalkOptions } from './check-walk.ts'
import { DiskError } from './errors.ts'
import { type Header, readHeader } from './header.ts'
import { HI_COMPRESSED, HI_OFFSET, INCOMPAT_CORRUPT, INCOMPAT_DIRTY, LO_OFFSET, TWO_32 } from './layout.ts'
import { lockImage } from './lock.ts'
import { openImageFd } from './open.ts'
import { getRefcount } from './refcount-width.ts'
import { repairImage } from './repair.ts'
import { FileStorage, type Storage } from './storage.ts'

/** What a check does about what it finds. */
export interface CheckOptions extends WalkOptions {
  /** `leaks`: give back what nothing uses. `all`: also rebuild refcounts and flags, and drop impossible entries. */
  readonly repair?: 'leaks' | 'all'
}

/** Checks the image at `path`. Its backing chain is not looked at. */
export function checkDisk(path: string, options: CheckOptions = {}): CheckReport {
  const writable = options.repair !== undefined
  const fd = openImageFd(path, writable)
  const storage = new FileStorage(fd)
  try {
    lockImage(fd, writable, path)
    return checkStorage(storage, path, options)
  } finally {
    storage.close()
  }
}

export function checkStorage(storage: Storage, path: string, options: CheckOptions = {}): CheckReport {
  const found = inspect(storage, path, options)
  if (options.repair === undefined || (found.report.isClean && !isMarked(found.header))) return found.report
  const before = found.report
  const rebuild = before.corruptions > 0 || isMarked(found.header)
  if (rebuild && options.repair !== 'all') {
    throw new DiskError(
      'CORRUPT',
      path,
      `has ${before.corruptions} errors besides leaks; repair all of it (--repair all)`,
    )
  }
  repairImage(storage, path, found.header, found.walk, rebuild)
  const after = inspect(storage, path, options).report
  after.corruptionsFixed = Math.max(0, before.corruptions - after.corruptions)
  after.leaksFixed = Math.max(0, before.leaks - after.leaks)
  return after
}

const isMarked = (header: Header): boolean => (header.incompatibleFeatures & (INCOMPAT_DIRTY | INCOMPAT_CORRUPT)) !== 0

interface Findings {
  readonly report: CheckReport
  readonly walk: ReferenceWalk
  readonly header: Header
}

function inspect(storage: Storage, path: string, options: CheckOptions): Findings {
  const header = readHeader(storage, path)
  const report = new CheckReport()
  const walk = new ReferenceWalk(storage, header, report, path, options)
  compareRefcounts(storage, walk, report)
  checkCopiedFlags(storage, header, walk, report)
  report.imageEndOffset = walk.counts.end * walk.geometry.clusterSize
  return { report, walk, header }
}

/** Every refcount against the number of references. */
function compareRefcounts(storage: Storage, walk: ReferenceWalk, report: CheckReport): void {
  const { blockEntries, clusterSize, refcountBits } = walk.geometry
  const bytes = new Uint8Array(clusterSize)
  const view = viewOver(bytes)
  const covered = new Set<number>()
  for (let index = 0; index < walk.refcountBlocks.length; index++) {
    const block = walk.refcountBlocks[index]!
    if (block === 0) continue
    covered.add(index)
    storage.read(bytes, block)
    for (let i = 0; i < blockEntries; i++) {
      const refcount = getRefcount(view, 0, i, refcountBits)
      const cluster = index * blockEntries + i
      const references = walk.counts.get(cluster)
      if (refcount === references) continue
      const says = `cluster ${cluster} has refcount ${refcount} and ${references} references`
      if (refcount < references) report.corruption(says)
      else report.leak(says)
    }
  }
  walk.counts.forEach((cluster, references) => {
    if (covered.has(Math.floor(cluster / blockEntries))) return
    report.corruption(`cluster ${cluster} has ${references} references and no refcount block`)
  })
}

/** COPIED must be set exactly where the refcount is 1; only the active tables have to keep it right. */
function checkCopiedFlags(storage: Storage, header: Header, walk: ReferenceWalk, report: CheckReport): void {
  const l1 = new Uint8Array(header.l1Size * 8)
  storage.read(l1, header.l1TableOffset)
  const l1View = viewOver(l1)
  const { clusterSize, l2Entries } = walk.geometry
  const bytes = new Uint8Array(clusterSize)
  const view = viewOver(bytes)
  for (const [table, use] of walk.tables) {
    if (use.active < 0) continue
    const single = walk.counts.get(table / clusterSize) === 1
    if (l1View.getUint32(use.active * 8) >>> 31 !== (single ? 1 : 0)) {
      report.corruption(`L1 entry ${use.active} has a wrong COPIED flag`)
    }
    storage.read(bytes, table)
    for (let i = 0; i < l2Entries; i++) {
      const hi = view.getUint32(i * 8)
      if ((hi & HI_COMPRESSED) !== 0) continue
      const offset = (hi & HI_OFFSET) * TWO_32 + ((view.getUint32(i * 8 + 4) & LO_OFFSET) >>> 0)
      if (offset === 0 || offset % clusterSize !== 0) continue
      const copied = walk.counts.get(offset / clusterSize) === 1 ? 1 : 0
      if (hi >>> 31 !== copied) report.corruption(`L2 entry ${i} of the table at ${table} has a wrong COPIED flag`)
    }
  }
}
