/** Images that lie: each is refused with a typed error or read without harm, in bounded memory, and stays untouched. */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { liveBytes } from '../host/testing/garbage.ts'
import { checkDisk } from './check.ts'
import { createDisk } from './create.ts'
import { HEADER, INCOMPAT_CORRUPT, INCOMPAT_DIRTY } from './layout.ts'
import { openDisk, probeFormat } from './open.ts'
import { codeOf, tryDamaged } from './testing/damage.ts'
import { readDisk, writeDisk } from './testing/disk-io.ts'
import { qemuCheck, qemuImgOk, qemuMissing } from './testing/qemu.ts'
import { Random } from './testing/random.ts'
import { contentsOf } from './testing/random-disk.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-hostile-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))
let files = 0

const SIZE = 1024 * 1024
const CLUSTER = 4096

/** A sound image with some data, 4 KiB clusters. */
function sample(version: 2 | 3 = 3): string {
  const path = join(folder, `${files++}.qcow2`)
  createDisk(path, { format: 'qcow2', size: SIZE, clusterSize: CLUSTER, version })
  const image = openDisk(path, { format: 'qcow2' })
  writeDisk(image, 8192, new Random(1).bytes(60_000 - (60_000 % 512)))
  image.close()
  return path
}

/** Changes bytes of the file at `path`. */
function patch(path: string, change: (view: DataView, bytes: Uint8Array) => void): void {
  const bytes = readFileSync(path)
  change(new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), bytes)
  writeFileSync(path, bytes)
}

/** Opening for writing fails with `code` and leaves the file as it was. */
function refused(path: string, code: string): void {
  const before = readFileSync(path)
  expect(codeOf(() => openDisk(path, { format: 'qcow2' }).close())).toBe(code)
  expect(Buffer.compare(before, readFileSync(path))).toBe(0)
}

const u64 = (view: DataView, at: number, value: bigint): void => view.setBigUint64(at, value)

describe('hostile headers', () => {
  const cases: [what: string, code: string, change: (view: DataView, bytes: Uint8Array) => void][] = [
    ['no magic', 'NOT_QCOW2', view => view.setUint32(0, 1)],
    ['version 4', 'UNSUPPORTED', view => view.setUint32(HEADER.version, 4)],
    ['clusters of 2^40', 'CORRUPT', view => view.setUint32(HEADER.clusterBits, 40)],
    ['clusters of 2^8', 'CORRUPT', view => view.setUint32(HEADER.clusterBits, 8)],
    ['AES', 'ENCRYPTED', view => view.setUint32(HEADER.cryptMethod, 1)],
    ['LUKS', 'ENCRYPTED', view => view.setUint32(HEADER.cryptMethod, 2)],
    ['a size of 2^63', 'TOO_LARGE', view => u64(view, HEADER.size, 1n << 63n)],
    ['an L1 table of gigabytes', 'TOO_LARGE', view => view.setUint32(HEADER.l1Size, 0x20000000)],
    ['an L1 table too small for the size', 'CORRUPT', view => view.setUint32(HEADER.l1Size, 0)],
    ['an L1 table off a boundary', 'CORRUPT', view => u64(view, HEADER.l1TableOffset, 12345n)],
    ['an L1 table past the end', 'TRUNCATED', view => u64(view, HEADER.l1TableOffset, 1n << 40n)],
    ['an L1 table at the header', 'CORRUPT', view => u64(view, HEADER.l1TableOffset, 0n)],
    ['an L1 table on the refcount table', 'CORRUPT', view => u64(view, HEADER.l1TableOffset, BigInt(CLUSTER))],
    ['a refcount table of gigabytes', 'TOO_LARGE', view => view.setUint32(HEADER.refcountTableClusters, 0x100000)],
    ['no refcount table', 'CORRUPT', view => view.setUint32(HEADER.refcountTableClusters, 0)],
    ['a refcount table at 2^60', 'CORRUPT', view => u64(view, HEADER.refcountTableOffset, 1n << 60n)],
    ['refcounts of 2^9 bits', 'CORRUPT', view => view.setUint32(HEADER.refcountOrder, 9)],
    ['a header longer than its cluster', 'CORRUPT', view => view.setUint32(HEADER.headerLength, 0x7fffffff)],
    [
      'a backing name outside',
      'CORRUPT',
      view => {
        u64(view, HEADER.backingFileOffset, 4000n)
        view.setUint32(HEADER.backingFileSize, 1000)
      },
    ],
    [
      'an extension that runs on',
      'CORRUPT',
      view => {
        view.setUint32(112, 0x12345678)
        view.setUint32(116, 0x7fffffff)
      },
    ],
    ['a million snapshots', 'CORRUPT', view => view.setUint32(HEADER.nbSnapshots, 1_000_000)],
    [
      'snapshots past the end',
      'TRUNCATED',
      view => {
        view.setUint32(HEADER.nbSnapshots, 3)
        u64(view, HEADER.snapshotsOffset, 1n << 40n)
      },
    ],
    ['an external data file', 'UNSUPPORTED', view => view.setUint32(HEADER.incompatibleFeatures + 4, 4)],
    ['extended L2 entries', 'UNSUPPORTED', view => view.setUint32(HEADER.incompatibleFeatures + 4, 16)],
    ['an unknown feature', 'UNSUPPORTED', view => view.setUint32(HEADER.incompatibleFeatures, 1)],
    ['an unknown compression', 'UNSUPPORTED', view => view.setUint8(HEADER.compressionType, 7)],
    ['a compression without its bit', 'CORRUPT', view => view.setUint8(HEADER.compressionType, 1)],
    ['the corrupt mark', 'MARKED_CORRUPT', view => view.setUint32(HEADER.incompatibleFeatures + 4, INCOMPAT_CORRUPT)],
    ['the dirty mark', 'DIRTY', view => view.setUint32(HEADER.incompatibleFeatures + 4, INCOMPAT_DIRTY)],
  ]
  for (const [what, code, change] of cases) {
    it(`refuses ${what} (${code})`, () => {
      const path = sample()
      patch(path, change)
      refused(path, code)
    })
  }

  it('refuses every truncation of the metadata, or reads within it', () => {
    const path = sample()
    const whole = readFileSync(path)
    for (let size = 0; size < 6 * CLUSTER; size += 97) {
      writeFileSync(path, whole.subarray(0, size))
      const code = codeOf(() => openDisk(path, { format: 'qcow2', readOnly: true }).close())
      if (size < CLUSTER * 3) expect(['NOT_QCOW2', 'TRUNCATED', 'CORRUPT']).toContain(code)
    }
    truncateSync(path, 0)
    refused(path, 'NOT_QCOW2')
  })
})

