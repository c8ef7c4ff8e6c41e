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

  it('single-step walks through a guest and its page tables', () => {
    const { stdout, status } = run('single-step.ts')
    const lines = stdout.split('\n')
    expect(lines.filter(line => /^0x10000\w: /.test(line)).map(line => line.split('  ')[1])).toEqual([
      ...['rax = 0x200000', 'rbx = 0x1111', '', 'rbx = 0x2222', ''],
    ])
    expect(lines.filter(line => /^level \d/.test(line))).toHaveLength(3)
    expect(lines.at(-2)).toBe('ended by power-off')
    expect(status).toBe(0)
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

  it.skipIf(!linux)(
    'sandbox keeps code within its limits',
    () => {
      const { stdout, status } = run('sandbox.ts')
      expect(
        stdout
          .trim()
          .split('\n')
          .map(line => line.split('  ->  ')[1]),
      ).toEqual([
        "said '6' (status 0)",
        "said '1000 status 1' (status 0)",
        "said '' (status 7)",
        'was ended by SIGSEGV',
        'took too long',
        'wrote too much',
      ])
      expect(status).toBe(0)
    },
    180_000,
  )

  it.skipIf(!linux)(
    'snapshot puts a box back',
    () => {
      const { stdout, status } = run('snapshot.ts')
      expect(stdout).toBe(
        'counted to 1\nsaved\ncounted to 2 then 3 and the file is gone\nput back: counted to 2 and the file says precious\n\n',
      )
      expect(status).toBe(0)
    },
    180_000,
  )

  it.skipIf(!linux)(
    'fork gives each branch its own answer',
    () => {
      const { stdout, status } = run('fork.ts')
      expect(stdout).toBe(
        'branch 1: 500500\nbranch 2: 1001000\nbranch 3: 1501500\nthe first box still has 1000 /tmp/numbers\n',
      )
      expect(status).toBe(0)
    },
    180_000,
  )
})
