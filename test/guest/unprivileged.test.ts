/** The package as a user who may do nothing: no root, no /dev/kvm, a home of their own. Run by root, who becomes that user. */
import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, cpSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { findKernel } from '../../src/image/kernel/find.ts'

const NOBODY = 65_534
const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const scratch = mkdtempSync(join(tmpdir(), 'vitrine-nobody-'))
const home = join(scratch, 'home')

describe.skipIf(process.getuid?.() !== 0)('a user without any rights (needs root, to become one)', () => {
  beforeAll(async () => {
    chmodSync(scratch, 0o755)
    // Theirs to read, wherever this checkout and its user's home are.
    for (const part of ['dist', 'node_modules/koffi', 'node_modules/@koromix', 'package.json']) {
      cpSync(join(ROOT, part), join(scratch, 'package', part), { recursive: true })
    }
    const kernel = dirname((await findKernel({ tuned: false })).path)
    cpSync(kernel, join(home, 'kernels', basename(kernel)), { recursive: true })
    execFileSync('chown', ['-R', `${NOBODY}:${NOBODY}`, home])
  })
  afterAll(() => rmSync(scratch, { recursive: true, force: true }))

  function vitrine(...args: string[]): { stdout: string; stderr: string; status: number | null } {
    return spawnSync(process.execPath, [join(scratch, 'package/dist/cli.cjs'), ...args], {
      uid: NOBODY,
      gid: NOBODY,
      cwd: scratch,
      env: { PATH: process.env.PATH, HOME: home, VITRINE_HOME: home },
      encoding: 'utf8',
      timeout: 300_000,
    })
  }

  it('runs a command as root of a box, keeps its disk, saves it and removes it', () => {
    const run = vitrine(
      'run',
      '--name',
      'mine',
      '--',
      'sh',
      '-c',
      'id -u; echo kept > /root/note; mount -t tmpfs none /mnt',
    )
    expect(run).toMatchObject({ stdout: '0\n', status: 0 })
    expect(vitrine('start', 'mine').status).toBe(0)
    expect(vitrine('exec', 'mine', 'cat', '/root/note')).toMatchObject({ stdout: 'kept\n', status: 0 })
    expect(vitrine('snapshot', 'create', 'mine', 'one')).toMatchObject({ stderr: '', status: 0 })
    expect(vitrine('rollback', 'mine', 'one').status).toBe(0)
    expect(vitrine('exec', 'mine', 'cat', '/root/note')).toMatchObject({ stdout: 'kept\n', status: 0 })
    expect(vitrine('rm', '--force', 'mine').status).toBe(0)
    expect(JSON.parse(vitrine('ps', '--all', '--json').stdout)).toEqual([])
  })
})