describe('hostile tables', () => {
  /** The offsets of the first L2 table and of its entry 2, which is allocated. */
  function tables(path: string): { l1: number; l2: number } {
    const view = new DataView(readFileSync(path).buffer)
    const l1 = Number(view.getBigUint64(HEADER.l1TableOffset))
    return { l1, l2: Number(view.getBigUint64(l1) & 0xffffffffffff00n) }
  }
  const COPIED = 1n << 63n

  it('never writes guest data to the header, the L1 table or any other metadata', () => {
    for (const target of [0, 1, 2, 3]) {
      const path = sample()
      const { l1, l2 } = tables(path)
      const victim = [CLUSTER, l1, l2, CLUSTER * 2][target]!
      patch(path, view => u64(view, l2 + 2 * 8, COPIED | BigInt(victim)))
      const image = openDisk(path, { format: 'qcow2' })
      const before = readFileSync(path)
      expect(codeOf(() => writeDisk(image, 8192, new Uint8Array(512)))).toBe('CORRUPT')
      image.close()
      expect(Buffer.compare(before, readFileSync(path))).toBe(0)
    }
  })

  it('refuses to write to an image whose tables overlap, and to entries off a boundary', () => {
    const path = sample()
    const { l1, l2 } = tables(path)
    patch(path, view => u64(view, l1, COPIED | BigInt(CLUSTER)))
    refused(path, 'CORRUPT')
    const odd = sample()
    patch(odd, view => u64(view, l2 + 2 * 8, COPIED | 0x1200n))
    const image = openDisk(odd, { format: 'qcow2', readOnly: true })
    expect(codeOf(() => readDisk(image, 8192, 512))).toBe('CORRUPT')
    image.close()
  })

  it('refuses zero clusters in version 2, compressed clusters of rubbish, and frees nothing twice', () => {
    const two = sample(2)
    patch(two, view => u64(view, tables(two).l2 + 2 * 8, 1n))
    const old = openDisk(two, { format: 'qcow2', readOnly: true })
    expect(codeOf(() => readDisk(old, 8192, 512))).toBe('CORRUPT')
    old.close()
    const packed = sample()
    patch(packed, view => u64(view, tables(packed).l2 + 2 * 8, (1n << 62n) | (7n << 58n) | BigInt(CLUSTER * 6)))
    const image = openDisk(packed, { format: 'qcow2', readOnly: true })
    expect(codeOf(() => readDisk(image, 8192, 512))).toBe('CORRUPT')
    image.close()
  })

  /** A file whose header names `count` snapshots, each with an L1 table of 32 MiB, from `first` on, `step` apart. */
  function withSnapshots(count: number, first: number, step: number, size?: number): string {
    const path = join(folder, `${files++}.qcow2`)
    createDisk(path, { format: 'qcow2', size: 65536, clusterSize: 512 })
    const sound = readFileSync(path)
    const at = Math.ceil(sound.length / 512) * 512
    const bytes = new Uint8Array(at + count * 40)
    bytes.set(sound)
    const view = new DataView(bytes.buffer)
    view.setUint32(HEADER.nbSnapshots, count)
    u64(view, HEADER.snapshotsOffset, BigInt(at))
    for (let i = 0; i < count; i++) {
      u64(view, at + 40 * i, BigInt(first + i * step))
      view.setUint32(at + 40 * i + 8, 2 ** 22)
    }
    writeFileSync(path, bytes)
    if (size !== undefined) truncateSync(path, size)
    return path
  }

  it('refuses snapshots whose tables are not in the file, and holds those that are as ranges', () => {
    refused(withSnapshots(2000, 2 ** 40, 2 ** 25), 'CORRUPT')
    // A sparse file may be as large as it likes: terabytes of tables, and nothing in memory for each of their clusters.
    const path = withSnapshots(4000, 2 ** 30, 2 ** 26, 2 ** 40)
    const before = liveBytes()
    const image = openDisk(path, { format: 'qcow2' })
    expect(liveBytes() - before).toBeLessThan(32 * 2 ** 20)
    const { protectedClusters } = image.metadata
    for (const [offset, held] of [
      [2 ** 30 - 512, false],
      [2 ** 30, true],
      [2 ** 30 + 2 ** 25 - 512, true],
      [2 ** 30 + 2 ** 25, false],
      [2 ** 30 + 3999 * 2 ** 26 + 512, true],
    ] as const) {
      expect(protectedClusters.has(offset / 512), String(offset)).toBe(held)
    }
    image.close()
    expect(codeOf(() => void checkDisk(path))).toBe('TOO_LARGE')
  })

  it('checks files of nothing but bad entries in bounded memory, and repairs only so many', () => {
    const path = join(folder, `${files++}.qcow2`)
    createDisk(path, { format: 'qcow2', size: 32 * 8192 * 65536, clusterSize: 65536 })
    const sound = readFileSync(path)
    const bytes = new Uint8Array(sound.length + 32 * 65536)
    bytes.set(sound)
    const view = new DataView(bytes.buffer)
    const l1 = Number(view.getBigUint64(HEADER.l1TableOffset))
    for (let i = 0; i < 32; i++) u64(view, l1 + 8 * i, COPIED | BigInt(sound.length + i * 65536))
    for (let at = sound.length; at < bytes.length; at += 8) view.setUint32(at + 4, 512)
    writeFileSync(path, bytes)
    const before = liveBytes()
    let most = 0
    const onProgress = (done: number, total: number): void => {
      if (done === total) most = liveBytes() - before
    }
    const report = checkDisk(path, { onProgress })
    expect(report.corruptions).toBeGreaterThan(32 * 8192)
    expect(most).toBeGreaterThan(0)
    expect(most).toBeLessThan(32 * 2 ** 20)
    expect(codeOf(() => void checkDisk(path, { repair: 'all' }))).toBe('TOO_LARGE')
    expect(Buffer.compare(readFileSync(path), bytes)).toBe(0)
    // Tables count as well.
    expect(codeOf(() => void checkDisk(path, { maxMemoryBytes: 31 * 128 }))).toBe('TOO_LARGE')
  })

  it.skipIf(qemuMissing)('repairs what it can, as QEMU then agrees', () => {
    const random = new Random(5)
    for (let i = 0; i < 12; i++) {
      const path = sample()
      patch(path, (view, bytes) => {
        // Wrong refcounts, wrong flags, double references, entries to nowhere: anywhere but the header and the L1 table.
        const { l1, l2 } = tables(path)
        for (let j = 0; j < 4; j++) {
          const kind = random.below(4)
          const entry = l2 + 8 * (2 + random.below(12))
          if (kind === 0) bytes[CLUSTER * 2 + 2 * random.below(30) + 1] = random.below(3)
          else if (kind === 1) view.setUint8(entry, view.getUint8(entry) ^ 0x80)
          else if (kind === 2) u64(view, entry, view.getBigUint64(l2 + 8 * (2 + random.below(12))))
          else u64(view, entry, COPIED | (BigInt(random.below(1000)) << 9n))
        }
        expect(l1).toBeGreaterThan(0)
      })
      const report = checkDisk(path, { repair: 'all' })
      expect(report.corruptions, report.messages.join('\n')).toBe(0)
      checkDisk(path, { repair: 'leaks' })
      expect(qemuCheck(path)).toMatchObject({ 'check-errors': 0 })
      expect(qemuCheck(path).corruptions ?? 0).toBe(0)
      const image = openDisk(path, { format: 'qcow2' })
      writeDisk(image, 0, random.bytes(SIZE))
      image.close()
      expect(qemuCheck(path).corruptions ?? 0).toBe(0)
    }
  })

  it('survives random damage anywhere: a typed error or an answer, in little memory and time', () => {
    const random = new Random(9)
    const path = sample()
    const whole = readFileSync(path)
    let errors = 0
    for (let i = 0; i < 120; i++) errors += tryDamaged(whole, path, random)
    expect(errors).toBeGreaterThan(50)
  })
})

