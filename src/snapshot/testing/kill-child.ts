/**
 * Works on a store without end until it is killed: `kill-child HOME SEED STREAM`. Two boxes take snapshots (full, incremental,
 * disk only), remove them, make templates, and a stream is imported again and again. Everything it writes carries a version
 * that its manifest names, so that whoever looks afterwards knows what must be there.
 */
import { createReadStream, existsSync } from 'node:fs'
import { join } from 'node:path'
import { createDisk } from '../../qcow2/create.ts'
import { openDisk } from '../../qcow2/open.ts'
import { writeDisk } from '../../qcow2/testing/disk-io.ts'
import { Random } from '../../qcow2/testing/random.ts'
import { SnapshotError } from '../errors.ts'
import { importSnapshot } from '../import.ts'
import type { MemoryImage } from '../memory-image.ts'
import { SnapshotStore } from '../store.ts'
import { KILL_BOXES, KILL_RAM, pagesOf, pattern } from './kill-pattern.ts'

const [home, seed, stream] = process.argv.slice(2) as [string, string, string]
const random = new Random(Number(seed))
const store = new SnapshotStore(home)
const base = join(home, 'images/disks/base.ext4')

interface State {
  image: MemoryImage | undefined
  ram: Uint8Array
  parent: string | null
}
const states = new Map<string, State>(
  KILL_BOXES.map(id => [id, { image: undefined, ram: new Uint8Array(KILL_RAM), parent: null }]),
)

function bump(id: string): number {
  const version = 1 + random.below(1_000_000)
  const disk = join(home, 'boxes', id, 'disk.qcow2')
  if (!existsSync(disk)) createDisk(disk, { format: 'qcow2', size: 8 << 20, backing: { file: base, format: 'raw' } })
  const image = openDisk(disk, { format: 'qcow2', backingFolders: 'any' })
  writeDisk(image, 65536, pattern(version))
  image.close()
  return version
}

async function take(id: string, kind: 'full' | 'incremental' | 'disk' | 'template'): Promise<void> {
  const state = states.get(id)!
  const version = bump(id)
  const isTemplate = kind === 'template'
  const draft = await store.begin({
    owner: isTemplate ? 'template' : id,
    box: { id, name: id },
    name: isTemplate || random.below(4) === 0 ? null : `s${random.below(40)}`,
    kind: isTemplate ? 'template' : 'snapshot',
    ...(isTemplate ? { key: `key${random.below(3)}` } : {}),
    parent: isTemplate ? null : state.parent,
  })
  try {
    let image: MemoryImage | undefined
    const hasMemory = kind !== 'disk'
    if (hasMemory) {
      const isNext = kind === 'incremental' && state.image !== undefined && state.image.layers.length < 6
      const writer = draft.memory({ size: KILL_RAM, ...(isNext ? { parent: state.image! } : {}) })
      for (const page of pagesOf(version)) state.ram.set(pattern(version).subarray(0, 4096), page * 4096)
      if (isNext)
        for (const page of pagesOf(version))
          writer.write(page * 4096, state.ram.subarray(page * 4096, page * 4096 + 4096))
      else writer.write(0, state.ram)
      image = writer.seal()
    }
    draft.freezeDisk(join(home, 'boxes', id, 'disk.qcow2'))
    const shape = { accelerator: 'soft', cpus: 1, memoryMib: KILL_RAM / 2 ** 20, kernel: 'k', initrd: 'i' }
    const { id: made } = await draft.commit({
      state: hasMemory ? Buffer.from(`state ${version}`) : null,
      machine: hasMemory ? shape : null,
      cpu: null,
      base,
      image: 'base',
      imageId: 'x',
      settings: { version },
    })
    if (!isTemplate) state.parent = made
    if (image && !isTemplate) {
      state.image?.close()
      state.image = image
      store.hold(join(home, 'boxes', id), image.layerFiles)
    } else image?.close()
  } finally {
    draft.abort()
  }
}

const work = async (): Promise<void> => {
  const id = KILL_BOXES[random.below(KILL_BOXES.length)]!
  switch (random.below(8)) {
    case 0:
      return take(id, 'full')
    case 1:
    case 2:
      return take(id, 'incremental')
    case 3:
      return take(id, 'disk')
    case 4:
      return take(id, 'template')
    case 5:
      await importSnapshot(store, createReadStream(stream), { name: `i${random.below(4)}` })
      return
    default: {
      const all = store.list()
      if (all.length > 3) await store.removeSnapshot(all[random.below(all.length)]!)
    }
  }
}

// A byte for everything that is done, so that who kills knows how far it is.
for (;;) {
  process.stdout.write('.')
  try {
    await work()
  } catch (error) {
    // Names are drawn from few, so some are in use; a parent may be removed before its child is made.
    if (!(error instanceof SnapshotError && ['NAME_IN_USE', 'MISSING_PARENT'].includes(error.code))) throw error
    for (const state of states.values()) {
      if (error.code !== 'MISSING_PARENT') continue
      state.image?.close()
      state.image = undefined
    }
  }
}
