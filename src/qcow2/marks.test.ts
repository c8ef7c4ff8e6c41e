/** What other writers leave in an image: the dirty mark, lazy refcounts, persistent bitmaps. And cuts during rare changes. */
import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { checkDisk, checkStorage } from './check.ts'
import { formatQcow2 } from './create.ts'
import { readHeader } from './header.ts'
import { openDisk } from './open.ts'
import { Qcow2Image } from './qcow2-image.ts'
import { rewriteHeader } from './rewrite-header.ts'
import { readDisk, writeDisk } from './testing/disk-io.ts'
import { type Change, MemoryStorage, survivors } from './testing/memory-storage.ts'
import { qemuCheck, qemuImgOk, qemuIoOk, qemuMissing } from './testing/qemu.ts'
import { Random } from './testing/random.ts'
import { contentsOf, expectSame } from './testing/random-disk.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-marks-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

describe.skipIf(qemuMissing)('what QEMU leaves behind', () => {
  it('repairs an image with lazy refcounts that QEMU did not close, with all its data', () => {
    const path = join(folder, 'lazy.qcow2')
    qemuImgOk('create', '-q', '-f', 'qcow2', '-o', 'lazy_refcounts=on', path, '4M')
    spawnSync('qemu-io', ['-f', 'qcow2', '-c', 'write -P 7 128k 700k', '-c', 'flush', '-c', 'abort', path])
    expect(() => openDisk(path, { format: 'qcow2' })).toThrow(expect.objectContaining({ code: 'DIRTY' }))
    const reader = openDisk(path, { format: 'qcow2', readOnly: true })
    expect(readDisk(reader, 128 * 1024, 512)).toEqual(new Uint8Array(512).fill(7))
    reader.close()
    const report = checkDisk(path, { repair: 'all' })
    expect(report.corruptionsFixed).toBeGreaterThan(0)
    expect(report).toMatchObject({ corruptions: 0, leaks: 0 })
    expect(qemuCheck(path)).toMatchObject({ 'check-errors': 0 })
    const image = openDisk(path, { format: 'qcow2' })
    const expected = new Uint8Array(4 << 20).fill(7, 128 * 1024, 828 * 1024)
    expectSame(contentsOf(image), expected, 'repaired')
    image.close()
  })

  it('counts persistent bitmaps as used, and marks them stale when it writes', () => {
    const path = join(folder, 'bitmap.qcow2')
    qemuImgOk('create', '-q', '-f', 'qcow2', path, '64M')
    qemuImgOk('bitmap', '--add', '--enable', path, 'changes')
    qemuIoOk(path, 'qcow2', 'write -P 1 1M 1M')
    expect(checkDisk(path)).toMatchObject({ corruptions: 0, leaks: 0 })
    const image = openDisk(path, { format: 'qcow2' })
    expect(image.header.autoclearFeatures).toBe(0)
    writeDisk(image, 0, new Uint8Array(4096).fill(2))
    image.close()
    // QEMU drops the stale bitmap by itself; its clusters are leaks until then.
    expect(qemuCheck(path).corruptions ?? 0).toBe(0)
    expect(checkDisk(path, { repair: 'leaks' })).toMatchObject({ corruptions: 0, leaks: 0 })
    qemuIoOk(path, 'qcow2', 'read -P 2 0 4096', 'read -P 1 1M 1M')
  })
})

/** Cuts the log from `first` on at every point, in several ways, and hands each result to `verify`. */
function everyCut(storage: MemoryStorage, first: number, random: Random, verify: (cut: MemoryStorage) => void): void {
  const durable = new MemoryStorage(new Uint8Array(0), false)
  let pending: Change[] = []
  storage.log.forEach((change, at) => {
    if (at >= first) {
      for (const kept of [pending, [], survivors(pending, random), survivors(pending, random)]) {
        const cut = new MemoryStorage(durable.contents(), false)
        for (const done of kept) cut.apply(done)
        verify(cut)
      }
    }
    if (change.kind === 'flush') {
      for (const done of pending) durable.apply(done)
      pending = []
    } else pending.push(change)
  })
}

describe('power cuts during rare changes', () => {
  function filled(random: Random, bytes: Uint8Array): { storage: MemoryStorage; image: Qcow2Image } {
    const storage = new MemoryStorage()
    formatQcow2(storage, 'memory', { size: bytes.length, clusterSize: 1024, refcountBits: random.pick([16, 64]) })
    storage.flush()
    const image = new Qcow2Image(storage, 'memory')
    writeDisk(image, 0, bytes)
    image.flush()
    return { storage, image }
  }

  it('leave a disk of the old size or the new one, with its contents', () => {
    for (let seed = 1; seed <= 3; seed++) {
      const random = new Random(seed)
      const bytes = random.bytes(512 * 151)
      const { storage, image } = filled(random, bytes)
      const first = storage.log.length
      image.resize(4 * 1024 * 1024)
      image.close()
      let grown = 0
      everyCut(storage, first, random, cut => {
        expect(checkStorage(cut, 'memory').corruptions).toBe(0)
        const again = new Qcow2Image(cut, 'memory', { readOnly: true })
        expect([bytes.length, 4 * 1024 * 1024]).toContain(again.sizeBytes)
        if (again.sizeBytes > bytes.length) {
          grown++
          expect(readDisk(again, bytes.length, 4096).every(byte => byte === 0)).toBe(true)
        }
        expectSame(readDisk(again, 0, bytes.length), bytes, 'after the cut')
      })
      expect(grown).toBeGreaterThan(0)
    }
  })

  it('leave the old backing file or the new one, by its whole name', () => {
    const random = new Random(4)
    const names = ['short', `${'long'.repeat(100)}/name`, `${'other'.repeat(60)}/name`, undefined, 'x'.repeat(450)]
    const bytes = random.bytes(8192)
    const { storage, image } = filled(random, bytes)
    let before: string | undefined
    for (const name of names) {
      const first = storage.log.length
      rewriteHeader(image.metadata, { backingFile: name, backingFormat: name === undefined ? undefined : 'raw' })
      const seen = new Set<string | undefined>()
      everyCut(storage, first, random, cut => {
        const header = readHeader(cut, 'memory')
        seen.add(header.backingFile)
        expect([before, name]).toContain(header.backingFile)
        expect(header.backingFormat).toBe(header.backingFile === undefined ? undefined : 'raw')
      })
      expect(seen.size).toBe(2)
      before = name
    }
  })

  it('leave an image that can be repaired, during a repair', () => {
    const random = new Random(6)
    const bytes = random.bytes(65536)
    const { storage, image } = filled(random, bytes)
    image.close()
    // All refcounts of the first block are gone.
    storage.write(new Uint8Array(1024), readBlockOffset(storage))
    storage.flush()
    const first = storage.log.length
    expect(checkStorage(storage, 'memory', { repair: 'all' })).toMatchObject({ corruptions: 0 })
    everyCut(storage, first, random, cut => {
      expect(checkStorage(cut, 'memory', { repair: 'all' }).corruptions).toBe(0)
      expectSame(contentsOf(new Qcow2Image(cut, 'memory')), bytes, 'after the cut')
    })
  })
})

function readBlockOffset(storage: MemoryStorage): number {
  const entry = new Uint8Array(8)
  storage.read(entry, readHeader(storage, 'memory').refcountTableOffset)
  return new DataView(entry.buffer).getUint32(4)
}
