import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { has } from '../../test/image/oracles.ts'
import { Home } from '../box/home.ts'
import { list } from '../box/store.ts'
import {
  createCommand,
  inspectCommand,
  psCommand,
  rmCommand,
  startCommand,
  statsCommand,
  stopCommand,
} from './boxes.ts'
import { type Command, parseCommandLine } from './command.ts'
import { logsCommand } from './logs.ts'

const home = mkdtempSync(join(tmpdir(), 'vitrine-cli-boxes-'))
afterAll(() => rmSync(home, { recursive: true }))
beforeEach(() => {
  vi.stubEnv('VITRINE_HOME', home)
})
afterEach(() => {
  vi.unstubAllEnvs()
  vi.restoreAllMocks()
})

async function outputOf(command: Command, ...args: string[]): Promise<string> {
  let text = ''
  vi.spyOn(process.stdout, 'write').mockImplementation(chunk => {
    text += chunk
    return true
  })
  expect(await command.run(parseCommandLine(command, args))).toBe(0)
  vi.restoreAllMocks()
  return text
}
const fail = async (command: Command, ...args: string[]): Promise<unknown> =>
  command.run(parseCommandLine(command, args))

describe.skipIf(!has('busybox'))('boxes at the command line', () => {
  it('are made, listed, described and removed, for people and for scripts', async () => {
    expect(await outputOf(createCommand, '--name', 'work', '--disk', '1', '-e', 'A=b', 'base')).toBe('work\n')
    const made = JSON.parse(await outputOf(createCommand, '--json', '--disk', '1')) as { id: string; name: string }
    expect(made.name).toBe(made.id)
    expect(await outputOf(psCommand)).toMatch(/^ID .*\n$/)
    expect(await outputOf(psCommand, '--all')).toMatch(/\n[0-9a-f]{12} +work +base +stopped/)
    expect(JSON.parse(await outputOf(psCommand, '--all', '--json'))).toMatchObject([
      { name: 'work', state: 'stopped', config: { env: { A: 'b' } } },
      { id: made.id },
    ])
    expect(JSON.parse(await outputOf(inspectCommand, 'work'))).toMatchObject([{ name: 'work', lastExit: null }])
    expect(await outputOf(stopCommand, 'work')).toBe('work\n')
    expect(await outputOf(psCommand, '-aq')).toMatch(/^[0-9a-f]{12}\n[0-9a-f]{12}\n$/)
    expect(await outputOf(logsCommand, 'work')).toBe('')
    const [id] = (await outputOf(psCommand, '-aq')).split('\n')
    const lines = Array.from({ length: 40_000 }, (_, i) => `line ${i}\n`).join('')
    writeFileSync(join(home, 'boxes', id!, 'output.log'), lines)
    expect(await outputOf(logsCommand, 'work')).toBe(lines)
    expect(await outputOf(logsCommand, '--tail', '2', 'work')).toBe('line 39998\nline 39999\n')
    expect(await outputOf(logsCommand, '--tail', '0', 'work')).toBe('')
    expect(await outputOf(logsCommand, '-n', '39999', 'work')).toBe(lines.slice('line 0\n'.length))
    expect(await outputOf(logsCommand, '-n', '50000', 'work')).toBe(lines)
    expect(await outputOf(rmCommand, 'work', made.id)).toBe(`work\n${made.id}\n`)
    expect(list(new Home(home))).toEqual([])
  })

  it('say what is wrong, and do the rest', async () => {
    await expect(fail(rmCommand, 'nobody')).rejects.toMatchObject({ code: 'NOT_FOUND' })
    await expect(fail(startCommand)).rejects.toMatchObject({ code: 'USAGE' })
    await outputOf(createCommand, '--name', 'a', '--disk', '1')
    await expect(fail(statsCommand, 'a')).rejects.toMatchObject({ code: 'WRONG_STATE' })
    await expect(fail(rmCommand, 'nobody', 'a')).rejects.toMatchObject({ code: 'NOT_FOUND' })
    expect(list(new Home(home))).toEqual([])
  })

  it('are removed by force when their record is damaged', async () => {
    await outputOf(createCommand, '--name', 'broken', '--disk', '1')
    const [id] = readdirSync(join(home, 'boxes'))
    writeFileSync(join(home, 'boxes', id!, 'box.json'), '{')
    await expect(fail(rmCommand, 'broken')).rejects.toMatchObject({ code: 'INVALID' })
    expect(await outputOf(rmCommand, '--force', 'broken')).toBe('broken\n')
    expect([...readdirSync(join(home, 'boxes')), ...readdirSync(join(home, 'names'))]).toEqual([])
  })
})
