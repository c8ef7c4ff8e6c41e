/** Boxes that are frozen, put aside on disk and woken up, by their users and by themselves; and what is taken of them meanwhile. */
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { kernelsFolder } from '../../src/image/kernel/cache.ts'
import { findKernel } from '../../src/image/kernel/find.ts'
import { Box, type BoxOptions, Runtime } from '../../src/index.ts'

const LIMIT_MS = 180_000
const scratch = mkdtempSync(join(tmpdir(), 'vitrine-pause-'))
const home = join(scratch, 'home')
const runtime = new Runtime({ home, defaults: { accel: 'soft', memoryMib: 128, diskGib: 1, network: 'none' } })
const made: Box[] = []

beforeAll(async () => {
  await findKernel()
  mkdirSync(home)
  symlinkSync(kernelsFolder(), join(home, 'kernels'))
})
afterAll(async () => {
  for (const box of made) await box.remove({ force: true }).catch(() => {})
  rmSync(scratch, { recursive: true, force: true })
}, LIMIT_MS)

const own = <T extends Box | Box[]>(boxes: T): T => {
  made.push(...[boxes].flat())
  return boxes
}
const newBox = async (options: BoxOptions = {}): Promise<Box> => own(await Box.create(options, runtime))

async function until(what: string, holds: () => boolean): Promise<void> {
  for (const end = Date.now() + LIMIT_MS / 2; !holds(); await sleep(20))
    if (Date.now() > end) throw new Error(`never: ${what}`)
}

const out = async (box: Box, script: string): Promise<string> => {
  const { exitCode, stdout, stderr } = await box.sh(script)
  expect(stderr).toBe('')
  expect(exitCode).toBe(0)
  return stdout.trim()
}

/** A process that counts, ten times a second, in memory. */
async function count(box: Box): Promise<void> {
  await out(
    box,
    '(setsid sh -c "n=0; while :; do n=\\$((n+1)); echo \\$n > /dev/shm/n.new; mv /dev/shm/n.new /dev/shm/n; usleep 100000; done" </dev/null >/dev/null 2>&1 &); until [ -e /dev/shm/n ]; do usleep 20000; done',
  )
}
const counted = async (box: Box): Promise<number> => Number(await out(box, 'cat /dev/shm/n'))

/** The guest's clock, against this one. */
async function expectClock(box: Box): Promise<void> {
  const before = Date.now() / 1000
  const seconds = Number(await out(box, 'date +%s'))
  expect(seconds).toBeGreaterThan(before - 3)
  expect(seconds).toBeLessThan(Date.now() / 1000 + 3)
}

const manifests = (kind?: string): string[] =>
  readdirSync(join(home, 'snapshots', 'manifests')).filter(name => kind === undefined || name.startsWith(kind))

