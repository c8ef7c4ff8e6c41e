/**
 * A tree to an ext4 image: ours against `mke2fs -d`, on the same trees and to file systems of the same size. And a layer to an
 * ext4 image: ours against `tar` into a directory and `mke2fs -d` of it.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { spoolTar } from '../../src/image/decompress.ts'
import { writeExt4 } from '../../src/image/ext4/writer.ts'
import { treeOfDirectory } from '../../src/image/tree/directory-source.ts'
import { LayeredTree } from '../../src/image/tree/layers.ts'
import type { Benchmark, Sample } from '../harness/benchmark.ts'

const DISK_BYTES = 2 * 2 ** 30
const MKE2FS = ['/sbin/mke2fs', '/usr/sbin/mke2fs'].find(path => existsSync(path))

/** Like a Debian root: many small files, some large ones; the same on every machine. */
function makeMixedTree(path: string): void {
  let state = 1
  const random = (): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return state / 2 ** 32
  }
  const noise = Buffer.alloc(8 << 20)
  for (let i = 0; i < noise.length; i++) noise[i] = random() * 256
  for (let folder = 0; folder < 240; folder++) {
    const at = join(path, `d${folder % 16}`, `e${folder}`)
    mkdirSync(at, { recursive: true })
    for (let file = 0; file < 25; file++) {
      // Sizes from 64 bytes to 4 MiB, evenly on a logarithmic scale up to 64 KiB and rarer above.
      const size = Math.floor(random() < 0.01 ? 2 ** (16 + random() * 6) : 2 ** (6 + random() * 10))
      const from = Math.floor(random() * (noise.length - size))
      writeFileSync(join(at, `file-${file}.dat`), noise.subarray(from, from + size))
    }
  }
}

function makeManyFiles(path: string): void {
  mkdirSync(path, { recursive: true })
  for (let i = 0; i < 5000; i++) writeFileSync(join(path, `entry-${i}`), `${i}`)
}

function run(command: string, args: readonly string[]): void {
  const { status, stderr } = spawnSync(command, args, { encoding: 'utf8' })
  if (status !== 0) throw new Error(`${command}: ${stderr}`)
}

const secondsOf = async (work: () => Promise<void> | void): Promise<number> => {
  const began = performance.now()
  await work()
  return (performance.now() - began) / 1000
}

export const benchmark: Benchmark = {
  summary: 'trees and layers to ext4 images, against mke2fs -d',
  metrics: [
    { name: 'mixed tree', unit: 's', better: 'lower' },
    { name: '5,000 files', unit: 's', better: 'lower' },
    { name: 'gzip layer', unit: 's', better: 'lower' },
  ],
  open: async () => {
    const folder = mkdtempSync(join(tmpdir(), 'vitrine-bench-image-'))
    const mixed = join(folder, 'mixed')
    const many = join(folder, 'many')
    const layer = join(folder, 'layer.tar.gz')
    const image = join(folder, 'image.ext4')
    makeMixedTree(mixed)
    makeManyFiles(many)
    run('tar', ['--format=pax', '-C', mixed, '-czf', layer, '.'])

    const oursFromTree = async (tree: string): Promise<void> => {
      await writeExt4(image, await treeOfDirectory(tree), { identity: tree, minimumBytes: DISK_BYTES })
    }
    const oursFromLayer = async (): Promise<void> => {
      const { path } = await spoolTar(layer, join(folder, 'spool.tar'), { limitBytes: Infinity, name: layer })
      using layered = new LayeredTree()
      await layered.applyTar(path, layer)
      await writeExt4(image, layered.root, { identity: layer, minimumBytes: DISK_BYTES })
      rmSync(path)
    }
    const theirsFromTree = (tree: string): void =>
      run(MKE2FS!, ['-q', '-F', '-t', 'ext4', '-d', tree, image, `${DISK_BYTES / 2 ** 20}M`])
    const theirsFromLayer = (): void => {
      const unpacked = join(folder, 'unpacked')
      mkdirSync(unpacked)
      run('tar', ['-C', unpacked, '-xzf', layer])
      theirsFromTree(unpacked)
      rmSync(unpacked, { recursive: true })
    }
    const sample = async (
      fromTree: (tree: string) => Promise<void> | void,
      fromLayer: () => Promise<void> | void,
    ): Promise<Sample> => {
      const times: Record<string, number> = {}
      for (const [name, work] of [
        ['mixed tree', () => fromTree(mixed)],
        ['5,000 files', () => fromTree(many)],
        ['gzip layer', fromLayer],
      ] as const) {
        rmSync(image, { force: true })
        times[name] = await secondsOf(work)
      }
      return times
    }
    return {
      contestants: [
        { name: 'ours', sample: () => sample(oursFromTree, oursFromLayer) },
        ...(MKE2FS ? [{ name: 'mke2fs -d', sample: () => sample(theirsFromTree, theirsFromLayer) }] : []),
      ],
      missing: MKE2FS ? [] : [{ name: 'mke2fs -d', reason: 'e2fsprogs is not installed' }],
      close: async () => rmSync(folder, { recursive: true }),
    }
  },
}
