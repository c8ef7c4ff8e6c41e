import { copyFileSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, describe, expect, it, vi } from 'vitest'
import { qemuImgOk, qemuIoOk, qemuMissing } from '../qcow2/testing/qemu.ts'
import { parseCommandLine } from './command.ts'
import { diskCommand, parseSize } from './disk.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-cli-disk-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))
afterEach(() => vi.restoreAllMocks())

/** Runs the command; its exit status and what it printed. */
async function run(...args: string[]): Promise<{ status: number; out: string }> {
  let out = ''
  vi.spyOn(process.stdout, 'write').mockImplementation(chunk => {
    out += String(chunk)
    return true
  })
  const status = await diskCommand.run(parseCommandLine(diskCommand, args))
  vi.restoreAllMocks()
  return { status, out }
}

describe('vitrine disk', () => {
  it('reads sizes', () => {
    expect(['512', '64K', '3M', '10G', '2T', '1GiB'].map(parseSize)).toEqual([
      512,
      65536,
      3 << 20,
      10 * 2 ** 30,
      2 ** 41,
      2 ** 30,
    ])
    expect(() => parseSize('big')).toThrow(/not a size/)
  })

  it('refuses what it does not know', async () => {
    await expect(run('frob', 'x')).rejects.toThrow(/does not exist/)
    await expect(run('create', join(folder, 'x'))).rejects.toThrow('the size is missing')
    await expect(run('create', join(folder, 'x'), '1M', '-b', 'y')).rejects.toThrow(/-F/)
    await expect(run('info', join(folder, 'absent'))).rejects.toThrow(/does not exist/)
  })

  it("goes by a file's name, and asks when the contents say otherwise", async () => {
    const raw = join(folder, 'guest.img')
    await run('create', raw, '1M', '-f', 'raw')
    expect(JSON.parse((await run('info', '--json', raw)).out)).toMatchObject({ format: 'raw' })
    // What a guest can do to its raw disk.
    await run('create', join(folder, 'other.qcow2'), '1G')
    copyFileSync(join(folder, 'other.qcow2'), raw)
    for (const args of [
      ['info', raw],
      ['map', raw],
      ['resize', raw, '2G'],
      ['convert', raw, join(folder, 'out.qcow2')],
    ]) {
      await expect(run(...args)).rejects.toThrow(/begins like a QCOW2 image/)
    }
    expect(JSON.parse((await run('info', '--json', '-f', 'raw', raw)).out)).toMatchObject({ format: 'raw' })
    expect(JSON.parse((await run('info', '--json', '-f', 'qcow2', raw)).out)).toMatchObject({ format: 'qcow2' })
    const named = join(folder, 'named.qcow2')
    writeFileSync(named, new Uint8Array(4096))
    await expect(run('info', named)).rejects.toMatchObject({ code: 'NOT_QCOW2' })
  })

  it.skipIf(qemuMissing)(
    'makes, fills, checks, maps, converts, commits, rebases and resizes, as qemu-img sees it',
    async () => {
      const base = join(folder, 'base.qcow2')
      const top = join(folder, 'top.qcow2')
      const packed = join(folder, 'packed.qcow2')
      expect((await run('create', base, '8M', '--cluster-size', '4K', '--refcount-bits', '64')).status).toBe(0)
      await expect(run('create', base, '8M')).rejects.toThrow(/exists already/)
      qemuIoOk(base, 'qcow2', 'write -P 3 1M 1M')
      await run('create', top, '-b', 'base.qcow2', '-F', 'qcow2')
      qemuIoOk(top, 'qcow2', 'write -P 4 1536k 1M')
      expect(JSON.parse((await run('info', '--json', top)).out)).toMatchObject({
        virtualSize: 8 << 20,
        qcow2: { backingFile: 'base.qcow2', clusterSize: 65536 },
      })
      expect((await run('info', top)).out).toContain('base.qcow2 (qcow2)')
      const map = JSON.parse((await run('map', '--json', top)).out) as { depth: number; data: boolean }[]
      expect(map.filter(entry => entry.data).map(entry => entry.depth)).toEqual([1, 0])
      expect(await run('check', top)).toMatchObject({ status: 0, out: expect.stringContaining('0 errors, 0 leaks') })
      await run('convert', '-c', top, packed)
      qemuImgOk('compare', packed, top)
      expect((await run('info', packed)).out).not.toContain('backing')
      await run('commit', top)
      qemuImgOk('compare', packed, base)
      await run('rebase', top, '-b', '')
      qemuImgOk('compare', packed, top)
      await run('resize', top, '16M')
      expect(JSON.parse(qemuImgOk('info', '--output=json', top))['virtual-size']).toBe(16 << 20)
      await expect(run('resize', top, '8M')).rejects.toThrow(/shrink/)
      qemuImgOk('snapshot', '-c', 'tagged', top)
      expect((await run('snapshots', top)).out).toContain('tagged')
      expect(JSON.parse((await run('check', '--json', top)).out)).toMatchObject({ corruptions: 0, leaks: 0 })
    },
  )
})