describe('a box that its user pauses', () => {
  it('stands still, and goes on when it is resumed or used, with the right time', { timeout: LIMIT_MS }, async () => {
    const box = await newBox()
    await count(box)
    await box.pause()
    expect(box.state).toBe('paused')
    await box.pause()
    expect((await box.metrics()).guest).toBeNull()
    await sleep(5000)
    await box.resume()
    expect(box.state).toBe('running')
    await expectClock(box)
    const then = await counted(box)
    await box.pause()
    await sleep(5000)
    // Used through the same handle, and through another.
    expect(await counted(box)).toBeLessThan(then + 45)
    await box.pause()
    const other = await Box.get(box.id, runtime)
    // It wakes up faster than the counter counts.
    await vi.waitFor(async () => expect(await counted(other)).toBeGreaterThan(then), LIMIT_MS / 2)
    expect(box.state).toBe('running')
    other.close()
    await box.resume()
    await box.remove({ force: true })
  })

  it('is forked and saved while it stands still, and when its memory is on disk', { timeout: LIMIT_MS }, async () => {
    const box = await newBox()
    await count(box)
    for (const release of [false, true]) {
      const before = await counted(box)
      await box.pause({ release })
      expect(box.state).toBe('paused')
      const [fork] = own(await box.fork())
      expect(await counted(fork!)).toBeGreaterThanOrEqual(before)
      await expectClock(fork!)
      expect(await out(fork!, 'hostname')).toBe(fork!.name)
      // Forking does not wake it.
      expect(box.state).toBe('paused')
      const { id, memory } = await box.snapshot()
      expect(memory).toBe(true)
      const restored = own(await Box.restore(id, {}, runtime))
      expect(await counted(restored)).toBeGreaterThanOrEqual(before)
      await expectClock(restored)
      for (const each of [fork!, restored]) await each.remove({ force: true })
      expect(await counted(box)).toBeGreaterThanOrEqual(before)
      await expectClock(box)
    }
    await box.remove({ force: true })
  })

  it('answers for itself when its memory is on disk', { timeout: LIMIT_MS }, async () => {
    const box = await newBox()
    await count(box)
    await box.pause({ release: true })
    expect((await box.metrics()).guest?.processes).toBeGreaterThan(0)
    await box.pause({ release: true })
    expect(await box.ports()).toEqual([])
    expect(await counted(box)).toBeGreaterThan(0)
    await box.remove({ force: true })
    expect(manifests(box.id)).toEqual([])
  })

  it('loses nothing when it is stopped, frozen or on disk', { timeout: LIMIT_MS }, async () => {
    const box = await newBox()
    for (const release of [false, true]) {
      await out(box, `echo kept-${release} > /root/note`)
      await box.pause({ release })
      await box.stop()
      expect(box.state).toBe('stopped')
      expect(box.lastExit?.reason).toBe('stopped')
      expect(await out(box, 'cat /root/note; cat /proc/uptime')).toMatch(`kept-${release}`)
    }
    await box.remove({ force: true })
  })
})

describe('a box that nobody uses', () => {
  it('is put on disk, stays there, and goes on when it is used', { timeout: LIMIT_MS }, async () => {
    // It would be gone if it were taken for stopped.
    const box = await newBox({ idleMs: 1000, onIdle: 'pause', autoRemove: true })
    await count(box)
    for (let round = 0; round < 2; round++) {
      const before = await counted(box)
      box.close()
      await until('it is released', () => box.lastExit?.reason === 'paused')
      expect(box.state).toBe('paused')
      await sleep(1500)
      expect(box.state).toBe('paused')
      expect(await counted(box)).toBeGreaterThanOrEqual(before)
      await expectClock(box)
    }
    await box.stop()
    expect(existsSync(box.folder.path)).toBe(false)
  })

  it('keeps its memory if its user paused it', { timeout: LIMIT_MS }, async () => {
    const box = await newBox({ idleMs: 1000 })
    await count(box)
    const before = await counted(box)
    await box.pause()
    box.close()
    await until('it is released', () => !existsSync(box.folder.controlSocket))
    expect(box.state).toBe('paused')
    expect(await counted(box)).toBeGreaterThanOrEqual(before)
    await box.remove({ force: true })
  })
})

describe('a box that is to be removed when it stops', () => {
  it('is there after a rollback, and gone with its snapshots in the end', { timeout: LIMIT_MS }, async () => {
    const box = await newBox({ autoRemove: true })
    await count(box)
    await box.snapshot('one')
    await out(box, 'echo later > /root/later')
    await box.rollback('one')
    expect(await out(box, 'ls /root')).not.toContain('later')
    expect(await counted(box)).toBeGreaterThan(0)
    await expectClock(box)
    // The guest ends by itself: nobody is there to clean up after it.
    await box.sh('poweroff -f').catch(() => {})
    await until('it is gone', () => !existsSync(box.folder.path) && manifests(box.id).length === 0)
  })
})

it('a running box has a snapshot of its disk alone', { timeout: LIMIT_MS }, async () => {
  const box = await newBox()
  await count(box)
  await out(box, 'echo written > /root/note')
  const { id, memory, memoryBytes } = await box.snapshot('disk', { diskOnly: true })
  expect([memory, memoryBytes]).toEqual([false, 0])
  const before = await counted(box)
  const restored = own(await Box.restore(id, {}, runtime))
  expect(restored.state).toBe('stopped')
  expect(await out(restored, 'cat /root/note; ls /dev/shm')).toBe('written')
  expect(await counted(box)).toBeGreaterThan(before)
  for (const each of [restored, box]) await each.remove({ force: true })
})
