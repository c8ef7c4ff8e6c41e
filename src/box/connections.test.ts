/** Handles that meet a box while another process starts it. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterEach, expect, it } from 'vitest'
import { ProcessLock } from '../host/process-lock.ts'
import { BoxConnections } from './connections.ts'
import { ControlServer } from './control.ts'
import { BoxFolder } from './home.ts'
import { removePending, writePending } from './pending.ts'

const scratch = mkdtempSync(join(tmpdir(), 'vitrine-connections-'))
afterEach(() => rmSync(scratch, { recursive: true }))

it('a VMM that another process starts from a snapshot is used, and not waited for until it ends', async () => {
  const folder = new BoxFolder(scratch, 'someone')
  writePending(folder, { snapshot: { owner: 'someone', id: 'before' }, why: 'start' })
  // It lives, and does not listen yet.
  using _vmm = ProcessLock.tryAcquire(folder.vmmLock)!
  const started = new Error('it was asked to start')
  const connections = new BoxConnections(folder, {
    onLog: () => {},
    onEnd: () => {},
    start: () => Promise.reject(started),
  })
  let isOver = false
  const agent = connections
    .agent(async () => {})
    .finally(() => {
      isOver = true
    })
  const failure = expect(agent).rejects.toBe(started)
  await sleep(50)
  expect(isOver).toBe(false)
  removePending(folder)
  const control = await ControlServer.listen(folder.controlSocket, {
    status: () => ({ isReady: true, isEnding: false }),
  })
  try {
    await failure
  } finally {
    connections.close()
    await control.close()
  }
})
