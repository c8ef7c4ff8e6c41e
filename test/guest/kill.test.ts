/** SIGKILL to the VMM under a guest that writes, on the software CPU. VITRINE_KILL_ROUNDS=50 for the long way. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { killRounds } from '../virtio/guest-kill.ts'

const ROUNDS = Number(process.env.VITRINE_KILL_ROUNDS ?? 2)

describe('a VMM that is killed', () => {
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-kill-guest-'))
  afterAll(() => rmSync(folder, { recursive: true }))

  it(
    `loses no file that its guest has flushed (${ROUNDS} times)`,
    async () => {
      const onRound = ({ round, flushed }: { round: number; flushed: number }): void => {
        if (ROUNDS > 5) console.log(`round ${round}: ${flushed} files flushed, all there`)
      }
      const results = await killRounds({ folder, rounds: ROUNDS, accel: 'soft', onRound })
      expect(results).toHaveLength(ROUNDS)
    },
    ROUNDS * 60_000,
  )
})
