/** Templates on a real guest: the first box of a kind boots and leaves one, the next go on from it, and whatever is wrong with it is a boot. */
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, it } from 'vitest'
import { snapshotStore } from '../../src/box/snapshots.ts'
import { CODE_USE } from '../../src/host/kept-code.ts'
import { kernelsFolder } from '../../src/image/kernel/cache.ts'
import { Box, type BoxOptions, Runtime } from '../../src/index.ts'
import type { SnapshotManifest } from '../../src/snapshot/manifest.ts'

const LIMIT_MS = 180_000
const scratch = mkdtempSync(join(tmpdir(), 'vitrine-template-'))
const home = join(scratch, 'home')
mkdirSync(home)
symlinkSync(kernelsFolder(), join(home, 'kernels'))
const defaults = { accel: 'soft', memoryMib: 128, diskGib: 1, network: 'none' } as const
const runtime = new Runtime({ home, defaults })
const store = snapshotStore(runtime)
afterAll(() => rmSync(scratch, { recursive: true }))

interface Start {
  /** Its kernel said something: a guest that goes on from a template has said it before. */
  readonly booted: boolean
  readonly uuid: string
  readonly templates: readonly SnapshotManifest[]
}

async function start(options: BoxOptions = {}): Promise<Start> {
  const box = await Box.create(options, runtime)
  try {
    const { stdout } = await box.exec('sh', ['-c', 'hostname; cat /proc/sys/kernel/random/uuid'])
    const [name, uuid] = stdout.split('\n')
    expect(name).toBe(box.name)
    const booted = box.bootStages!.kernelMs > 0
    expect(box.startedFrom).toBe(booted ? 'kernel' : 'template')
    await box.stop()
    return { booted, uuid: uuid!, templates: store.list('template') }
  } finally {
    await box.remove({ force: true })
  }
}

it('is left by the first box and used by the next, until the shape is another', { timeout: LIMIT_MS }, async () => {
  const first = await start()
  expect([first.booted, first.templates.length]).toEqual([true, 1])
  const again = [await start(), await start()]
  for (const { booted, templates } of again) expect([booted, templates]).toEqual([false, first.templates])
  expect(new Set([first, ...again].map(({ uuid }) => uuid)).size).toBe(3)
  const cold = await start({ template: false })
  expect([cold.booted, cold.templates]).toEqual([true, first.templates])
  const larger = await start({ memoryMib: 160 })
  expect([larger.booted, larger.templates.length]).toEqual([true, 2])
})

it('leaves what its VMM compiled for the next, who does without it when it is of no use', {
  timeout: LIMIT_MS,
}, async () => {
  const code = join(home, 'code')
  const kept = readdirSync(code).filter(name => /^vmm-[0-9a-f]{16}\.code$/.test(name))
  expect(kept).toHaveLength(1)
  const path = join(code, kept[0]!)
  const whole = readFileSync(path)
  for (const damaged of [whole.subarray(0, 100), Buffer.alloc(0), Buffer.from('no code at all'.repeat(1000))]) {
    writeFileSync(path, damaged)
    expect((await start()).booted).toBe(false)
    // What V8 refused is replaced.
    expect(readFileSync(path).length).toBeGreaterThan(whole.length / 2)
  }
  // One that cannot be written is no loss; nor does it leave anything.
  rmSync(code, { recursive: true })
  writeFileSync(code, '')
  expect((await start()).booted).toBe(false)
  rmSync(code)
  expect((await start()).booted).toBe(false)
  expect(readdirSync(code)).toEqual(kept)
})

it('is followed by what going on from a snapshot of a box compiled on top', { timeout: LIMIT_MS }, async () => {
  const code = join(home, 'code')
  const path = join(code, readdirSync(code)[0]!)
  expect(readFileSync(path).at(-1)).toBe(CODE_USE.usual)
  const box = await Box.create({}, runtime)
  await box.exec('true')
  const { id } = await box.snapshot()
  for (let i = 0; i < 2; i++) {
    const restored = await Box.restore(id, {}, runtime)
    expect((await restored.exec('true')).exitCode).toBe(0)
    await restored.remove({ force: true })
    expect(readFileSync(path).at(-1)).toBe(CODE_USE.usual | CODE_USE.snapshot)
  }
  await box.remove({ force: true })
})

it('that is damaged is a boot, which leaves another', { timeout: LIMIT_MS }, async () => {
  const [template] = store.list('template')
  truncateSync(store.folder.layer(template!.memory!.layers[0]!.file), 1 << 20)
  const mended = await start()
  expect(mended.booted).toBe(true)
  expect((await start()).booted).toBe(false)
})
