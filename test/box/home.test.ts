/** Several processes in one home: whatever they do to it at the same time, and however they end, it is whole afterwards. */
import { spawn, spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { Box, Runtime } from '../../src/index.ts'
import { has } from '../image/oracles.ts'

/** `VITRINE_HOME_SECONDS=60` for the whole minute. */
const SECONDS = Number(process.env.VITRINE_HOME_SECONDS ?? 8)
const USER = fileURLToPath(new URL('home-user.ts', import.meta.url))

const home = mkdtempSync(join(tmpdir(), 'vitrine-home-'))
const runtime = new Runtime({ home })
afterAll(() => rmSync(home, { recursive: true }))

interface Ended {
  readonly counts: Record<string, number>
  readonly signal: string | null
  readonly complaint: string
}

function user(seed: number, seconds: number, killAfterMs?: number): Promise<Ended> {
  return new Promise(resolve => {
    const child = spawn(process.execPath, ['--import', 'tsx', USER, home, String(seed), String(seconds)])
    let [said, complaint] = ['', '']
    let timer: NodeJS.Timeout | undefined
    child.stdout.on('data', (chunk: Buffer) => {
      said += chunk.toString()
      if (killAfterMs !== undefined) timer ??= setTimeout(() => child.kill('SIGKILL'), killAfterMs)
    })
    child.stderr.on('data', (chunk: Buffer) => {
      complaint += chunk.toString()
    })
    child.on('close', (_status, signal) => {
      clearTimeout(timer)
      resolve({ counts: said.trim() ? (JSON.parse(said) as Record<string, number>) : {}, signal, complaint })
    })
  })
}

/** Everything that must hold in a home that nobody is changing. */
async function expectConsistent(): Promise<void> {
  const boxes = await Box.list(runtime)
  expect(readdirSync(join(home, 'boxes')).sort()).toEqual(boxes.map(box => box.id).sort())
  const names = readdirSync(join(home, 'names')).map(name => [name, readFileSync(join(home, 'names', name), 'utf8')])
  expect(names.sort()).toEqual(boxes.map(box => [box.name, box.id]).sort())
  for (const box of boxes) {
    const { baseDisk } = JSON.parse(readFileSync(box.folder.record, 'utf8')) as { baseDisk: string }
    expect(existsSync(baseDisk)).toBe(true)
    const check = spawnSync('qemu-img', ['check', '-q', box.folder.disk], { encoding: 'utf8' })
    expect([check.status, check.stderr]).toEqual([0, ''])
  }
}

describe.skipIf(!has('qemu-img') || !has('busybox'))('two processes in one home', () => {
  beforeAll(async () => {
    await (await Box.create({ image: 'base', diskGib: 1 }, runtime)).remove()
  })

  it(`create and remove boxes and images for ${SECONDS} s`, { timeout: SECONDS * 1000 + 60_000 }, async () => {
    const ended = await Promise.all([user(1, SECONDS), user(2, SECONDS)])
    for (const { complaint, counts } of ended) {
      expect(complaint).toBe('')
      expect(counts.create).toBeGreaterThan(5)
    }
    await expectConsistent()
  })

  it('are killed in the middle of it', { timeout: 120_000 }, async () => {
    const other = user(3, 6)
    for (let round = 0; round < 3; round++) {
      const { signal, complaint } = await user(10 + round, 60, 300 + round * 170)
      expect([signal, complaint]).toEqual(['SIGKILL', ''])
    }
    expect((await other).complaint).toBe('')
    await sleep(10)
    // Making a box clears away what the dead left.
    await (await Box.create({ image: 'base', diskGib: 1 }, runtime)).remove()
    await expectConsistent()
    for (const box of await Box.list(runtime)) await box.remove({ force: true })
    await expectConsistent()
  })
})
