/**
 * `npm run fuzz -- snapshot`: everything that a stranger can hand us, damaged at random or made to look right. Each input
 * must be refused with a typed error, or be a snapshot that is whole.
 */

import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { copyFileSync, mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { settingsOf } from '../../src/box/snapshot-settings.ts'
import { compareVolumes } from '../../src/image/ext4/reader/compare.ts'
import { Ext4Volume } from '../../src/image/ext4/reader/volume.ts'
import { openDisk } from '../../src/qcow2/open.ts'
import { readDisk, writeDisk } from '../../src/qcow2/testing/disk-io.ts'
import { Random } from '../../src/qcow2/testing/random.ts'
import { exportSnapshot } from '../../src/snapshot/export.ts'
import { namesIn } from '../../src/snapshot/folder.ts'
import { importSnapshot } from '../../src/snapshot/import.ts'
import { decodeManifest, encodeManifest, type JsonValue, type SnapshotManifest } from '../../src/snapshot/manifest.ts'
import { decodeIndex, encodeIndex, hashesOffset } from '../../src/snapshot/memory-index.ts'
import { PageSet } from '../../src/snapshot/page-set.ts'
import { encodeFrame, FRAME_KINDS, type Frame, STREAM_HEAD_BYTES } from '../../src/snapshot/stream-format.ts'
import { damageStream, frameOffsets } from '../../src/snapshot/testing/damage.ts'
import { TestHome } from '../../src/snapshot/testing/home.ts'

/** Errors that are meant for people. Anything else is a mistake of ours. */
const TYPED = new Set(['SnapshotError', 'ImageError', 'DiskError'])

async function refuses(what: string, work: () => unknown): Promise<boolean> {
  try {
    await work()
    return false
  } catch (error) {
    if (TYPED.has((error as Error).name)) return true
    throw new Error(`${what}: ${(error as Error).stack}`)
  }
}

const VALUES: readonly unknown[] = [
  null,
  '',
  'x',
  '../../etc',
  -1,
  0,
  1,
  4095,
  2 ** 31,
  2 ** 53,
  1e300,
  true,
  [],
  {},
  [null],
  ['a'],
  { a: 1 },
  'template',
  '0'.repeat(12),
]

/** One value somewhere in a JSON document becomes another. */
function damageJson(value: unknown, random: Random): unknown {
  const copy = JSON.parse(JSON.stringify(value)) as unknown
  let at = copy
  for (;;) {
    if (typeof at !== 'object' || at === null || Object.keys(at).length === 0) return copy
    const record = at as Record<string, unknown>
    const keys = Object.keys(record)
    const key = keys[random.below(keys.length)]!
    const child = record[key]
    if (typeof child === 'object' && child !== null && random.below(4) !== 0) {
      at = child
      continue
    }
    if (random.below(5) === 0) delete record[key]
    else record[key] = VALUES[random.below(VALUES.length)]
    return copy
  }
}

/** A stream whose checksums are all right, and whose manifest or frames are not. */
async function forge(stream: Buffer, random: Random): Promise<Buffer> {
  const frames: Frame[] = []
  const manifest = await manifestOf(stream)
  const offsets = frameOffsets(stream)
  const parts: Buffer[] = [stream.subarray(0, STREAM_HEAD_BYTES)]
  const victim = random.below(3) === 0 ? -1 : random.below(offsets.length - 1)
  for (const [index, at] of offsets.slice(0, -1).entries()) {
    const kind = FRAME_KINDS[stream.readUInt8(at) - 1]!
    if (index === 0) {
      const json = Buffer.from(JSON.stringify(victim < 0 ? damageJson(manifest, random) : manifest))
      frames.push({ kind: 'manifest', offset: 0, length: json.length, bytes: json })
    } else if (index === victim) {
      const bytes = random.bytes([0, 1, 512, 4096, 65536][random.below(5)]!)
      const offset = [0, 1, 511, 512, 4096, 2 ** 32, 2 ** 40, random.below(2 ** 23)][random.below(8)]!
      const length = kind === 'disk-zero' ? [0, 512, 2 ** 31, 100][random.below(4)]! : bytes.length
      frames.push({ kind, offset, length, bytes: kind === 'disk-zero' ? new Uint8Array(0) : bytes })
    } else {
      parts.push(...(await flush(frames)))
      parts.push(stream.subarray(at, offsets[index + 1]))
    }
  }
  parts.push(...(await flush(frames)))
  const bytes = createHash('sha256').update(Buffer.concat(parts)).digest()
  return Buffer.concat([...parts, ...(await encodeFrame({ kind: 'end', offset: 0, length: 32, bytes }))])
}

async function flush(frames: Frame[]): Promise<Buffer[]> {
  const parts: Buffer[] = []
  for (const frame of frames.splice(0)) parts.push(...(await encodeFrame(frame)))
  return parts
}

let known: { stream: Buffer; manifest: SnapshotManifest } | undefined
const manifestOf = async (stream: Buffer): Promise<SnapshotManifest> => {
  if (known?.stream === stream) return known.manifest
  throw new Error('the stream is not the one that was made')
}

async function* pieces(bytes: Buffer, random: Random): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; ) {
    const size = 1 + random.below(200_000)
    yield bytes.subarray(at, at + size)
    at += size
  }
}

