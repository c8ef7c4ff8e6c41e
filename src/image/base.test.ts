import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { checkFileSystem, debugfs, has, run } from '../../test/image/oracles.ts'
import { appletsOf, BASE_CONFIG, makeBase } from './base.ts'
import { ImageStore } from './store.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-base-'))
afterAll(() => rmSync(folder, { recursive: true }))

/** Why a package cannot be downloaded here. */
const noPackages: string | undefined = !has('apt-get')
  ? 'no apt-get'
  : run('apt-cache', ['madison', 'busybox-static']).trim() === ''
    ? 'apt has no package lists'
    : undefined

describe.skipIf(!has('busybox'))('the built-in image', { timeout: 120_000 }, () => {
  it('has the programs that busybox says it has', () => {
    const listed = run('busybox', ['--list']).trim().split('\n')
    expect(appletsOf(readFileSync('/bin/busybox'))).toEqual(listed)
    expect(() => appletsOf(Buffer.alloc(1000))).toThrow(expect.objectContaining({ code: 'CORRUPT' }))
  })

  it('is built without a registry, once, and holds what a system needs', async () => {
    const store = new ImageStore({ home: folder, http: { attempts: 1 } })
    const image = await store.get('base')
    checkFileSystem(image.disk)
    expect(image.config).toEqual(BASE_CONFIG)
    const busybox = join(folder, 'busybox')
    debugfs(image.disk, `dump /bin/busybox ${busybox}`)
    expect(readFileSync(busybox).equals(readFileSync('/bin/busybox'))).toBe(true)
    expect(debugfs(image.disk, 'cat /etc/passwd')).toMatch(/^root:x:0:0:/)
    expect(debugfs(image.disk, 'stat /bin/sh')).toMatch(/Fast link dest: "busybox"/)
    expect(debugfs(image.disk, 'stat /tmp')).toMatch(/Mode: +01777/)
    const again = await store.get('base', { onProgress: () => expect.unreachable() })
    expect(again.disk).toBe(image.disk)
    const elsewhere = await new ImageStore({ home: join(folder, 'other') }).get('base')
    expect(elsewhere.id).toBe(image.id)
  })

  it.skipIf(noPackages)('fetches the package when busybox is not installed', async () => {
    const work = mkdtempSync(join(folder, 'work-'))
    const { contentId, root } = await makeBase(work, [])
    expect(contentId).toMatch(/^sha256:/)
    expect(root.children!.get('bin')!.children!.get('busybox')!.size).toBeGreaterThan(1_000_000)
  })

  it('says what to install when there is no apt-get', async () => {
    const before = process.env.PATH
    process.env.PATH = folder
    try {
      await expect(makeBase(folder, [])).rejects.toMatchObject({
        code: 'MISSING_TOOL',
        message: expect.stringContaining('busybox-static'),
      })
    } finally {
      process.env.PATH = before
    }
  })
})
