/**
 * The QCOW2 engine without a guest, against qemu-img on the same files: 4 KiB accesses at the same scattered offsets,
 * 1 MiB in order, and convert. Everything is in the page cache; our engine does one request at a time, qemu-img bench
 * one and 32. Writes are timed without a flush on both sides, converts with the flush that ends them.
 */
import { execFileSync, spawnSync } from 'node:child_process'
import { copyFileSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { IoVector } from '../../src/host/io-vector.ts'
import { convertDisk } from '../../src/qcow2/convert.ts'
import { createDisk } from '../../src/qcow2/create.ts'
import { openDisk } from '../../src/qcow2/open.ts'
import type { Qcow2Image } from '../../src/qcow2/qcow2-image.ts'
import type { Benchmark, Sample } from '../harness/benchmark.ts'

const SIZE = 128 * 1024 * 1024
const SMALL = 4096
const LARGE = 1024 * 1024
const COUNT = 20_000
/** The disk several times over: once takes a few hundredths of a second, which the scheduler decides. */
const LARGE_COUNT = (8 * SIZE) / LARGE
/** New clusters: every one of the disk once. */
const NEW_COUNT = SIZE / 65536
/** An odd number of blocks, so that the offsets visit every block before one comes again. */
const STEP = SMALL * 7919

const METRICS = [
  { name: 'read 4K', unit: 'IOPS', better: 'higher' },
  { name: 'write 4K', unit: 'IOPS', better: 'higher' },
  { name: 'write 4K new clusters', unit: 'IOPS', better: 'higher' },
  { name: 'read 4K overlay', unit: 'IOPS', better: 'higher' },
  { name: 'read 1M', unit: 'MiB/s', better: 'higher' },
  { name: 'write 1M', unit: 'MiB/s', better: 'higher' },
  { name: 'convert to raw', unit: 's', better: 'lower' },
  { name: 'convert to qcow2', unit: 's', better: 'lower' },
  { name: 'convert packed', unit: 's', better: 'lower' },
  // CPU time of the process, all threads: says more than the clock on a machine that others use.
  { name: 'CPU of read 4K', unit: 'us', better: 'lower' },
  { name: 'CPU of write 4K', unit: 'us', better: 'lower' },
  { name: 'CPU of write 4K new clusters', unit: 'us', better: 'lower' },
  { name: 'CPU of read 1M', unit: 'us', better: 'lower' },
  { name: 'CPU of write 1M', unit: 'us', better: 'lower' },
  { name: 'CPU of convert to raw', unit: 'ms', better: 'lower' },
  { name: 'CPU of convert to qcow2', unit: 'ms', better: 'lower' },
  { name: 'CPU of convert packed', unit: 'ms', better: 'lower' },
] as const

interface Files {
  readonly folder: string
  readonly full: string
  /** A copy, to write over. */
  readonly written: string
  readonly overlay: string
}

function prepare(): Files {
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-bench-qcow2-'))
  const full = join(folder, 'full.qcow2')
  const overlay = join(folder, 'overlay.qcow2')
  const written = join(folder, 'written.qcow2')
  createDisk(full, { format: 'qcow2', size: SIZE })
  const image = openDisk(full, { format: 'qcow2' })
  // Half noise, half text-like.
  for (let i = 0; i < LARGE; i++) memory[i] = i % 64 < 32 ? Math.imul(i, 0x9e3779b1) >>> 24 : 97 + (i % 7)
  vector.clear()
  vector.push(0, LARGE)
  for (let at = 0; at < SIZE; at += LARGE) image.writev(at, vector)
  image.close()
  copyFileSync(full, written)
  createDisk(overlay, { format: 'qcow2', size: SIZE, backing: { file: full, format: 'qcow2' } })
  return { folder, full, written, overlay }
}

const seconds = (since: number): number => (performance.now() - since) / 1000

/** Buffers are where a guest's are: in a WebAssembly memory. */
const memory = new Uint8Array(new WebAssembly.Memory({ initial: 16, maximum: 16, shared: true }).buffer)
const vector = new IoVector(memory, 1)

/** `count` accesses of `length` bytes, `step` apart, as qemu-img bench does them; seconds. */
function access(image: Qcow2Image, write: boolean, count: number, length: number, step: number): number {
  vector.clear()
  vector.push(0, length)
  let offset = 0
  const start = performance.now()
  for (let i = 0; i < count; i++) {
    if (write) image.writev(offset, vector)
    else image.readv(offset, vector)
    offset = (offset + step) % SIZE
  }
  return seconds(start)
}

function withImage(path: string, readOnly: boolean, work: (image: Qcow2Image) => number): number {
  const image = openDisk(path, { format: 'qcow2', readOnly })
  try {
    return work(image)
  } finally {
    image.close()
  }
}

function freshImage(files: Files): string {
  const path = join(files.folder, 'fresh.qcow2')
  createDisk(path, { format: 'qcow2', size: SIZE, overwrite: true })
  return path
}

/** Page cache that was just freed is several times faster to fill than memory that nobody has had: both sides get some. */
function warmPages(files: Files): void {
  const scratch = join(files.folder, 'scratch')
  writeFileSync(scratch, new Uint8Array(SIZE).fill(1))
  rmSync(scratch)
}

async function convertOurs(files: Files, format: 'raw' | 'qcow2', compress: boolean): Promise<number> {
  const source = openDisk(files.full, { format: 'qcow2', readOnly: true })
  const start = performance.now()
  await convertDisk(source, join(files.folder, 'ours.out'), { format, compress, overwrite: true })
  const took = seconds(start)
  source.close()
  return took
}

/** Runs `work` and notes the CPU time that this process spent meanwhile, in seconds. */
async function withCpu(work: () => number | Promise<number>): Promise<{ took: number; cpu: number }> {
  const before = process.cpuUsage()
  const took = await work()
  const { user, system } = process.cpuUsage(before)
  return { took, cpu: (user + system) / 1e6 }
}

async function sampleOurs(files: Files): Promise<Sample> {
  const { full, written, overlay } = files
  const read = await withCpu(() => withImage(full, true, image => access(image, false, COUNT, SMALL, STEP)))
  const write = await withCpu(() => withImage(written, false, image => access(image, true, COUNT, SMALL, STEP)))
  const fresh = freshImage(files)
  const fill = await withCpu(() => withImage(fresh, false, image => access(image, true, NEW_COUNT, SMALL, STEP)))
  const readLarge = await withCpu(() => withImage(full, true, image => access(image, false, LARGE_COUNT, LARGE, LARGE)))
  const writeLarge = await withCpu(() =>
    withImage(written, false, image => access(image, true, LARGE_COUNT, LARGE, LARGE)),
  )
  const convert = (format: 'raw' | 'qcow2', compress: boolean) => {
    rmSync(join(files.folder, 'ours.out'), { force: true })
    warmPages(files)
    return withCpu(() => convertOurs(files, format, compress))
  }
  const toRaw = await convert('raw', false)
  const toQcow2 = await convert('qcow2', false)
  const packed = await convert('qcow2', true)
  return {
    'read 4K': COUNT / read.took,
    'write 4K': COUNT / write.took,
    'write 4K new clusters': NEW_COUNT / fill.took,
    'read 4K overlay': COUNT / withImage(overlay, true, image => access(image, false, COUNT, SMALL, STEP)),
    'read 1M': LARGE_COUNT / readLarge.took,
    'write 1M': LARGE_COUNT / writeLarge.took,
    'convert to raw': toRaw.took,
    'convert to qcow2': toQcow2.took,
    'convert packed': packed.took,
    'CPU of read 4K': (read.cpu / COUNT) * 1e6,
    'CPU of write 4K': (write.cpu / COUNT) * 1e6,
    'CPU of write 4K new clusters': (fill.cpu / NEW_COUNT) * 1e6,
    'CPU of read 1M': (readLarge.cpu / LARGE_COUNT) * 1e6,
    'CPU of write 1M': (writeLarge.cpu / LARGE_COUNT) * 1e6,
    'CPU of convert to raw': toRaw.cpu * 1e3,
    'CPU of convert to qcow2': toQcow2.cpu * 1e3,
    'CPU of convert packed': packed.cpu * 1e3,
  }
}

interface Timed {
  readonly took: number
  readonly cpu: number
  readonly output: string
}

/** Runs qemu-img under bash's `time`, which knows the CPU time of a child. */
function qemuImg(args: readonly string[]): Timed {
  const start = performance.now()
  const script = 'TIMEFORMAT="cpu %U %S"; time qemu-img "$@" 2>&1'
  const { stdout, stderr, status } = spawnSync('bash', ['-c', script, 'bash', ...args], { encoding: 'utf8' })
  const match = /cpu ([\d.]+) ([\d.]+)/.exec(stderr)
  if (status !== 0 || !match) throw new Error(`qemu-img ${args.join(' ')}: ${stdout}${stderr}`)
  return { took: seconds(start), cpu: Number(match[1]) + Number(match[2]), output: stdout }
}

/** qemu-img bench's own time, which leaves out its start and the flush when it closes. */
function qemuBench(path: string, depth: number, write: boolean, count: number, length: number, step: number): Timed {
  const geometry = ['-c', String(count), '-d', String(depth), '-s', String(length), '-S', String(step)]
  const options = write ? ['-w'] : []
  const result = qemuImg(['bench', '-f', 'qcow2', ...geometry, ...options, path])
  const match = /completed in ([\d.]+) seconds/.exec(result.output)
  if (!match) throw new Error(`qemu-img bench said: ${result.output}`)
  return { ...result, took: Number(match[1]) }
}

function convertQemu(files: Files, format: string, ...options: string[]): Timed {
  rmSync(join(files.folder, 'qemu.out'), { force: true })
  warmPages(files)
  const output = join(files.folder, 'qemu.out')
  return qemuImg(['convert', '-t', 'writeback', '-f', 'qcow2', '-O', format, ...options, files.full, output])
}

async function sampleQemu(files: Files, depth: number): Promise<Sample> {
  const { full, written, overlay } = files
  const read = qemuBench(full, depth, false, COUNT, SMALL, STEP)
  const write = qemuBench(written, depth, true, COUNT, SMALL, STEP)
  const fill = qemuBench(freshImage(files), depth, true, NEW_COUNT, SMALL, STEP)
  const readLarge = qemuBench(full, depth, false, LARGE_COUNT, LARGE, LARGE)
  const writeLarge = qemuBench(written, depth, true, LARGE_COUNT, LARGE, LARGE)
  const toRaw = convertQemu(files, 'raw')
  const toQcow2 = convertQemu(files, 'qcow2')
  const packed = convertQemu(files, 'qcow2', '-c')
  return {
    'read 4K': COUNT / read.took,
    'write 4K': COUNT / write.took,
    'write 4K new clusters': NEW_COUNT / fill.took,
    'read 4K overlay': COUNT / qemuBench(overlay, depth, false, COUNT, SMALL, STEP).took,
    'read 1M': LARGE_COUNT / readLarge.took,
    'write 1M': LARGE_COUNT / writeLarge.took,
    'convert to raw': toRaw.took,
    'convert to qcow2': toQcow2.took,
    'convert packed': packed.took,
    'CPU of read 4K': (read.cpu / COUNT) * 1e6,
    'CPU of write 4K': (write.cpu / COUNT) * 1e6,
    'CPU of write 4K new clusters': (fill.cpu / NEW_COUNT) * 1e6,
    'CPU of read 1M': (readLarge.cpu / LARGE_COUNT) * 1e6,
    'CPU of write 1M': (writeLarge.cpu / LARGE_COUNT) * 1e6,
    'CPU of convert to raw': toRaw.cpu * 1e3,
    'CPU of convert to qcow2': toQcow2.cpu * 1e3,
    'CPU of convert packed': packed.cpu * 1e3,
  }
}

function qemuVersion(): string | undefined {
  try {
    return execFileSync('qemu-img', ['--version'], { encoding: 'utf8' }).split('\n')[0]
  } catch {
    return undefined
  }
}

export const benchmark: Benchmark = {
  summary: 'the QCOW2 engine without a guest, against qemu-img bench and convert',
  metrics: METRICS,
  runs: 5,
  open: async () => {
    const version = qemuVersion()
    const files = prepare()
    const peers = version
      ? [1, 32].map(depth => ({ name: `qemu depth ${depth}`, sample: () => sampleQemu(files, depth) }))
      : []
    return {
      contestants: [{ name: 'ours', sample: () => sampleOurs(files) }, ...peers],
      missing: version ? [] : [{ name: 'qemu', reason: 'qemu-img is not installed (apt-get install qemu-utils)' }],
      host: { peer: version ?? 'none', storage: 'page cache' },
      close: async () => rmSync(files.folder, { recursive: true, force: true }),
    }
  },
}