/** Counts of what was refused; throws at the first thing that is neither refused nor whole. */
export async function fuzzSnapshots(rounds: number, seed: number): Promise<Record<string, number>> {
  const random = new Random(seed)
  const home = new TestHome()
  const counts: Record<string, number> = {
    streams: 0,
    forged: 0,
    accepted: 0,
    manifests: 0,
    settings: 0,
    indexes: 0,
    volumes: 0,
  }
  try {
    const { store } = home
    const box = home.box()
    box.ram.set(random.bytes(100_000), 40_960)
    box.writeDisk(0, random.bytes(50_000))
    const manifest = await box.snapshot('one')
    box.close()
    const settings = boxSettings()
    settingsOf({ ...manifest, owner: 'import', settings: settings as JsonValue })
    const parts: Buffer[] = []
    for await (const part of exportSnapshot(store, manifest)) parts.push(part)
    const stream = Buffer.concat(parts)
    known = { stream, manifest }
    const volume = makeVolume(home)
    for (let round = 0; round < rounds; round++) {
      const what = `seed ${seed}, round ${round}`
      const damaged = damageStream(stream, random)
      if (!(await refuses(what, () => importSnapshot(store, pieces(damaged, random), { name: 'x' }))))
        throw new Error(`${what}: a damaged stream was taken`)
      counts.streams!++
      const forged = await forge(stream, random)
      const isRefused = await refuses(what, async () => {
        const made = await importSnapshot(store, pieces(forged, random), { name: 'x' })
        try {
          await store.check(made)
          await store.verify(made)
          await refuses(what, () => settingsOf(made))
        } finally {
          await store.removeSnapshot(made)
        }
      })
      counts[isRefused ? 'forged' : 'accepted']!++
      counts.manifests! += Number(await refuses(what, () => fuzzManifest(manifest, random)))
      counts.settings! += Number(
        await refuses(what, () =>
          settingsOf({ ...manifest, owner: 'import', settings: damageJson(settings, random) as JsonValue }),
        ),
      )
      counts.indexes! += Number(await refuses(what, () => fuzzIndex(random)))
      if (volume && round % 4 === 0) counts.volumes! += Number(await refuses(what, () => fuzzVolume(volume, random)))
      if (store.list().length !== 1) throw new Error(`${what}: something was left in the store`)
    }
    await store.sweep()
    const left = namesIn(store.folder.tmp)
    if (left.length > 0) throw new Error(`left over: ${left.join(', ')}`)
    await store.verify(store.find(box.id, 'one'))
  } finally {
    home.remove()
  }
  return counts
}

