/** Our locks against those of flock(1). */
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, it } from 'vitest'
import { ProcessLock } from './process-lock.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-lock-'))
afterAll(() => rmSync(folder, { recursive: true }))
const hasFlock = spawnSync('flock', ['--version']).status === 0

it('asking for a lock that is not there makes none', () => {
  const path = join(folder, 'absent')
  expect(ProcessLock.isHeld(path)).toBe(false)
  expect(existsSync(path)).toBe(false)
  expect(ProcessLock.isHeld(join(folder, 'no', 'such', 'folder'))).toBe(false)
})

it.skipIf(!hasFlock)('sees what another process holds, and is seen', async () => {
  const path = join(folder, 'lock')
  // It becomes the command, so that there is one process that holds the lock.
  const holder = spawn('flock', ['--no-fork', path, 'sh', '-c', 'echo held; exec sleep 1000'])
  await once(holder.stdout, 'data')
  expect(ProcessLock.isHeld(path)).toBe(true)
  expect(ProcessLock.tryAcquire(path)).toBeUndefined()
  const taken = ProcessLock.acquire(path)
  holder.kill()
  using lock = await taken
  expect(lock).toBeDefined()
  const other = spawnSync('flock', ['--nonblock', path, 'true'])
  expect(other.status).toBe(1)
  lock!.release()
  expect(spawnSync('flock', ['--nonblock', path, 'true']).status).toBe(0)
  expect(ProcessLock.isHeld(path)).toBe(false)
})
