/**
 * What can go wrong with snapshots of a box that runs: each is a typed error, the box runs on, and nothing half-made is left. The home
 * is a small file system of its own, so that it can be filled.
 */
import {
  createReadStream,
  createWriteStream,
  mkdtempSync,
  readFileSync,
  rmSync,
  statfsSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { snapshotStore } from '../../src/box/snapshots.ts'
import { kernelsFolder } from '../../src/image/kernel/cache.ts'
import { Box, Runtime } from '../../src/index.ts'
import { exportSnapshot } from '../../src/snapshot/export.ts'
import { namesIn } from '../../src/snapshot/folder.ts'
import { importSnapshot } from '../../src/snapshot/import.ts'
import { encodeManifest, type SnapshotManifest } from '../../src/snapshot/manifest.ts'
import { mountSmallFs, smallFsMissing, unmountSmallFs } from '../virtio/small-fs.ts'

const LIMIT_MS = 180_000
const HOME_MIB = 512
/** Room for a few pages of memory, not for all of them. */
const LEFT_MIB = 8

describe.skipIf(smallFsMissing)('a box that runs', () => {
  const scratch = mkdtempSync(join(tmpdir(), 'vitrine-bad-'))
  const home = join(scratch, 'home')
  const ballast = join(home, 'ballast')
  let runtime: Runtime
  let box: Box

  beforeAll(async () => {
    mountSmallFs(home, HOME_MIB)
    symlinkSync(kernelsFolder(), join(home, 'kernels'))
    runtime = new Runtime({ home, defaults: { accel: 'soft', memoryMib: 128, diskGib: 1, network: 'none' } })
    box = await Box.create({ name: 'box', template: false }, runtime)
    await box.exec('sh', ['-c', 'echo kept > /root/kept; sync'])
  }, LIMIT_MS)

  afterAll(async () => {
    for (const each of runtime ? await Box.list(runtime) : []) await each.remove({ force: true })
    // A VMM process lets go of its lock a moment before it ends.
    await vi.waitFor(() => unmountSmallFs(home), { timeout: 10_000, interval: 100 })
    rmSync(scratch, { recursive: true })
  }, LIMIT_MS)

  const fill = (): void => {
    const { bavail, bsize } = statfsSync(home)
    writeFileSync(ballast, new Uint8Array(bavail * bsize - LEFT_MIB * 2 ** 20))
  }
  const runsOn = async (): Promise<void> => {
    expect([box.state, (await box.exec('cat', ['/root/kept'])).stdout]).toEqual(['running', 'kept\n'])
    const store = snapshotStore(runtime)
    await store.sweep(10_000)
    expect(namesIn(store.folder.tmp)).toEqual([])
  }
  const names = async (): Promise<(string | null)[]> => (await box.snapshots()).map(({ name }) => name)

  it('is not saved where there is no space, and is when there is', { timeout: LIMIT_MS }, async () => {
    fill()
    await expect(box.snapshot('first')).rejects.toMatchObject({ code: 'NO_SPACE' })
    await expect(box.fork({ count: 2 })).rejects.toMatchObject({ code: 'NO_SPACE' })
    await expect(box.pause({ release: true })).rejects.toMatchObject({ code: 'NO_SPACE' })
    await runsOn()
    expect([await names(), (await Box.list(runtime)).length]).toEqual([[], 1])
    rmSync(ballast)
    await box.snapshot('first')
    expect(await names()).toEqual(['first'])
    await runsOn()
  })

  it('has one snapshot of a name', { timeout: LIMIT_MS }, async () => {
    await expect(box.snapshot('first')).rejects.toMatchObject({ code: 'NAME_IN_USE' })
    await expect(box.snapshot('no/name')).rejects.toMatchObject({ code: 'INVALID' })
    await expect(box.rollback('never')).rejects.toMatchObject({ code: 'NOT_FOUND' })
    await runsOn()
  })

  /** Every way to use a snapshot, with `first` made unusable: the box runs on as if nobody had asked. */
  async function refuses(code: string): Promise<void> {
    await expect(box.rollback('first')).rejects.toMatchObject({ code })
    await expect(Box.restore('box@first', {}, runtime)).rejects.toMatchObject({ code })
    expect((await Box.list(runtime)).map(({ name }) => name)).toEqual(['box'])
    await runsOn()
  }

  it('is not put back to what is damaged, cut short or gone', { timeout: LIMIT_MS }, async () => {
    const store = snapshotStore(runtime)
    const manifest = store.find(box.id, 'first')
    const path = store.folder.manifest(box.id, manifest.id)
    const good = readFileSync(path)
    writeFileSync(path, Buffer.concat([good.subarray(0, -1), Buffer.from([good.at(-1)! ^ 1])]))
    await refuses('CORRUPT')
    writeFileSync(path, good)
    const memory = store.folder.layer(manifest.memory!.layers[0]!.file)
    const bytes = readFileSync(memory)
    // Nobody has pages of this file mapped: the box was saved to it, not restored from it.
    truncateSync(memory, bytes.length - 1)
    await refuses('TRUNCATED')
    rmSync(memory)
    await refuses('MISSING_PARENT')
    writeFileSync(memory, bytes)
    await store.verify(manifest)
  })

  it('is not put back on a host without its CPU or accelerator', { timeout: LIMIT_MS }, async () => {
    const store = snapshotStore(runtime)
    const manifest = store.find(box.id, 'first')
    const path = store.folder.manifest(box.id, manifest.id)
    const good = readFileSync(path)
    const state = store.openState(manifest)
    const as = (change: Partial<SnapshotManifest>): void =>
      writeFileSync(path, encodeManifest({ ...manifest, ...change }, state))
    as({ cpu: { ...manifest.cpu!, features: [...manifest.cpu!.features, 'avx512f'], digest: 'another' } })
    await refuses('CPU_FEATURE')
    as({ machine: { ...manifest.machine!, accelerator: 'hvf' } })
    await refuses('ACCELERATOR')
    writeFileSync(path, good)
    await box.rollback('first')
    await runsOn()
  })

  it('takes no import that does not fit, or is not what was exported', { timeout: LIMIT_MS }, async () => {
    const store = snapshotStore(runtime)
    const file = join(scratch, 'exported')
    await pipeline(exportSnapshot(store, store.find(box.id, 'first')), createWriteStream(file))
    fill()
    await expect(importSnapshot(store, createReadStream(file), { name: 'big' })).rejects.toMatchObject({
      code: 'NO_SPACE',
    })
    rmSync(ballast)
    truncateSync(file, statSync(file).size - 1)
    await expect(importSnapshot(store, createReadStream(file), { name: 'cut' })).rejects.toMatchObject({
      code: 'TRUNCATED',
    })
    expect(store.list('import')).toEqual([])
    await runsOn()
  })
})
