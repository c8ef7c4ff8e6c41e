/**
 * Damaged kernels: ELF files, bzImages of every compression, and bare compressed data. Each must give a kernel, or a
 * MachineError and nothing else, in bounded time and memory. What both our decompressor and the format's own tool accept must
 * be the same. Not so for zstd: of damaged data without a checksum fzstd once made something else than libzstd (20,000
 * cases, of which 4,773 were accepted), so such differences are counted only.
 */
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { type Compression, decompress } from '../../src/machine/boot/decompress/decompress.ts'
import { bzImageFixture, elfFixture } from '../../src/machine/boot/kernel-fixtures.ts'
import { loadGuest } from '../../src/machine/boot/load.ts'
import { MachineError } from '../../src/machine/errors.ts'
import { GuestMemory } from '../../src/memory/guest-memory.ts'

/** Below it for every input, whatever the input says of itself. */
const OUTPUT_LIMIT = 1 << 20
const TIME_LIMIT_MS = 10_000

interface Format {
  readonly kind: Compression
  readonly pack: readonly [string, ...string[]]
  readonly unpack: readonly [string, ...string[]]
}

const FORMATS: readonly Format[] = [
  { kind: 'gzip', pack: ['gzip', '-9', '-c'], unpack: ['gzip', '-dc'] },
  { kind: 'lz4', pack: ['lz4', '-l', '-9', '-c', '-z'], unpack: ['lz4', '-dc'] },
  { kind: 'xz', pack: ['xz', '--check=crc32', '--x86', '--lzma2=dict=1MiB', '-c', '-T1'], unpack: ['xz', '-dc'] },
  { kind: 'xz', pack: ['xz', '--check=none', '--lzma2=dict=64KiB', '-c', '-T1'], unpack: ['xz', '-dc'] },
  { kind: 'zstd', pack: ['zstd', '-15', '-c', '--no-check'], unpack: ['zstd', '-dc'] },
]

function tool([command, ...args]: readonly [string, ...string[]], input: Uint8Array): Uint8Array | undefined {
  const { stdout, status, error } = spawnSync(command, args, { input, maxBuffer: 64 << 20 })
  if (error && !/ENOBUFS|EPIPE/.test(error.message)) throw error
  return status === 0 ? stdout : undefined
}

/** xorshift32, so that a seed is a case. */
function randomOf(seed: number): (below: number) => number {
  let x = Math.imul(seed + 1, 2654435761) >>> 0 || 1
  return below => {
    x ^= x << 13
    x ^= x >>> 17
    x ^= x << 5
    return (x >>> 0) % below
  }
}

const TELLING = [0, 1, 2, 7, 0x7f, 0x80, 0xfe, 0xff]

/** Bytes changed, fields of 2, 4 or 8 bytes set to telling values, pieces copied elsewhere, the end cut off. */
function damage(original: Uint8Array, random: (below: number) => number): Uint8Array {
  const bytes = Uint8Array.from(original)
  // Headers are where numbers are believed: half of the damage goes to the first 256 bytes.
  const somewhere = (): number => random(random(2) ? Math.min(256, bytes.length) : bytes.length)
  for (let n = 1 + random(4); n > 0; n--) {
    const at = somewhere()
    const kind = random(4)
    if (kind === 0) bytes[at] = random(256)
    else if (kind === 1) bytes[at] = bytes[at]! ^ (1 << random(8))
    else if (kind === 2) bytes.fill(TELLING[random(TELLING.length)]!, at, at + (2 << random(3)))
    else bytes.copyWithin(at, somewhere(), somewhere())
  }
  return random(5) ? bytes : bytes.subarray(0, random(bytes.length))
}

/** Some code, some text, some noise, some zeros. */
function content(): Uint8Array {
  const code = readFileSync(process.execPath).subarray(8 << 20, (8 << 20) + 12_000)
  const random = randomOf(0)
  const noise = Uint8Array.from({ length: 700 }, () => random(256))
  return Buffer.concat([code, Buffer.from('a kernel of sorts '.repeat(300)), noise, Buffer.alloc(9000)])
}

const LOAD = { commandLine: 'console=ttyS0', cpus: 2, slots: 1, generationId: new Uint8Array(16) }

let accepted = 0
let zstdDifferences = 0

/** What is wrong with how this input was taken, or nothing. */
function tryKernel(memory: GuestMemory, kernel: Uint8Array): string | undefined {
  try {
    loadGuest(memory, { ...LOAD, kernel })
    accepted++
    return undefined
  } catch (error) {
    return error instanceof MachineError ? undefined : `threw ${error instanceof Error ? error.stack : error}`
  }
}

function tryStream({ kind, unpack }: Format, data: Uint8Array): string | undefined {
  let ours: Uint8Array
  try {
    ours = decompress(kind, data, OUTPUT_LIMIT)
  } catch (error) {
    return error instanceof MachineError ? undefined : `threw ${error instanceof Error ? error.stack : error}`
  }
  if (ours.length > OUTPUT_LIMIT) return `gave ${ours.length} bytes, more than its limit`
  accepted++
  const theirs = tool(unpack, data)
  // A tool may refuse what comes after the data, or a header's reserved bits; what both accept is the same.
  if (!theirs || Buffer.compare(ours, theirs) === 0) return undefined
  if (kind !== 'zstd') return `differs from ${unpack[0]}`
  zstdDifferences++
  return undefined
}

export async function fuzz(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({
    args: [...args],
    options: { seed: { type: 'string', default: '1' }, count: { type: 'string', default: '20000' } },
  })
  const first = Number(values.seed)
  const count = Number(values.count)
  const data = content()
  const elf = elfFixture({ pvhEntry: 0x10_0000, segments: [{ address: 0x10_0000, content: data }] })
  const size = Buffer.alloc(4)
  size.writeUInt32LE(elf.length)
  const streams = FORMATS.map(format => tool(format.pack, data)!)
  const kernels = [elf, ...FORMATS.map(({ pack }) => bzImageFixture(Buffer.concat([tool(pack, elf)!, size])))]
  const memory = GuestMemory.create(4)
  const names = [
    ...kernels.map((_, i) => (i === 0 ? 'ELF' : `bzImage ${FORMATS[i - 1]!.kind}`)),
    ...FORMATS.map(f => f.kind),
  ]
  let wrong = 0
  for (let seed = first; seed < first + count; seed++) {
    const which = seed % names.length
    const random = randomOf(seed)
    const began = performance.now()
    const stream = which - kernels.length
    const problem =
      stream < 0
        ? tryKernel(memory, damage(kernels[which]!, random))
        : tryStream(FORMATS[stream]!, damage(streams[stream]!, random))
    const took = performance.now() - began
    const slow = took > TIME_LIMIT_MS ? `took ${Math.round(took)} ms` : undefined
    if (!problem && !slow) continue
    wrong++
    console.error(`seed ${seed} (${names[which]}): ${problem ?? slow}`)
  }
  console.log(
    `${count} damaged kernels and streams from seed ${first}: ${accepted} taken, ${wrong} wrong, ${zstdDifferences} zstd differences`,
  )
  return wrong === 0
}
