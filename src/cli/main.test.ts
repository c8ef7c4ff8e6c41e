/** The command line as a whole, as a process: what a newcomer meets first. */
import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { assetPath } from '../host/assets.ts'
import { ImageError } from '../image/errors.ts'
import { commandHelp } from './command.ts'
import { COMMANDS } from './commands.ts'
import { withHint } from './run.ts'

const home = mkdtempSync(join(tmpdir(), 'vitrine-main-'))
afterAll(() => rmSync(home, { recursive: true }))

function vitrine(...args: string[]): { status: number | null; stdout: string; stderr: string } {
  const { status, stdout, stderr } = spawnSync(process.execPath, [assetPath('cli.js'), ...args], {
    encoding: 'utf8',
    env: { ...process.env, VITRINE_HOME: home },
  })
  return { status, stdout, stderr }
}

describe('vitrine', () => {
  it('without arguments says how it is used, as an error', () => {
    const { status, stdout, stderr } = vitrine()
    expect([status, stdout]).toEqual([2, ''])
    expect(stderr).toMatch(/Usage: vitrine COMMAND/)
    expect(vitrine('help')).toEqual({ status: 0, stdout: stderr, stderr: '' })
    for (const name of Object.keys(COMMANDS)) expect(stderr).toMatch(new RegExp(`^  ${name} +\\w`, 'm'))
  })

  it('explains a command, however it is asked', () => {
    const asked = vitrine('help', 'run')
    expect(asked).toMatchObject({ status: 0, stderr: '' })
    expect(asked.stdout).toMatch(/^Run a command in a new box\.\n\nUsage: vitrine run /)
    expect(vitrine('run', '-e', 'A=b', '--help')).toEqual(asked)
    expect(vitrine('run', '-h')).toEqual(asked)
  })

  it('guesses what was meant', () => {
    expect(vitrine('rnu', '--', 'ls')).toEqual({
      status: 2,
      stdout: '',
      stderr: "vitrine: there is no command 'rnu': did you mean 'run'?\n",
    })
    expect(vitrine('run', '--memroy', '1G').stderr).toBe(
      "vitrine: there is no option --memroy: did you mean --memory?\n'vitrine run --help' shows how it is used.\n",
    )
    expect(vitrine('quux').stderr).toMatch(/'vitrine help' lists/)
  })

  it('tells failure from misuse, without a stack', () => {
    expect(vitrine('exec', 'nobody', 'ls')).toEqual({
      status: 1,
      stdout: '',
      stderr: "vitrine: there is no box 'nobody': 'vitrine ps --all' lists those there are\n",
    })
    expect(vitrine('exec', 'nobody')).toMatchObject({ status: 2 })
    expect(vitrine('run', './nowhere')).toMatchObject({ status: 1, stderr: expect.stringMatching(/^vitrine: .*\n$/) })
  })

  it('takes a name that is no image for what it may be: a command', () => {
    const unknown = new ImageError('NETWORK', 'the registry cannot be reached')
    expect(withHint(unknown, 'ls')).toMatchObject({
      code: 'NETWORK',
      message: expect.stringMatching(/vitrine run -- ls$/),
    })
    for (const image of ['debian:12', 'a/b', undefined]) expect(withHint(unknown, image)).toBe(unknown)
    const other = new ImageError('NO_SPACE', 'full')
    expect(withHint(other, 'ls')).toBe(other)
  })
})

describe('every command', () => {
  it.each(Object.keys(COMMANDS))('%s has help with a usage, an example, and sentences', async name => {
    const command = await COMMANDS[name]!.load()
    expect(command.name).toBe(name)
    expect(command.examples.length).toBeGreaterThan(0)
    expect(commandHelp(command)).toContain(`Usage: vitrine ${name}`)
    expect(command.summary).toMatch(/^[A-Z][\s\S]*\.$/)
    for (const [option, { help }] of Object.entries(command.options))
      expect([option, help]).toEqual([option, expect.stringMatching(/^.*[.)]$/)])
  })
})
