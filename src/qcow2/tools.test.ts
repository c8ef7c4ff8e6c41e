/** Convert, map, info, commit, rebase, resize and snapshots, each compared with what qemu-img makes of the same files. */
import { constants, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { openFd } from '../host/file.ts'
import { checkDisk } from './check.ts'
import { commitDisk } from './commit.ts'
import { convertDisk } from './convert.ts'
import { createDisk } from './create.ts'
import { infoOf } from './info.ts'
import { mapDisk } from './map.ts'
import { openDisk } from './open.ts'
import { RawImage } from './raw-image.ts'
import { rebaseDisk } from './rebase.ts'
import { FileStorage } from './storage.ts'
import { readDisk, writeDisk } from './testing/disk-io.ts'
import { qemuCheck, qemuImgOk, qemuIoOk, qemuMissing } from './testing/qemu.ts'
import { Random } from './testing/random.ts'
import { contentsOf, expectSame } from './testing/random-disk.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-disk-tools-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))
let files = 0
const file = (suffix: string): string => join(folder, `${files++}.${suffix}`)

/** A disk with noise, runs, and long stretches of zeros. */
function sparseBytes(random: Random, size: number): Uint8Array {
  const bytes = new Uint8Array(size)
  for (let i = 0; i < 12; i++) {
    const offset = random.below(size / 512) * 512
    bytes.set(random.bytes(Math.min(size - offset, 512 * (1 + random.below(150)))), offset)
  }
  return bytes
}

function expectClean(path: string): void {
  const report = qemuCheck(path)
  expect([report.corruptions ?? 0, report.leaks ?? 0, report['check-errors']]).toEqual([0, 0, 0])
  expect(checkDisk(path)).toMatchObject({ corruptions: 0, leaks: 0 })
}

function contents(path: string, format: 'raw' | 'qcow2' = 'qcow2'): Uint8Array {
  const image = openDisk(path, { format, readOnly: true })
  try {
    return contentsOf(image).slice()
  } finally {
    image.close()
  }
}

describe.skipIf(qemuMissing)('convert', () => {
  const random = new Random(7)
  const bytes = sparseBytes(random, 1024 * 1024 + 512 * 7)

  const targets = [
    { compress: false },
    { compress: false, clusterSize: 512, refcountBits: 1 },
    { compress: false, clusterSize: 2 * 1024 * 1024, version: 2 as const },
    { compress: true },
    { compress: true, clusterSize: 4096, refcountBits: 1 },
    { compress: true, clusterSize: 1024, refcountBits: 2 },
    { compress: true, clusterSize: 2 * 1024 * 1024 },
    { compress: true, compression: 'zstd' as const },
    { compress: true, compression: 'zstd' as const, clusterSize: 256 * 1024 },
  ]
  for (const target of targets) {
    it(`makes a QCOW2 image that QEMU reads the same (${JSON.stringify(target)}), and back to raw`, async () => {
      const raw = file('raw')
      writeFileSync(raw, bytes)
      const source = openDisk(raw, { format: 'raw', readOnly: true })
      const path = file('qcow2')
      let progress = 0
      await convertDisk(source, path, { format: 'qcow2', ...target, onProgress: done => (progress = done) })
      source.close()
      expect(progress).toBe(bytes.length)
      expectClean(path)
      qemuImgOk('compare', '-f', 'qcow2', '-F', 'raw', path, raw)
      const image = openDisk(path, { format: 'qcow2', readOnly: true })
      const back = file('raw')
      await convertDisk(image, back, { format: 'raw' })
      image.close()
      qemuImgOk('compare', '-f', 'raw', '-F', 'raw', back, raw)
      expect(statSync(back).blocks * 512).toBeLessThan(bytes.length)
    })
  }

  for (const compression of ['zlib', 'zstd']) {
    it(`reads and then writes over clusters that QEMU packed with ${compression}`, () => {
      const raw = file('raw')
      writeFileSync(raw, bytes)
      const path = file('qcow2')
      qemuImgOk('convert', '-c', '-O', 'qcow2', '-o', `compression_type=${compression}`, raw, path)
      expectSame(contents(path), bytes, 'packed by QEMU')
      const image = openDisk(path, { format: 'qcow2' })
      const model = bytes.slice()
      for (let i = 0; i < 30; i++) {
        const patch = random.bytes(512 * (1 + random.below(100)))
        const offset = random.below((bytes.length - patch.length) / 512) * 512
        writeDisk(image, offset, patch)
        model.set(patch, offset)
      }
      image.close()
      expectClean(path)
      expectSame(contents(path), model, 'written over')
    })
  }
})

describe.skipIf(qemuMissing)('map and info', () => {
  it('say what qemu-img says, over a chain', () => {
    const random = new Random(3)
    const base = file('qcow2')
    const raw = file('raw')
    writeFileSync(raw, sparseBytes(random, 2 * 1024 * 1024))
    qemuImgOk('convert', '-c', '-O', 'qcow2', raw, base)
    qemuIoOk(base, 'qcow2', 'write -P 7 1M 200k', 'write -z 1500k 128k')
    const top = file('qcow2')
    qemuImgOk('create', '-q', '-f', 'qcow2', '-b', base, '-F', 'qcow2', top, '3M')
    qemuIoOk(top, 'qcow2', 'write -P 9 64k 300k', 'write -z 512k 256k', 'write -P 5 2900k 64k')
    const image = openDisk(top, { format: 'qcow2', readOnly: true })
    const theirs = JSON.parse(qemuImgOk('map', '--output=json', '-f', 'qcow2', top)) as Record<string, unknown>[]
    const ours = [...mapDisk(image)].map(({ compressed: _, ...entry }) => entry)
    expect(ours).toEqual(theirs.map(({ compressed: _, ...entry }) => entry))
    const info = infoOf(image)
    const said = JSON.parse(qemuImgOk('info', '--output=json', '-f', 'qcow2', top)) as Record<string, unknown>
    expect(info.virtualSize).toBe(said['virtual-size'])
    expect(info.actualSize).toBe(said['actual-size'])
    expect(info.qcow2?.clusterSize).toBe(said['cluster-size'])
    expect(info.qcow2?.backingFile).toBe(said['backing-filename'])
    image.close()
  })

  it('list internal snapshots, which writing does not change', () => {
    const path = file('qcow2')
    qemuImgOk('create', '-q', '-f', 'qcow2', path, '4M')
    qemuIoOk(path, 'qcow2', 'write -P 1 0 2M')
    qemuImgOk('snapshot', '-c', 'before', path)
    const image = openDisk(path, { format: 'qcow2' })
    expect(image.snapshots.map(({ id, name, diskSize }) => [id, name, diskSize])).toEqual([['1', 'before', 4 << 20]])
    writeDisk(image, 4096, new Uint8Array(100 * 1024).fill(2))
    image.discard(1024 * 1024, 512 * 1024)
    image.writeZeroes(1800 * 1024, 100 * 1024, true)
    image.close()
    expectClean(path)
    qemuImgOk('snapshot', '-a', 'before', path)
    const expected = new Uint8Array(4 << 20).fill(1, 0, 2 << 20)
    expectSame(contents(path), expected, 'the snapshot')
    qemuImgOk('snapshot', '-d', 'before', path)
    expectClean(path)
  })
})

describe.skipIf(qemuMissing)('commit, rebase and resize', () => {
  const random = new Random(11)
  const size = 2 * 1024 * 1024

  function overlayOn(format: 'raw' | 'qcow2'): { base: string; top: string; model: Uint8Array } {
    const base = file(format)
    const top = file('qcow2')
    createDisk(base, { format, size, ...(format === 'qcow2' ? { clusterSize: 4096 } : {}) })
    const model = sparseBytes(random, size)
    const image = openDisk(base, { format })
    writeDisk(image, 0, model)
    image.close()
    createDisk(top, { format: 'qcow2', size, clusterSize: 16384, backing: { file: base, format } })
    const overlay = openDisk(top, { format: 'qcow2' })
    for (let i = 0; i < 10; i++) {
      const patch = random.bytes(512 * (1 + random.below(60)))
      const offset = random.below((size - patch.length) / 512) * 512
      writeDisk(overlay, offset, patch)
      model.set(patch, offset)
    }
    overlay.writeZeroes(1024 * 1024, 300 * 1024, true)
    model.fill(0, 1024 * 1024, 1324 * 1024)
    overlay.close()
    return { base, top, model }
  }

  for (const format of ['raw', 'qcow2'] as const) {
    it(`commits to a ${format} base and empties the overlay`, () => {
      const { base, top, model } = overlayOn(format)
      commitDisk(top)
      expectSame(contents(base, format), model, 'the base')
      expectSame(contents(top), model, 'the overlay')
      const overlay = openDisk(top, { format: 'qcow2', readOnly: true })
      expect(overlay.extent(0, size)).toMatchObject({ kind: 'hole', length: size })
      overlay.close()
      expectClean(top)
      if (format === 'qcow2') expectClean(base)
    })
  }

  it('rebases to another file, to none, and by name only, showing the same', () => {
    const { base, top, model } = overlayOn('raw')
    const other = file('raw')
    writeFileSync(other, sparseBytes(random, size - 512 * 100))
    rebaseDisk(top, { backing: { file: other, format: 'raw' } })
    expectSame(contents(top), model, 'over another file')
    expect(qemuImgOk('info', top)).toContain(other)
    expectClean(top)
    rebaseDisk(top, { backing: undefined })
    rmSync(other)
    expectSame(contents(top), model, 'on its own')
    expectClean(top)
    // A long name does not fit the header's first sector.
    const far = join(folder, ...Array<string>(3).fill('d'.repeat(200)))
    rebaseDisk(top, { backing: { file: join(far, 'base'), format: 'raw' }, unsafe: true })
    expect(qemuImgOk('info', top)).toContain(join(far, 'base'))
    rebaseDisk(top, { backing: { file: base, format: 'raw' }, unsafe: true })
    expect(qemuImgOk('info', top)).toContain(base)
    expectClean(top)
  })

  it('grows over a larger base without showing it, through a longer L1 table, and shrinks', () => {
    const base = file('raw')
    writeFileSync(base, new Uint8Array(size).fill(6))
    const top = file('qcow2')
    createDisk(top, { format: 'qcow2', size: 512 * 100, clusterSize: 1024, backing: { file: base, format: 'raw' } })
    const image = openDisk(top, { format: 'qcow2' })
    writeDisk(image, 512 * 99, new Uint8Array(512).fill(9))
    image.resize(size * 8)
    expect(() => image.resize(512)).toThrow(/shrinking/)
    writeDisk(image, size * 8 - 512, new Uint8Array(512).fill(8))
    image.close()
    expectClean(top)
    const model = new Uint8Array(size * 8).fill(6, 0, 512 * 99).fill(9, 512 * 99, 512 * 100)
    model.fill(8, size * 8 - 512)
    expectSame(contents(top), model, 'grown')
    const raw = file('raw')
    writeFileSync(raw, model)
    qemuImgOk('compare', '-f', 'qcow2', '-F', 'raw', top, raw)
    const again = openDisk(top, { format: 'qcow2' })
    again.resize(512 * 50, true)
    expectSame(readDisk(again, 0, 512 * 50), model.subarray(0, 512 * 50), 'shrunk')
    again.resize(512 * 120)
    expectSame(readDisk(again, 512 * 50, 512 * 70), new Uint8Array(512 * 70), 'grown again')
    again.close()
    expectClean(top)
  })
})

describe('what files a tool leaves alone', () => {
  it('does not replace a file that appeared under its name meanwhile', async () => {
    const path = join(folder, 'appeared.img')
    const source = join(folder, 'appears-from.img')
    writeFileSync(source, new Uint8Array(4096).fill(3))
    const image = openDisk(source, { format: 'raw', readOnly: true })
    const onProgress = (): void => writeFileSync(path, 'mine')
    await expect(convertDisk(image, path, { format: 'raw', onProgress })).rejects.toMatchObject({ code: 'EEXIST' })
    expect(readFileSync(path, 'latin1')).toBe('mine')
    await convertDisk(image, path, { format: 'raw', onProgress, overwrite: true })
    image.close()
    expect(readFileSync(path)).toEqual(readFileSync(source))
    expect(readdirSync(folder).filter(name => name.includes('.new-'))).toEqual([])
  })

  it('writes nothing for a discard where the file system cannot give space back', () => {
    const written: number[] = []
    // A character device can punch no holes.
    class NoHoles extends FileStorage {
      override size(): number {
        return 8192
      }
      override write(source: Uint8Array): void {
        written.push(source.length)
      }
    }
    const image = new RawImage(new NoHoles(openFd('/dev/null', constants.O_RDWR)), 'null')
    image.discard(0, 4096)
    expect(written).toEqual([])
    image.writeZeroes(0, 4096, true)
    expect(written).toEqual([4096])
    image.close()
  })
})
