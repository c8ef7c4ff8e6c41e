/** The commands on snapshots, on boxes that are only files. */
import { mkdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest'
import { run as shell } from '../../test/image/oracles.ts'
import { TestHome } from '../snapshot/testing/home.ts'
import { type Command, parseCommandLine } from './command.ts'
import { snapshotCommand } from './snapshot.ts'
import { exportCommand, importCommand } from './transfer.ts'

const home = new TestHome()
const box = home.box()
beforeAll(async () => {
  rmSync(home.base)
  mkdirSync(join(home.path, 'root'))
  shell('mke2fs', ['-q', '-t', 'ext4', '-d', join(home.path, 'root'), home.base, '8M'])
  mkdirSync(join(home.path, 'names'))
  writeFileSync(join(home.path, 'names', 'work'), box.id)
  const record = {
    version: 1,
    id: box.id,
    name: 'work',
    created: new Date().toISOString(),
    baseDisk: home.base,
    config: {},
  }
  writeFileSync(join(box.folder, 'box.json'), JSON.stringify(record))
  box.ram.fill(5, 0, 9000)
  const first = await box.snapshot('first')
  box.ram.fill(6, 0, 4096)
  await box.snapshot('second', [0])
  box.parent = first
  await box.diskSnapshot('other')
})
afterAll(() => {
  box.close()
  home.remove()
})
beforeEach(() => {
  vi.stubEnv('VITRINE_HOME', home.path)
})
afterEach(() => {
  vi.unstubAllEnvs()
  vi.restoreAllMocks()
})

async function outputOf(command: Command, args: readonly string[], status = 0): Promise<string> {
  let text = ''
  const spy = vi.spyOn(process.stdout, 'write').mockImplementation(chunk => {
    text += chunk
    return true
  })
  try {
    expect(await command.run(parseCommandLine(command, args))).toBe(status)
  } finally {
    spy.mockRestore()
  }
  return text
}
const snapshot = (...args: string[]): Promise<string> => outputOf(snapshotCommand, args)

describe('vitrine snapshot', () => {
  it('lists, as a table, a tree and JSON', async () => {
    expect(await snapshot('ls', 'work')).toMatch(
      /^BOX +NAME +ID +TAKEN +MEMORY +OWN +SHARED\nwork +first +[0-9a-f]{12} .*ago +4\.0 MiB .*\nwork +second .*\nwork +other .*disk only/,
    )
    expect(await snapshot('tree')).toMatch(/^work\n└─ first .*\n {3}├─ second .*\n {3}└─ other .*, disk only\n$/)
    const [first, second] = JSON.parse(await snapshot('ls', '--json')) as Record<string, unknown>[]
    expect(first).toMatchObject({ name: 'first', parent: null, memory: true, of: 'work', accelerator: 'soft' })
    expect(second).toMatchObject({ parent: first!.id, ownBytes: expect.any(Number) })
    await expect(snapshot('ls', 'nobody')).rejects.toMatchObject({ code: 'NOT_FOUND' })
    await expect(snapshot('dance')).rejects.toMatchObject({ code: 'USAGE' })
  })

  it('compares with the snapshot before, or with the image', async () => {
    expect(await snapshot('diff', 'work@first')).toBe('')
    expect(JSON.parse(await snapshot('diff', '--json', 'work@first', 'work@second'))).toEqual([])
    await expect(snapshot('diff', 'work@nothing')).rejects.toMatchObject({ code: 'NOT_FOUND' })
  })

  it('exports to a file and imports from it, and removes', async () => {
    const file = join(home.path, 'out.vitrine')
    await outputOf(exportCommand, ['work@second', '-o', file])
    expect(await outputOf(importCommand, ['--name', 'copy', file])).toBe('copy\n')
    await expect(outputOf(importCommand, ['--name', 'copy', file])).rejects.toMatchObject({ code: 'NAME_IN_USE' })
    truncateSync(file, readFileSync(file).length - 3)
    await expect(outputOf(importCommand, [file])).rejects.toMatchObject({ code: 'TRUNCATED' })
    await expect(outputOf(importCommand, [join(home.path, 'none')])).rejects.toMatchObject({ code: 'ENOENT' })
    expect(await snapshot('verify', 'copy', 'work@second')).toMatch(
      /^[0-9a-f]{12} {2}copy {2}whole\n.*second {2}whole\n$/,
    )
    const removed = JSON.parse(await snapshot('rm', '--json', 'copy')) as { freedBytes: number }
    expect(removed).toMatchObject({ removed: ['copy'], later: false })
    expect(removed.freedBytes).toBeGreaterThan(0)
    expect(await snapshot('tree')).not.toMatch(/copy/)
  })

  it('says what is damaged, and removes that too', async () => {
    const { store } = home
    const second = store.find(box.id, 'second')
    truncateSync(store.folder.layer(second.memory!.layers[1]!.file), 5000)
    expect(await outputOf(snapshotCommand, ['verify', 'work@first', 'work@second'], 1)).toMatch(
      /first {2}whole\n.*ends too early/,
    )
    writeFileSync(store.folder.manifest(box.id, second.id), 'nonsense')
    vi.spyOn(process.stderr, 'write').mockReturnValue(true)
    expect(await snapshot('ls')).not.toContain(second.id)
    await snapshot('rm', second.id)
    expect(store.damaged()).toEqual([])
    await snapshot('rm', 'work@first', 'work@other')
    expect(await snapshot('ls')).toMatch(/No snapshots yet/)
  })
})
