/** The store on real files: layers, manifests, names, trees, removal, damage. QEMU's tools judge the disks. */
import {
  appendFileSync,
  copyFileSync,
  existsSync,
  readFileSync,
  renameSync,
  rmSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { readAt } from '../host/file.ts'
import { qemuCheck, qemuMissing } from '../qcow2/testing/qemu.ts'
import { Random } from '../qcow2/testing/random.ts'
import { namesIn } from './folder.ts'
import { encodeManifest } from './manifest.ts'
import { applyPlan, RAM, TestHome } from './testing/home.ts'
import { verifySnapshot } from './verify.ts'

const homes: TestHome[] = []
const newHome = (): TestHome => {
  const home = new TestHome()
  homes.push(home)
  return home
}
afterAll(() => {
  for (const home of homes) home.remove()
})

const random = new Random(6)
const page = (): Uint8Array => random.bytes(4096)

describe('a box with snapshots', () => {
  const home = newHome()
  const { store } = home
  const box = home.box()
  const shown: Uint8Array[] = []

  it('is saved whole, then what changed', async () => {
    for (const at of [0, 1, 2, 50, 51, 900]) box.ram.set(page(), at * 4096)
    box.writeDisk(0, random.bytes(100_000))
    const first = await box.snapshot('first')
    shown.push(box.ram.slice())
    box.ram.set(page(), 51 * 4096)
    box.ram.fill(0, 4096, 8192)
    box.ram.set(page(), 1000 * 4096)
    box.writeDisk(65536, random.bytes(5000))
    const second = await box.snapshot('second', [51, 1, 1000])
    shown.push(box.ram.slice())
    expect(second.ancestors).toEqual([first.id])
    expect(second.memory!.layers.map(({ file }) => file)[0]).toBe(first.memory!.layers[0]!.file)
    expect(second.disk.layers.length).toBe(2)
    for (const [index, name] of ['first', 'second'].entries()) {
      const manifest = store.find(box.id, name)
      await store.check(manifest)
      await verifySnapshot(store.folder, manifest)
      using image = store.openMemory(manifest)
      const read = (fd: number, target: Uint8Array, at: number): void => void readAt(fd, target, at)
      expect(Buffer.compare(applyPlan(image, read), shown[index]!)).toBe(0)
      const ram = new Uint8Array(RAM)
      image.read(0, ram)
      expect(Buffer.compare(ram, shown[index]!)).toBe(0)
      expect(Buffer.from(store.openState(manifest)).toString()).toBe('the state of the machine')
    }
  })

  it.skipIf(qemuMissing)('has disk layers that QEMU finds sound', () => {
    for (const file of namesIn(store.layersFolder).filter(name => name.endsWith('.qcow2'))) {
      expect(qemuCheck(store.folder.layer(file))).toMatchObject({ 'check-errors': 0 })
    }
  })

  it('refuses a name that is taken, and what cannot be a name', async () => {
    await expect(box.snapshot('first')).rejects.toMatchObject({ code: 'NAME_IN_USE' })
    await expect(box.begin('../x')).rejects.toMatchObject({ code: 'INVALID' })
    await expect(box.begin('0123456789ab')).rejects.toMatchObject({ code: 'INVALID' })
    expect(store.list(box.id).map(({ name }) => name)).toEqual(['first', 'second'])
  })

  it('keeps what a child needs when its parent is removed, and nothing else', async () => {
    const before = shown[1]!
    const disk = box.readDisk(0, 200_000)
    await store.removeSnapshot(store.find(box.id, 'first'))
    expect(() => store.find(box.id, 'first')).toThrow(/no snapshot 'first'/)
    const second = store.find(box.id, 'second')
    await verifySnapshot(store.folder, second)
    using image = store.openMemory(second)
    const ram = new Uint8Array(RAM)
    image.read(0, ram)
    expect(Buffer.compare(ram, before)).toBe(0)
    await store.removeSnapshot(second)
    box.close()
    // The box's own disk still stands on both layers.
    expect(namesIn(store.layersFolder).filter(name => name.endsWith('.mem'))).toEqual([])
    expect(namesIn(store.layersFolder).length).toBe(2)
    expect(Buffer.compare(box.readDisk(0, 200_000), disk)).toBe(0)
    rmSync(box.folder, { recursive: true })
    expect(await store.sweep()).toMatchObject({ removedFiles: 2, busy: false })
    expect(namesIn(store.layersFolder)).toEqual([])
  })
})

describe('layers', () => {
  it('stay while a box holds them, and while somebody is at work', async () => {
    const home = newHome()
    const { store } = home
    const box = home.box()
    box.ram.set(page(), 0)
    const manifest = await box.snapshot('one')
    store.hold(box.folder, box.image!.layerFiles)
    await store.removeSnapshot(manifest)
    expect(namesIn(store.layersFolder).some(name => name.endsWith('.mem'))).toBe(true)
    // The next one stands on a layer that no manifest lists any more.
    box.ram.set(page(), 4096)
    const next = await box.snapshot('two', [1])
    expect(next.memory!.layers.length).toBe(2)
    await verifySnapshot(store.folder, next)
    store.hold(box.folder, [])
    const draft = await box.begin('three')
    expect((await store.removeSnapshot(next)).busy).toBe(true)
    draft.abort()
    expect((await store.sweep()).removedFiles).toBe(2)
    box.close()
  })

  it('of a draft that was given up, or whose process died, are removed', async () => {
    const home = newHome()
    const { store } = home
    const box = home.box()
    box.writeDisk(0, random.bytes(70_000))
    const disk = box.readDisk(0, 80_000)
    const draft = await box.begin('lost')
    draft.memory({ size: RAM }).write(0, random.bytes(8192))
    draft.freezeDisk(box.disk)
    draft.abort()
    writeFileSync(join(store.folder.tmp, 'left-over'), 'x')
    writeFileSync(join(box.folder, 'disk.qcow2.0123456789ab.overlay'), 'x')
    await store.sweep()
    expect(namesIn(store.folder.tmp)).toEqual([])
    expect(namesIn(box.folder)).toEqual(['disk.qcow2'])
    expect(store.list()).toEqual([])
    expect(Buffer.compare(box.readDisk(0, 80_000), disk)).toBe(0)
    expect((await box.diskSnapshot('kept')).disk.layers.length).toBe(2)
  })

  it('cannot be the parent of anything once they are gone', async () => {
    const home = newHome()
    const box = home.box()
    const manifest = await box.snapshot('one')
    await home.store.removeSnapshot(manifest)
    await expect(box.snapshot('two', [0])).rejects.toMatchObject({ code: 'MISSING_PARENT' })
    expect(home.store.list()).toEqual([])
    box.close()
  })
})

describe('templates', () => {
  it('are found by key, replaced, and ignored when damaged', async () => {
    const home = newHome()
    const { store } = home
    const make = async (): Promise<string> => {
      const box = home.box()
      const draft = await store.begin({
        owner: 'template',
        box: { id: box.id, name: 'x' },
        name: null,
        kind: 'template',
        key: 'image+kernel',
        parent: null,
      })
      draft.memory({ size: RAM }).write(0, random.bytes(4096))
      draft.freezeDisk(box.disk)
      const manifest = await draft.commit(box.facts(true))
      rmSync(box.folder, { recursive: true })
      await store.sweep()
      return manifest.memory!.layers[0]!.file
    }
    const first = await make()
    expect(store.template('image+kernel')!.memory!.layers[0]!.file).toBe(first)
    expect(store.template('other')).toBeUndefined()
    const second = await make()
    expect(store.template('image+kernel')!.memory!.layers[0]!.file).toBe(second)
    expect(namesIn(store.layersFolder).length).toBe(2)
    const { path } = store.folder.entries()[0]!
    truncateSync(path, 100)
    expect(store.template('image+kernel')).toBeUndefined()
  })
})

describe('damage', () => {
  async function damaged() {
    const home = newHome()
    const box = home.box()
    box.ram.set(random.bytes(40 * 4096), 7 * 4096)
    box.writeDisk(0, random.bytes(300_000))
    const manifest = await box.snapshot('one')
    box.close()
    const { store } = home
    return {
      store,
      manifest,
      memory: store.folder.layer(manifest.memory!.layers[0]!.file),
      disk: store.diskPath(manifest),
      path: store.folder.manifest(manifest.owner, manifest.id),
      base: home.base,
    }
  }
  const flip = (path: string, at: number): void => {
    const bytes = readFileSync(path)
    bytes[at]! ^= 4
    rmSync(path)
    writeFileSync(path, bytes)
  }

  it('to a memory layer is noticed before it is used', async () => {
    const { store, manifest, memory } = await damaged()
    flip(memory, 9 * 4096 + 5)
    await expect(store.check(manifest)).rejects.toMatchObject({ code: 'CORRUPT' })
    flip(memory, 9 * 4096 + 5)
    await store.check(manifest)
    flip(memory, RAM + 130)
    expect(() => store.openMemory(manifest)).toThrow(expect.objectContaining({ code: 'CORRUPT' }))
    await expect(store.check(manifest)).rejects.toMatchObject({ code: 'CORRUPT' })
    flip(memory, RAM + 130)
    truncateSync(memory, RAM + 300)
    expect(() => store.openMemory(manifest)).toThrow(expect.objectContaining({ code: 'TRUNCATED' }))
    rmSync(memory)
    expect(() => store.openMemory(manifest)).toThrow(expect.objectContaining({ code: 'MISSING_PARENT' }))
    await expect(store.check(manifest)).rejects.toMatchObject({ code: 'MISSING_PARENT' })
  })

  it('in memory that only the time of the file hides is found by verifying', async () => {
    const { store, manifest, memory } = await damaged()
    const bytes = readFileSync(memory)
    bytes[9 * 4096] ^= 1
    writeFileSync(memory, bytes)
    await expect(verifySnapshot(store.folder, manifest)).rejects.toMatchObject({ code: 'CORRUPT' })
  })

  it('to a disk layer or to the image is noticed', async () => {
    const { store, manifest, disk, base } = await damaged()
    const keep = `${disk}.copy`
    copyFileSync(disk, keep)
    appendFileSync(disk, 'x')
    await expect(store.check(manifest)).rejects.toMatchObject({ code: 'CORRUPT' })
    truncateSync(disk, 1000)
    await expect(store.check(manifest)).rejects.toMatchObject({ code: 'TRUNCATED' })
    renameSync(keep, disk)
    utimesSync(disk, 1, 1)
    await store.check(manifest)
    truncateSync(base, 4096)
    await expect(store.check(manifest)).rejects.toMatchObject({ code: 'MISSING_PARENT' })
    rmSync(base)
    await expect(store.check(manifest)).rejects.toMatchObject({ code: 'MISSING_PARENT' })
  })

  it('to a manifest is said, keeps every layer, and can be removed', async () => {
    const { store, manifest, path, memory } = await damaged()
    const good = readFileSync(path)
    const cases: [Uint8Array, string][] = [
      [good.subarray(0, 4), 'FOREIGN'],
      [good.subarray(0, 40), 'TRUNCATED'],
      [good.subarray(0, 200), 'TRUNCATED'],
      [Buffer.from('something else altogether, and long enough to be a manifest'), 'FOREIGN'],
      [Buffer.concat([good.subarray(0, 8), Buffer.from([9, 0, 0, 0]), good.subarray(12)]), 'NEWER_VERSION'],
      [Buffer.concat([good.subarray(0, 100), Buffer.from([0]), good.subarray(101)]), 'CORRUPT'],
    ]
    for (const [bytes, code] of cases) {
      writeFileSync(path, bytes)
      expect(store.list()).toEqual([])
      expect(() => store.find(manifest.owner, manifest.id)).toThrow(expect.objectContaining({ code }))
      await store.sweep()
      expect(existsSync(memory)).toBe(true)
    }
    // The state is behind what a list reads.
    writeFileSync(path, Buffer.concat([good.subarray(0, -1), Buffer.from([0])]))
    expect(() => store.openState(store.find(manifest.owner, 'one'))).toThrow(
      expect.objectContaining({ code: 'CORRUPT' }),
    )
    // Another's manifest under this name, with everything right in itself.
    writeFileSync(path, encodeManifest({ ...manifest, id: '0123456789ab' }, new Uint8Array(0)))
    expect(() => store.find(manifest.owner, manifest.id)).toThrow(expect.objectContaining({ code: 'CORRUPT' }))
    await store.removeById(manifest.owner, manifest.id)
    expect(existsSync(memory)).toBe(false)
  })
})
