/** The examples do what they say. The one that boots Linux needs an accelerator that can: see test/guest. */
import { spawnSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { chooseAccelerator, loadAccelerator } from '../src/accel/select.ts'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
const microGuests = (await (await loadAccelerator('kvm')).probe()).runsMicroGuests
const linux = (await chooseAccelerator()).chosen !== undefined

const run = (name: string, ...args: string[]) =>
  spawnSync(`${ROOT}node_modules/.bin/tsx`, [`${ROOT}examples/${name}`, ...args], {
    encoding: 'utf8',
    timeout: 170_000,
  })

describe('examples', () => {
  it('are short', () => {
    for (const name of readdirSync(`${ROOT}examples`).filter(file => /^[a-z-]+\.ts$/.test(file))) {
      expect(readFileSync(`${ROOT}examples/${name}`, 'utf8').split('\n').length, name).toBeLessThan(50)
    }
  })

  it.skipIf(!microGuests)('hello says hi', () => {
    const { stdout, status } = run('hello.ts')
    expect([stdout, status]).toEqual(['Hi\nended by power-off\n', 0])
  })

  it.skipIf(!linux)(
    'machine boots Linux, types at it, and sees it power off',
    () => {
      const { stdout, status } = run('machine.ts')
      expect(stdout).toMatch(/echo: hello, guest/)
      expect(stdout).toMatch(/power: off/)
      expect(status).toBe(0)
    },
    180_000,
  )

  it.skipIf(!linux)(
    'box runs commands and keeps its files',
    () => {
      const { stdout, status } = run('box.ts')
      expect(stdout).toBe(
        'hello from Linux (status 0)\ntwo\nthree\none\nstopped; starting again\n3 lines are still there\n',
      )
      expect(status).toBe(0)
    },
    180_000,
  )
})
