/**
 * Repairs. Leaks are set right in place. Anything worse gets a whole new refcount structure behind the end of the file,
 * which one write of the header makes valid: a crash in between leaves the image as it was.
 */
import { setU64, viewOver } from './bytes.ts'
import type { ReferenceWalk } from './check-walk.ts'
import { DiskError } from './errors.ts'
import type { Header } from './header.ts'
import {
  HEADER,
  HI_COMPRESSED,
  HI_OFFSET,
  INCOMPAT_CORRUPT,
  INCOMPAT_DIRTY,
  LO_OFFSET,
  MAX_REFCOUNT_TABLE_BYTES,
  TWO_32,
} from './layout.ts'
import { getRefcount, maxRefcount, setRefcount } from './refcount-width.ts'
import type { Storage } from './storage.ts'

export function repairImage(
  storage: Storage,
  path: string,
  header: Header,
  walk: ReferenceWalk,
  rebuild: boolean,
): void {
  if (!rebuild) {
    lowerRefcounts(storage, walk)
    storage.flush()
    return
  }
  if (walk.badEntryCount > walk.badEntries.length) {
    throw new DiskError(
      'TOO_LARGE',
      path,
      `has ${walk.badEntryCount} entries that lead nowhere, too many to repair; restore a copy, or convert what is left`,
    )
  }
  dropBadEntries(storage, walk)
  // The old refcount structures are replaced, so they count no longer.
  for (const cluster of walk.refcountClusters) walk.counts.add(cluster, -1)
  const plan = planRebuild(storage, path, walk)
  fixCopiedFlags(storage, header, walk)
  writeStructure(storage, walk, plan)
  storage.flush()
  const sector = new Uint8Array(Math.min(512, walk.geometry.clusterSize))
  storage.read(sector, 0)
  const view = viewOver(sector)
  setU64(view, HEADER.refcountTableOffset, plan.tableOffset)
  view.setUint32(HEADER.refcountTableClusters, plan.tableClusters)
  if (header.version >= 3) {
    const features = header.incompatibleFeatures & ~(INCOMPAT_DIRTY | INCOMPAT_CORRUPT)
    view.setUint32(HEADER.incompatibleFeatures + 4, features >>> 0)
  }
  storage.write(sector, 0)
  storage.flush()
}

function lowerRefcounts(storage: Storage, walk: ReferenceWalk): void {
  const { blockEntries, clusterSize, refcountBits } = walk.geometry
  const bytes = new Uint8Array(clusterSize)
  const view = viewOver(bytes)
  for (let index = 0; index < walk.refcountBlocks.length; index++) {
    const block = walk.refcountBlocks[index]!
    if (block === 0) continue
    storage.read(bytes, block)
    let changed = false
    for (let i = 0; i < blockEntries; i++) {
      const references = walk.counts.get(index * blockEntries + i)
      if (getRefcount(view, 0, i, refcountBits) <= references) continue
      setRefcount(view, 0, i, refcountBits, references)
      changed = true
    }
    if (changed) storage.write(bytes, block)
  }
}

function dropBadEntries(storage: Storage, walk: ReferenceWalk): void {
  const entry = new Uint8Array(8)
  const view = viewOver(entry)
  for (const bad of walk.badEntries) {
    view.setUint32(0, bad.hi)
    view.setUint32(4, bad.lo)
    storage.write(entry, bad.position)
  }
}

interface Plan {
  /** Offsets of the new blocks by index; 0 for a range of clusters that nothing is in. */
  readonly blocks: Float64Array
  readonly tableOffset: number
  readonly tableClusters: number
}

