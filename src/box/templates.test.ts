/** What a template is found by: the same for boxes that boot alike, another as soon as anything that goes into a boot is. */
import { mkdtempSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, it } from 'vitest'
import { resolveConfig } from './options.ts'
import type { BoxConfig, BoxRecord } from './record.ts'
import { templateKey } from './templates.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-templates-'))
afterAll(() => rmSync(folder, { recursive: true }))

const kernelFile = (name: string, text: string): string => {
  const path = join(folder, name)
  writeFileSync(path, text)
  utimesSync(path, 1, 1)
  return path
}
const kernel = kernelFile('kernel', 'a kernel')
const image = { env: {}, workdir: '/', user: '', entrypoint: [], cmd: [] }
const usual = resolveConfig({}, image)

const record = (config: Partial<BoxConfig> = {}, more: Partial<BoxRecord> = {}): BoxRecord => ({
  ...{ version: 1, id: '0123456789ab', name: 'one', created: '', imageId: 'sha256:1', baseDisk: '/images/1.ext4' },
  ...{ imageEntrypoint: [], imageCmd: [], config: { ...usual, ...config } },
  ...more,
})

it('is one key for boxes that boot alike', async () => {
  const key = await templateKey(record(), 'soft', kernel, ['quiet'])
  const others = [
    record({ env: { A: 'b' }, workdir: '/srv', user: 'nobody', command: ['true'], idleMs: 1000, detach: true }),
    record({ ports: [{ host: 0, guest: 80 }], network: { allow: ['*.example'] } }),
    record({}, { id: 'ba9876543210', name: 'two', created: 'later' }),
  ]
  for (const other of others) expect(await templateKey(other, 'soft', kernel, ['quiet'])).toBe(key)
})

it('is another key when image, kernel, Vitrine, accelerator or shape is another', async () => {
  const changed = kernelFile('changed', 'a kernel')
  const keys = [await templateKey(record(), 'soft', kernel, ['quiet'])]
  const add = async (...args: Parameters<typeof templateKey>): Promise<void> =>
    void keys.push(await templateKey(...args))
  await add(record({}, { imageId: 'sha256:2' }), 'soft', kernel, ['quiet'])
  await add(record({}, { baseDisk: '/images/2.ext4' }), 'soft', kernel, ['quiet'])
  for (const config of [{ cpus: 2 }, { memoryMib: 1024 }, { diskGib: usual.diskGib + 1 }, { network: 'none' }] as const)
    await add(record(config), 'soft', kernel, ['quiet'])
  await add(record(), 'soft', kernel, ['quiet', 'debug'])
  await add(record(), 'soft', changed, ['quiet'])
  utimesSync(changed, 2, 2)
  await add(record(), 'soft', changed, ['quiet'])
  writeFileSync(changed, 'another')
  utimesSync(changed, 2, 2)
  await add(record(), 'soft', changed, ['quiet'])
  await add(record(), 'soft', kernel, ['quiet'], 'another build')
  await add(record(), 'hvf', kernel, ['quiet'])
  expect(new Set(keys).size).toBe(keys.length)
})
