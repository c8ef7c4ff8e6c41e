import { spawnSync } from 'node:child_process'
import { describe, expect, it } from 'vitest'
import { Random } from './testing/random.ts'
import { decompressZstd, zstdFrameLength } from './zstd.ts'
import { encodeZstd } from './zstd-encoder.ts'

const zstdMissing = spawnSync('zstd', ['--version']).error ? 'zstd is not installed (apt-get install zstd)' : undefined

/** Inputs of every nature: empty, one byte, runs, text, noise, matches far back, and sizes around a block. */
function inputs(): Uint8Array[] {
  const random = new Random(2)
  const text = new TextEncoder().encode('the quick brown fox jumps over the lazy dog; pack my box. '.repeat(4000))
  const far = random.bytes(300_000)
  far.copyWithin(200_000, 0, 90_000)
  const noise = Uint8Array.from({ length: 70_000 }, () => random.below(256))
  const list = [
    new Uint8Array(0),
    Uint8Array.of(7),
    new Uint8Array(65536),
    text,
    far,
    noise,
    random.bytes(2 * 1024 * 1024),
  ]
  for (const size of [9, 64, 511, 512, 65536, 131_071, 131_072, 131_073, 262_144]) list.push(random.bytes(size))
  for (let i = 0; i < 40; i++) {
    const bytes = new Uint8Array(1 + random.below(20_000))
    for (let j = 0; j < bytes.length; j++) bytes[j] = random.below(1 + (i % 7))
    list.push(bytes)
  }
  return list
}

describe('zstd', () => {
  it('unpacks what it packed, with padding behind', () => {
    for (const input of inputs()) {
      const packed = encodeZstd(input)
      expect(zstdFrameLength(packed)).toBe(packed.length)
      const padded = new Uint8Array(packed.length + 300)
      padded.set(packed)
      if (input.length > 0) expect(Buffer.compare(decompressZstd(padded, input.length), input)).toBe(0)
    }
  })

  it.skipIf(zstdMissing)('is read by zstd itself, and packs text well', () => {
    const all = inputs()
    const frames = Buffer.concat(all.map(encodeZstd))
    const { stdout, stderr } = spawnSync('zstd', ['-dc'], { input: frames, maxBuffer: 64 * 1024 * 1024 })
    expect(stderr.toString()).toBe('')
    expect(Buffer.compare(stdout, Buffer.concat(all))).toBe(0)
    expect(encodeZstd(all[3]!).length).toBeLessThan(all[3]!.length / 50)
  })

  it('refuses rubbish', () => {
    const packed = encodeZstd(new Random(3).bytes(5000))
    expect(() => decompressZstd(packed.subarray(0, 100), 5000)).toThrow()
    expect(() => decompressZstd(new Uint8Array(100), 5000)).toThrow('not a zstd frame')
  })
})