describe('hostile chains', () => {
  function overlay(name: string, backing: string, format: 'raw' | 'qcow2' = 'raw'): string {
    const path = join(folder, name)
    createDisk(path, { format: 'qcow2', size: SIZE, backing: { file: backing, format }, overwrite: true })
    return path
  }

  it('keeps backing files inside the folders allowed, through links and dots', () => {
    const jail = join(folder, 'jail')
    mkdirSync(join(jail, 'deeper'), { recursive: true })
    writeFileSync(join(folder, 'secret'), 'secret')
    writeFileSync(join(jail, 'deeper', 'fine'), new Uint8Array(512))
    symlinkSync(join(folder, 'secret'), join(jail, 'link'))
    for (const name of [
      '/etc/passwd',
      '../secret',
      'link',
      './deeper/../../secret',
      'json:{"driver":"raw"}',
      'nbd://host/x',
    ]) {
      expect(
        codeOf(() => openDisk(overlay('jail/top', name), { format: 'qcow2' }).close()),
        name,
      ).toBe('BACKING_FORBIDDEN')
    }
    openDisk(overlay('jail/top', 'deeper/fine'), { format: 'qcow2' }).close()
    openDisk(overlay('jail/top', '../secret'), { format: 'qcow2', backingFolders: [jail, folder] }).close()
    expect(codeOf(() => openDisk(overlay('jail/top', 'absent'), { format: 'qcow2' }).close())).toBe('NOT_FOUND')
  })

  it('finds loops, and goes through a deep chain', () => {
    overlay('loop-a', 'loop-b', 'qcow2')
    overlay('loop-b', 'loop-a', 'qcow2')
    expect(codeOf(() => openDisk(join(folder, 'loop-a'), { format: 'qcow2' }).close())).toBe('BACKING_LOOP')
    expect(codeOf(() => openDisk(overlay('self', 'self', 'qcow2'), { format: 'qcow2' }).close())).toBe('BACKING_LOOP')
    writeFileSync(join(folder, 'deep-0'), new Uint8Array(SIZE).fill(5))
    for (let i = 1; i <= 60; i++) overlay(`deep-${i}`, `deep-${i - 1}`, i === 1 ? 'raw' : 'qcow2')
    const image = openDisk(join(folder, 'deep-60'), { format: 'qcow2' })
    expect(contentsOf(image).every(byte => byte === 5)).toBe(true)
    writeDisk(image, 100 * 512, new Uint8Array(512).fill(6))
    expect(readDisk(image, 99 * 512, 2048)).toEqual(new Uint8Array(2048).fill(5).fill(6, 512, 1024))
    image.close()
  })

  it('does not guess formats: a QCOW2 header on a raw disk stays data', () => {
    const raw = join(folder, 'guest.raw')
    writeFileSync(raw, readFileSync(sample()))
    const disk = openDisk(raw, { format: 'raw' })
    expect([...readDisk(disk, 0, 4)]).toEqual([0x51, 0x46, 0x49, 0xfb])
    disk.close()
    expect(probeFormat(raw)).toBe('qcow2')
    const top = overlay('guess', raw)
    // Take the format away: it is the first extension, right behind the header.
    patch(top, view => {
      for (let i = 112; i < 128; i += 4) view.setUint32(i, 0)
    })
    expect(codeOf(() => openDisk(top, { format: 'qcow2' }).close())).toBe('BACKING_FORMAT')
  })

  it.skipIf(qemuMissing)('names a feature that it does not know by the name that the image gives it', () => {
    const path = join(folder, 'features.qcow2')
    qemuImgOk('create', '-q', '-f', 'qcow2', '-o', 'extended_l2=on', path, '1M')
    expect(() => openDisk(path, { format: 'qcow2' })).toThrow(/extended L2/)
  })
})
