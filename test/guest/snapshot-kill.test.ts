/** Boxes whose commands and VMM processes are killed amid snapshots. `VITRINE_SNAPSHOT_KILLS=200` for the long form; it takes an hour or so. */
import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, it } from 'vitest'
import { Runtime } from '../../src/box/runtime.ts'
import { kernelsFolder } from '../../src/image/kernel/cache.ts'
import { killLiveBoxes } from '../snapshot/live-kills.ts'

const KILLS = Number(process.env.VITRINE_SNAPSHOT_KILLS || 5)
const SEED = Number(process.env.VITRINE_SEED || 1)
const ROUND_MS = 90_000
const scratch = mkdtempSync(join(tmpdir(), 'vitrine-kills-'))
afterAll(() => rmSync(scratch, { recursive: true }))

it(`${KILLS} kills leave whole snapshots and boxes that start`, { timeout: ROUND_MS * (KILLS + 2) }, async () => {
  const home = join(scratch, 'home')
  mkdirSync(home)
  symlinkSync(kernelsFolder(), join(home, 'kernels'))
  const runtime = new Runtime({ home, defaults: { accel: 'soft' } })
  const result = await killLiveBoxes(runtime, scratch, KILLS, SEED, text => {
    if (KILLS > 5) console.log(text)
  })
  expect(result).toMatchObject({ kills: KILLS })
  expect(result.checked).toBeGreaterThanOrEqual(KILLS)
  expect(result.started).toBeGreaterThanOrEqual(KILLS)
})
