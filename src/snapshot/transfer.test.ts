/** Export and import: what comes out is what went in, and every damaged stream is refused and leaves nothing. */
import { rmSync, statSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { openDisk } from '../qcow2/open.ts'
import { writeDisk } from '../qcow2/testing/disk-io.ts'
import { qemuImgOk, qemuMissing } from '../qcow2/testing/qemu.ts'
import { Random } from '../qcow2/testing/random.ts'
import { SnapshotError } from './errors.ts'
import { exportSnapshot } from './export.ts'
import { namesIn } from './folder.ts'
import { importSnapshot } from './import.ts'
import type { SnapshotManifest } from './manifest.ts'
import { damageStream } from './testing/damage.ts'
import { DISK, MIB, RAM, type TestBox, TestHome } from './testing/home.ts'

const home = new TestHome()
const other = new TestHome()
const random = new Random(12)
let box: TestBox
let manifest: SnapshotManifest
let stream: Buffer
let whole: Buffer

async function collect(source: AsyncIterable<Uint8Array>): Promise<Buffer> {
  const parts: Uint8Array[] = []
  for await (const part of source) parts.push(part)
  return Buffer.concat(parts)
}

/** As a pipe gives it: pieces of any size. */
async function* pieces(bytes: Buffer): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; ) {
    const size = 1 + random.below(100_000)
    yield bytes.subarray(at, at + size)
    at += size
  }
}

beforeAll(async () => {
  for (const each of [home, other]) {
    const base = openDisk(each.base, { format: 'raw' })
    writeDisk(base, 0, new Random(5).bytes(300_000))
    writeDisk(base, 5 * MIB, new Random(6).bytes(MIB))
    base.close()
  }
  box = home.box()
  box.ram.set(random.bytes(MIB), MIB)
  box.ram.fill(7, 3 * MIB, 3 * MIB + 40_000)
  box.writeDisk(100_000, random.bytes(50_000))
  box.writeDisk(10 * MIB, new Uint8Array(MIB).fill(3))
  await box.snapshot('first')
  box.ram.set(random.bytes(4096), 0)
  // The image's bytes under this become zeros.
  box.writeDisk(5 * MIB, new Uint8Array(65536 * 3))
  manifest = await box.snapshot('second', [0])
  stream = await collect(exportSnapshot(home.store, manifest))
  whole = await collect(exportSnapshot(home.store, manifest, { withImage: true }))
})

afterAll(() => {
  box.close()
  home.remove()
  other.remove()
})

function expectSame(store: TestHome['store'], imported: SnapshotManifest): void {
  using image = store.openMemory(imported)
  const ram = new Uint8Array(RAM)
  image.read(0, ram)
  expect(Buffer.compare(ram, box.ram)).toBe(0)
  const now = box.readDisk(0, DISK, store.diskPath(imported))
  expect(Buffer.compare(now, box.readDisk(0, DISK))).toBe(0)
  expect(imported).toMatchObject({ owner: 'import', settings: manifest.settings, machine: manifest.machine })
  expect(Buffer.compare(store.openState(imported), home.store.openState(manifest))).toBe(0)
}

describe('a stream', () => {
  it('gives the same snapshot in another home that has the image', async () => {
    const { store } = other
    const imported = await importSnapshot(store, pieces(stream))
    expect(imported).toMatchObject({ name: 'second', memory: { bytes: RAM }, cpu: manifest.cpu })
    expect(imported.disk.base?.path).toBe(other.base)
    await store.check(imported)
    await store.verify(imported)
    using image = store.openMemory(imported)
    const ram = new Uint8Array(RAM)
    image.read(0, ram)
    expect(Buffer.compare(ram, box.ram)).toBe(0)
    if (!qemuMissing) {
      qemuImgOk('check', store.diskPath(imported))
      qemuImgOk('compare', '-f', 'qcow2', '-F', 'qcow2', store.diskPath(imported), home.store.diskPath(manifest))
    }
    await expect(importSnapshot(store, pieces(stream))).rejects.toMatchObject({ code: 'NAME_IN_USE' })
    await store.removeSnapshot(await importSnapshot(store, pieces(stream), { name: 'again' }))
    await store.removeSnapshot(imported)
    expect(namesIn(store.layersFolder)).toEqual([])
  })

  it('drops zeros, and packs what can be packed', () => {
    // 1 MiB of noise in memory, 200 KiB of it on the disk; the runs of one byte are nothing.
    expect(stream.length).toBeLessThan(1.4 * MIB)
    expect(whole.length).toBeLessThan(2.8 * MIB)
  })

  it('with the image needs no image', async () => {
    const bare = new TestHome()
    rmSync(bare.base)
    const { store } = bare
    await expect(importSnapshot(store, pieces(stream))).rejects.toMatchObject({ code: 'MISSING_PARENT' })
    const imported = await importSnapshot(store, pieces(whole), { name: 'x' })
    expect(imported.disk.base).toBeNull()
    await store.check(imported)
    expectSame(store, imported)
    // And goes on from there.
    const again = await collect(exportSnapshot(store, imported))
    await importSnapshot(store, pieces(again), { name: 'y' })
    bare.remove()
  })

  it('of a disk alone has no memory', async () => {
    const only = await box.diskSnapshot('disk')
    const imported = await importSnapshot(other.store, exportSnapshot(home.store, only))
    expect(imported).toMatchObject({ memory: null, machine: null, name: 'disk' })
    expect(() => other.store.openMemory(imported)).toThrow(expect.objectContaining({ code: 'NO_MEMORY_STATE' }))
    await other.store.removeSnapshot(imported)
  })

  it('that is cut anywhere is refused and leaves nothing', async () => {
    for (const length of [0, 5, 15, 16, 30, 48, 100, 2000, stream.length - 70, stream.length - 1]) {
      const cut = stream.subarray(0, length)
      await expect(importSnapshot(other.store, pieces(cut))).rejects.toMatchObject({ code: 'TRUNCATED' })
    }
    expect(other.store.list()).toEqual([])
    await expect(importSnapshot(other.store, pieces(Buffer.concat([stream, Buffer.from('x')])))).rejects.toThrow(
      /follows/,
    )
  })

  it('that is foreign or newer is refused', async () => {
    const foreign = Buffer.from('PK\x03\x04 this is something else entirely')
    await expect(importSnapshot(other.store, pieces(foreign))).rejects.toMatchObject({ code: 'FOREIGN' })
    const newer = Buffer.from(stream)
    newer.writeUInt32LE(2, 8)
    await expect(importSnapshot(other.store, pieces(newer))).rejects.toMatchObject({ code: 'NEWER_VERSION' })
  })

  it('that is damaged anywhere is refused with a typed error and leaves nothing', async () => {
    for (let round = 0; round < 25; round++) {
      const damaged = damageStream(stream, random)
      const error = await importSnapshot(other.store, pieces(damaged)).catch((problem: unknown) => problem)
      if (!(error instanceof SnapshotError)) throw new Error(`round ${round}: ${String(error)}`)
    }
    expect(other.store.list()).toEqual([])
    await other.store.sweep()
    expect(namesIn(other.store.layersFolder)).toEqual([])
    expect(namesIn(other.store.folder.tmp)).toEqual([])
    expect(statSync(other.base).size).toBe(8 * MIB)
  })
})
