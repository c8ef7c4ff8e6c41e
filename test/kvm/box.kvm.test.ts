/** The first five minutes on a host with hardware: `vitrine run -- uname -a` finds KVM by itself. */
import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, expect, it } from 'vitest'
import { requireAccelerator } from '../../src/accel/select.ts'
import { kernelsFolder } from '../../src/image/kernel/cache.ts'

const CLI = fileURLToPath(new URL('../../dist/cli.js', import.meta.url))
const LIMIT_MS = 400_000
const scratch = mkdtempSync(join(tmpdir(), 'vitrine-kvm-box-'))
afterAll(() => rmSync(scratch, { recursive: true }))

it('runs a command in a box on KVM, with nothing but a kernel set up', { timeout: LIMIT_MS }, async () => {
  expect((await requireAccelerator('auto')).name).toBe('kvm')
  // A new home: the image is made and the box created in here. There is no network, so the kernel is the one from outside.
  const home = join(scratch, 'home')
  mkdirSync(home)
  symlinkSync(kernelsFolder(), join(home, 'kernels'))
  const run = spawnSync(process.execPath, [CLI, 'run', '--cold', '-m', '256M', '--', 'uname', '-a'], {
    encoding: 'utf8',
    env: { ...process.env, VITRINE_HOME: home },
    timeout: LIMIT_MS,
  })
  expect([run.stderr, run.status]).toEqual(['', 0])
  expect(run.stdout).toMatch(/^Linux [0-9a-f]{12} .* x86_64 GNU\/Linux\n$/)
})
