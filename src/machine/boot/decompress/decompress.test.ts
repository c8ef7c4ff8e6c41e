/** Every decompressor against the tool that made the data, and against damaged data. */
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { MachineError } from '../../errors.ts'
import { type Compression, compressionOf, decompress } from './decompress.ts'

/** x86 code, text and noise: branches for the filter, long matches, and runs that do not compress. */
function sample(): Uint8Array {
  const node = readFileSync(process.execPath).subarray(8 << 20, (8 << 20) + 1_500_000)
  const noise = new Uint8Array(200_000)
  let seed = 1
  for (let i = 0; i < noise.length; i++) {
    seed = (Math.imul(seed, 1103515245) + 12345) >>> 0
    noise[i] = seed >>> 16
  }
  return Buffer.concat([node, noise, new Uint8Array(300_000), Buffer.from('tail '.repeat(20_000))])
}

function tool(command: string, args: string[], input: Uint8Array): Uint8Array {
  const { stdout, status, error } = spawnSync(command, args, { input, maxBuffer: 1 << 28 })
  if (status !== 0) throw error ?? new Error(`${command} exits with ${status}`)
  return stdout
}

const TOOLS: readonly [string, Compression, string, string[]][] = [
  ['gzip -9', 'gzip', 'gzip', ['-9', '-c']],
  ['lz4 -l', 'lz4', 'lz4', ['-l', '-c', '-z']],
  ['lz4 -l -9', 'lz4', 'lz4', ['-l', '-9', '-c', '-z']],
  ['xz', 'xz', 'xz', ['-c', '-T1']],
  ['xz, two blocks', 'xz', 'xz', ['-c', '-T1', '-1', '--block-size=1000000']],
  ['xz as the kernel', 'xz', 'xz', ['--check=crc32', '--x86', '--lzma2=dict=32MiB', '-c', '-T1']],
  ['xz, other properties', 'xz', 'xz', ['--check=sha256', '--lzma2=lc=1,lp=2,pb=0', '-c', '-T1']],
  ['zstd', 'zstd', 'zstd', ['-c']],
  ['zstd -19', 'zstd', 'zstd', ['-15', '-c', '--no-check']],
]

const data = sample()
const packed = TOOLS.map(([, , command, args]) => tool(command, args, data))

describe('decompress', () => {
  it.each(TOOLS.map(([name], i) => [name, i] as const))('undoes %s', (_name, i) => {
    const kind = compressionOf(packed[i]!)
    expect(kind).toBe(TOOLS[i]![1])
    const out = decompress(kind!, packed[i]!, data.length)
    expect(Buffer.compare(out, data)).toBe(0)
  })

  it.each(TOOLS.map(([name], i) => [name, i] as const))('bounds what %s gives', (_name, i) => {
    expect(() => decompress(TOOLS[i]![1], packed[i]!, data.length - 1)).toThrow(/more than/)
    expect(() => decompress(TOOLS[i]![1], packed[i]!, 1000)).toThrow(/more than/)
  })

  it.each(TOOLS.map(([name], i) => [name, i] as const))('refuses %s cut short', (_name, i) => {
    for (const keep of [7, 100, packed[i]!.length >> 1, packed[i]!.length - 3]) {
      expect(() => decompress(TOOLS[i]![1], packed[i]!.subarray(0, keep), data.length)).toThrow(MachineError)
    }
  })

  it('survives damaged data: a typed error or some bytes, never more than the limit', () => {
    const small = data.subarray(1_400_000, 1_420_000)
    let seed = 42
    const random = (below: number): number => {
      seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0
      return seed % below
    }
    let refused = 0
    for (const [, kind, command, args] of TOOLS) {
      const good = tool(command, args, small)
      for (let round = 0; round < 60; round++) {
        const broken = Uint8Array.from(good)
        for (let n = 1 + random(4); n > 0; n--) broken[6 + random(broken.length - 6)] = random(256)
        try {
          expect(decompress(kind, broken, 100_000).length).toBeLessThanOrEqual(100_000)
        } catch (error) {
          expect(error).toBeInstanceOf(MachineError)
          refused++
        }
      }
    }
    expect(refused).toBeGreaterThan(100)
  })
})
