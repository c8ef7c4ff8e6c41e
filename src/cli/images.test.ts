import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { has, run } from '../../test/image/oracles.ts'
import type { ImageSummary } from '../image/store.ts'
import { type Command, parseCommandLine } from './command.ts'
import { imagesCommand, pruneCommand, pullCommand, rmiCommand } from './images.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-cli-images-'))
afterAll(() => rmSync(folder, { recursive: true }))

beforeEach(() => {
  vi.stubEnv('VITRINE_HOME', join(folder, 'home'))
})
afterEach(() => {
  vi.unstubAllEnvs()
  vi.restoreAllMocks()
})

/** What a command prints. */
async function outputOf(command: Command, ...args: string[]): Promise<string> {
  let text = ''
  const spy = vi.spyOn(process.stdout, 'write').mockImplementation(chunk => {
    text += chunk
    return true
  })
  try {
    expect(await command.run(parseCommandLine(command, args))).toBe(0)
  } finally {
    spy.mockRestore()
  }
  return text
}

describe.skipIf(!has('busybox'))('images at the command line', () => {
  it('pulls, lists, prunes and removes', async () => {
    expect(await outputOf(imagesCommand)).toMatch(/No images yet/)
    expect(await outputOf(pullCommand, 'base')).toMatch(/^base {2}sha256:[0-9a-f]{64}\n$/)
    expect(await outputOf(imagesCommand)).toMatch(/^IMAGE .*\nbase +[0-9a-f]{12} .* MiB\n$/)
    const [image] = JSON.parse(await outputOf(imagesCommand, '--json')) as ImageSummary[]
    expect(image).toMatchObject({ name: 'base', id: expect.stringMatching(/^sha256:/) })
    expect(JSON.parse(await outputOf(pruneCommand, '--json'))).toEqual({
      removedImages: [],
      removedFiles: 0,
      freedBytes: 0,
    })
    expect(await outputOf(rmiCommand, image!.id.slice(7, 19))).toMatch(/^Removed base\nFreed .* MiB\.\n$/)
    expect(JSON.parse(await outputOf(imagesCommand, '--json'))).toEqual([])
  })

  it('pulls several, from files too', async () => {
    const root = join(folder, 'root')
    run('sh', ['-c', `mkdir -p ${root}/etc && echo hi > ${root}/etc/motd && tar -C ${root} -czf ${root}.tar.gz .`])
    const pulled = JSON.parse(
      await outputOf(pullCommand, '--json', '--disk-size', '256M', root, `${root}.tar.gz`),
    ) as object[]
    expect(pulled).toEqual([
      expect.objectContaining({ name: root, diskBytes: 2 ** 28 }),
      expect.objectContaining({ name: `${root}.tar.gz`, diskBytes: 2 ** 28 }),
    ])
  })

  it('fails with words for people', async () => {
    const fail = (command: Command, ...args: string[]): Promise<unknown> => command.run(parseCommandLine(command, args))
    await expect(fail(pullCommand)).rejects.toMatchObject({ code: 'USAGE' })
    await expect(fail(pullCommand, 'Not An Image')).rejects.toMatchObject({ code: 'BAD_REFERENCE' })
    await expect(fail(pullCommand, './nothing-here')).rejects.toMatchObject({ code: 'NOT_FOUND' })
    await expect(fail(rmiCommand, 'debian')).rejects.toMatchObject({ code: 'NOT_FOUND' })
    await expect(fail(pruneCommand, '--older-than', 'soon')).rejects.toMatchObject({ code: 'USAGE' })
    vi.stubEnv('VITRINE_MIRRORS', 'nonsense')
    await expect(fail(imagesCommand)).rejects.toMatchObject({ code: 'BAD_REFERENCE' })
  })
})