/** What a box's record says, with something of everything. */
function boxSettings(): unknown {
  return {
    ...{ version: 1, id: '0'.repeat(12), name: 'x', created: new Date(0).toISOString(), imageId: 'i', baseDisk: '/x' },
    ...{ imageEntrypoint: ['/bin/sh'], imageCmd: ['-c', 'true'], parent: null },
    config: {
      ...{ image: 'base', cpus: 1, memoryMib: 128, diskGib: 10, env: { PATH: '/bin' }, workdir: '/', user: '' },
      ...{ accel: 'auto', network: { allow: ['example.com'] }, ports: [{ host: 80, guest: 80 }], networks: ['n'] },
      ...{ pcap: '/etc/passwd', command: ['true'], detach: true, autoRemove: false, timeoutMs: 0, idleMs: 0 },
    },
  }
}

function fuzzManifest(manifest: SnapshotManifest, random: Random): void {
  const changed = damageJson(manifest, random) as SnapshotManifest
  const bytes = Buffer.from(encodeManifest(changed, new Uint8Array(manifest.state.bytes)))
  if (random.below(2) === 0) bytes[random.below(bytes.length)]! ^= 1 << random.below(8)
  decodeManifest(bytes.subarray(0, random.below(3) === 0 ? random.below(bytes.length) : bytes.length), 'fuzz')
}

function fuzzIndex(random: Random): void {
  const size = 4096 * (1 + random.below(200))
  const data = new PageSet(size / 4096)
  for (let i = 0; i < 20; i++) data.add(random.below(size / 4096))
  const { bytes } = encodeIndex({ ramSize: size, data, zero: new PageSet(size / 4096), hashesSum: 0n })
  if (bytes.length !== hashesOffset(size)) throw new Error('the index has another length than said')
  bytes[random.below(bytes.length)] = random.below(256)
  decodeIndex(bytes.subarray(0, random.below(bytes.length + 1)), size, 'fuzz')
}

function makeVolume(home: TestHome): string | undefined {
  const root = join(home.path, 'root')
  mkdirSync(join(root, 'a/b/c'), { recursive: true })
  for (let i = 0; i < 60; i++) writeFileSync(join(root, 'a/b', `file-${i}`), 'x'.repeat(i * 100))
  const path = join(home.path, 'volume.img')
  const made = spawnSync('mke2fs', ['-q', '-t', 'ext4', '-O', 'inline_data', '-d', root, path, '4M'])
  rmSync(root, { recursive: true })
  return made.status === 0 ? path : undefined
}

/** Noise in the metadata of a file system, which is in its first part. */
async function fuzzVolume(path: string, random: Random): Promise<void> {
  const damaged = `${path}.damaged`
  copyFileSync(path, damaged)
  const good = openDisk(path, { format: 'raw', readOnly: true })
  const image = openDisk(damaged, { format: 'raw' })
  try {
    for (let i = 0; i < 3; i++) {
      const at = 1024 + random.below(900) * 512
      const block = readDisk(image, at, 512)
      for (let n = 0; n < 8; n++) block[random.below(512)] = [0, 1, 255, random.below(256)][random.below(4)]!
      writeDisk(image, at, block)
    }
    await compareVolumes(new Ext4Volume(good), new Ext4Volume(image))
  } finally {
    image.close()
    good.close()
  }
}

export async function fuzz(args: readonly string[]): Promise<boolean> {
  const value = (name: string, otherwise: number): number => {
    const at = args.indexOf(name)
    return at < 0 ? otherwise : Number(args[at + 1])
  }
  const seed = value('--seed', Date.now() % 1_000_000)
  const counts = await fuzzSnapshots(value('--count', 1000), seed)
  console.log(`seed ${seed}: refused ${JSON.stringify(counts)}`)
  return true
}
