/** Memory layers: checksums against published values, plans against the plainest way to find the same answer. */
import { mkdtempSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { Random } from '../qcow2/testing/random.ts'
import { checkCpu, cpuNeedsOf, describeCpu } from './cpu-needs.ts'
import { hashText, PAGE } from './hash.ts'
import { planRuns } from './mapping-plan.ts'
import type { MemoryImage } from './memory-image.ts'
import { MemoryWriter } from './memory-writer.ts'
import { PageSet } from './page-set.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-memory-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))
let files = 0
const newPath = (): string => join(folder, `${(files++).toString(16).padStart(12, '0')}.mem`)

describe('checksums', () => {
  it.each([
    // The first three are in xxHash's own test suite, the last in the documentation of python-xxhash.
    ['', 'ef46db3751d8e999'],
    ['a', 'd24ec4f1a98c6e5b'],
    ['abc', '44bc2cf5ad770999'],
    ['Nobody inspects the spammish repetition', 'fbcea83c8a378bf1'],
  ])('of %j are XXH64', (text, sum) => {
    expect(hashText(Buffer.from(text))).toBe(sum)
  })
})

describe('a set of pages', () => {
  it('finds what is in it, at every offset', () => {
    const random = new Random(1)
    for (const pages of [1, 31, 32, 33, 200]) {
      const set = new PageSet(pages)
      const model = Array.from({ length: pages }, () => random.below(3) === 0)
      model.forEach((wanted, page) => {
        if (wanted) set.add(page)
      })
      expect(set.count).toBe(model.filter(Boolean).length)
      for (let from = 0; from < pages; from++) {
        for (const wanted of [true, false]) {
          const found = model.indexOf(wanted, from)
          expect(set.next(from, wanted)).toBe(found < 0 ? pages : found)
        }
      }
    }
  })
})

describe('a plan', () => {
  const random = new Random(2)

  /** Layers of runs of random lengths; `density` out of ten runs are data. */
  function layersOf(count: number, pages: number, longest: number, density: number) {
    return Array.from({ length: count }, () => {
      const data = new PageSet(pages)
      const zero = new PageSet(pages)
      for (let page = 0; page < pages; ) {
        const kind = random.below(10)
        for (const end = Math.min(pages, page + 1 + random.below(longest)); page < end; page++) {
          if (kind < density) data.add(page)
          else if (kind === 9) zero.add(page)
        }
      }
      return { data, zero }
    })
  }

  it('shows the topmost page everywhere, within its limit', () => {
    for (let round = 0; round < 150; round++) {
      const pages = 1 + random.below(3000)
      const layers = layersOf(1 + random.below(5), pages, 1 + random.below(60), 1 + random.below(8))
      const maxMaps = [4, 30, 2048][random.below(3)]!
      const runs = planRuns(layers, pages, maxMaps)
      const shown = new Int32Array(pages).fill(-1)
      for (const { layer, offset, length } of runs) {
        expect(offset + length).toBeLessThanOrEqual(pages * PAGE)
        // A hole in its file shows zeros.
        for (let page = offset / PAGE; page < (offset + length) / PAGE; page++)
          shown[page] = layers[layer]!.data.has(page) ? layer : -1
      }
      expect(runs.filter(({ kind }) => kind === 'map').length).toBeLessThanOrEqual(maxMaps)
      for (let page = 0; page < pages; page++) {
        let owner = -1
        for (let i = 0; i < layers.length; i++) {
          if (layers[i]!.data.has(page)) owner = i
          else if (layers[i]!.zero.has(page)) owner = -1
        }
        if (shown[page] !== owner) throw new Error(`page ${page}: layer ${shown[page]} shows instead of ${owner}`)
      }
    }
  })

  it('is one mapping for a whole memory, whatever small holes it has', () => {
    const data = new PageSet(100_000)
    for (let page = 0; page < 100_000; page++) if (page % 50 > 9) data.add(page)
    expect(planRuns([{ data, zero: new PageSet(100_000) }], 100_000, 2048)).toEqual([
      { kind: 'map', layer: 0, offset: 10 * PAGE, length: 99_990 * PAGE },
    ])
  })
})

describe('a plan of changes', () => {
  it('maps a run once, and what changed in it over it', () => {
    const pages = 1000
    const [below, above] = [new PageSet(pages), new PageSet(pages)]
    for (let page = 100; page < 900; page++) below.add(page)
    for (let page = 150; page < 850; page += 50) above.add(page)
    const zero = new PageSet(pages)
    const runs = planRuns(
      [
        { data: below, zero },
        { data: above, zero },
      ],
      pages,
      2048,
    )
    expect(runs[0]).toEqual({ kind: 'map', layer: 0, offset: 100 * PAGE, length: 800 * PAGE })
    expect(runs.slice(1)).toEqual(
      Array.from({ length: 14 }, (_, i) => ({ kind: 'map', layer: 1, offset: (150 + i * 50) * PAGE, length: PAGE })),
    )
  })
})

describe('a writer', () => {
  const SIZE = 512 * PAGE

  it('keeps the last of what was written, over a chain', () => {
    const random = new Random(3)
    const model = new Uint8Array(SIZE)
    let parent: MemoryImage | undefined
    for (let layer = 0; layer < 5; layer++) {
      const path = newPath()
      const writer = new MemoryWriter(path, path, SIZE, parent)
      for (let i = 0; i < 40; i++) {
        const length = (1 + random.below(20)) * PAGE
        const offset = random.below((SIZE - length) / PAGE) * PAGE
        const bytes = random.bytes(length)
        for (let at = 0; at < length; at += PAGE) if (random.below(3) === 0) bytes.fill(0, at, at + PAGE)
        // A page that is zero but for its last byte is not zero.
        if (random.below(4) === 0) bytes.fill(0, 0, PAGE - 1)
        writer.write(offset, bytes)
        model.set(bytes, offset)
      }
      const image = writer.seal()
      const got = new Uint8Array(SIZE)
      image.read(0, got)
      expect(Buffer.compare(got, model)).toBe(0)
      expect(() => writer.write(0, new Uint8Array(PAGE))).toThrow(/sealed/)
      writer.close()
      parent?.close()
      parent = image
    }
    parent!.close()
  })

  it('takes pages from anywhere in a buffer', () => {
    const path = newPath()
    const writer = new MemoryWriter(path, path, SIZE)
    const whole = Buffer.from(new Random(4).bytes(3 + PAGE * 2))
    writer.write(PAGE, whole.subarray(3))
    const image = writer.seal()
    const got = new Uint8Array(2 * PAGE)
    image.read(PAGE, got)
    expect(Buffer.compare(got, whole.subarray(3))).toBe(0)
    image.close()
    writer.close()
  })

  it('writes nothing for zeros, and refuses what is not whole pages in range', () => {
    const path = newPath()
    const writer = new MemoryWriter(path, path, SIZE)
    writer.write(0, new Uint8Array(SIZE))
    expect([writer.bytes, writer.pages, statSync(path).blocks]).toEqual([0, 0, 0])
    for (const [offset, length] of [
      [1, PAGE],
      [0, 100],
      [SIZE, PAGE],
      [-PAGE, PAGE],
    ] as const) {
      expect(() => writer.write(offset, new Uint8Array(length))).toThrow(expect.objectContaining({ code: 'INVALID' }))
    }
    expect(() => new MemoryWriter(newPath(), '', 1000)).toThrow(expect.objectContaining({ code: 'INVALID' }))
    writer.close()
  })
})

describe('a CPU', () => {
  it('is asked for by name, and refused by name', () => {
    const leaf = { subleaf: 0, eax: 0, ebx: 0, ecx: 0, edx: 0 }
    const intel = { ...leaf, leaf: 0, ebx: 0x756e6547, edx: 0x49656e69, ecx: 0x6c65746e }
    const needs = cpuNeedsOf([
      intel,
      { ...leaf, leaf: 1, ecx: 1 | (1 << 28), edx: 1 << 26 },
      { ...leaf, leaf: 7, ebx: 1 << 5 },
    ])
    expect(needs).toMatchObject({ vendor: 'GenuineIntel', features: ['avx', 'avx2', 'pni', 'sse2'] })
    checkCpu(needs, describeCpu('GenuineIntel', ['sse2', 'pni', 'avx', 'avx2', 'avx512f']), 'it')
    expect(() => checkCpu(needs, describeCpu('GenuineIntel', ['sse2', 'pni']), 'it')).toThrow(
      /CPU with avx, avx2, which/,
    )
    const amd = describeCpu('AuthenticAMD', needs.features)
    expect(() => checkCpu(needs, amd, 'it')).toThrow(expect.objectContaining({ code: 'CPU_FEATURE' }))
  })
})