function planRebuild(storage: Storage, path: string, walk: ReferenceWalk): Plan {
  const { blockEntries, clusterSize, refcountBits } = walk.geometry
  const most = maxRefcount(refcountBits)
  const wanted = new Set<number>()
  walk.counts.forEach((cluster, references) => {
    wanted.add(Math.floor(cluster / blockEntries))
    if (references > most) {
      throw new DiskError(
        'CORRUPT',
        path,
        `cluster ${cluster} has ${references} references, more than a refcount holds: convert the image instead`,
      )
    }
  })
  const start = Math.ceil(storage.size() / clusterSize)
  let used = 0
  let tableClusters = 0
  let entries = 0
  // The structure describes itself, so its size is found by going round until nothing is added.
  for (;;) {
    for (let c = start; c < start + used; c += 1) wanted.add(Math.floor(c / blockEntries))
    for (const index of wanted) entries = Math.max(entries, index + 1)
    tableClusters = Math.ceil((entries * 8) / clusterSize)
    const need = wanted.size + tableClusters
    if (need === used) break
    used = need
  }
  if (tableClusters * clusterSize > MAX_REFCOUNT_TABLE_BYTES) {
    throw new DiskError('TOO_LARGE', path, 'its clusters reach too far for a refcount table; convert the image instead')
  }
  const blocks = new Float64Array((tableClusters * clusterSize) / 8)
  let next = start
  for (const index of [...wanted].sort((a, b) => a - b)) blocks[index] = next++ * clusterSize
  for (let c = start; c < start + used; c++) walk.counts.add(c, 1)
  return { blocks, tableOffset: next * clusterSize, tableClusters }
}

function writeStructure(storage: Storage, walk: ReferenceWalk, plan: Plan): void {
  const { blockEntries, clusterSize, refcountBits } = walk.geometry
  const bytes = new Uint8Array(clusterSize)
  const view = viewOver(bytes)
  for (let index = 0; index < plan.blocks.length; index++) {
    const block = plan.blocks[index]!
    if (block === 0) continue
    bytes.fill(0)
    for (let i = 0; i < blockEntries; i++) {
      const references = walk.counts.get(index * blockEntries + i)
      if (references > 0) setRefcount(view, 0, i, refcountBits, references)
    }
    storage.write(bytes, block)
  }
  const table = new Uint8Array(plan.tableClusters * clusterSize)
  for (let i = 0; i < plan.blocks.length; i++) setU64(viewOver(table), i * 8, plan.blocks[i]!)
  storage.write(table, plan.tableOffset)
}

/** Sets COPIED where there is one reference and clears it elsewhere, in the active tables. */
function fixCopiedFlags(storage: Storage, header: Header, walk: ReferenceWalk): void {
  const { clusterSize, l2Entries } = walk.geometry
  const l1 = new Uint8Array(header.l1Size * 8)
  storage.read(l1, header.l1TableOffset)
  const l1View = viewOver(l1)
  for (let i = 0; i < header.l1Size; i++) fixFlag(l1View, i, clusterSize, walk)
  storage.write(l1, header.l1TableOffset)
  const bytes = new Uint8Array(clusterSize)
  const view = viewOver(bytes)
  for (const [table, use] of walk.tables) {
    if (use.active < 0) continue
    storage.read(bytes, table)
    let changed = false
    for (let i = 0; i < l2Entries; i++) changed = fixFlag(view, i, clusterSize, walk) || changed
    if (changed) storage.write(bytes, table)
  }
}

function fixFlag(view: DataView, index: number, clusterSize: number, walk: ReferenceWalk): boolean {
  const hi = view.getUint32(index * 8)
  if ((hi & HI_COMPRESSED) !== 0) return false
  const offset = (hi & HI_OFFSET) * TWO_32 + ((view.getUint32(index * 8 + 4) & LO_OFFSET) >>> 0)
  if (offset === 0 || offset % clusterSize !== 0) return false
  const wanted = walk.counts.get(offset / clusterSize) === 1 ? 1 : 0
  if (hi >>> 31 === wanted) return false
  view.setUint32(index * 8, ((hi & 0x7fffffff) | (wanted === 1 ? 0x80000000 : 0)) >>> 0)
  return true
}
