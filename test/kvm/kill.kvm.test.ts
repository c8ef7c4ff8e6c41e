/** SIGKILL to the VMM under a guest that writes, on kvm-amd. VITRINE_KILL_ROUNDS=50 for the long way. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { killRounds } from '../virtio/guest-kill.ts'

const ROUNDS = Number(process.env.VITRINE_KILL_ROUNDS ?? 1)

describe('a VMM that is killed', () => {
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-kill-guest-'))
  afterAll(() => rmSync(folder, { recursive: true }))

  it(
    `loses no file that its guest has flushed (${ROUNDS} times)`,
    async () => {
      const onRound = ({ round, flushed }: { round: number; flushed: number }): void =>
        console.log(`round ${round}: ${flushed} files flushed, all there`)
      expect(await killRounds({ folder, rounds: ROUNDS, accel: 'kvm', onRound })).toHaveLength(ROUNDS)
    },
    60_000 + ROUNDS * 300_000,
  )
})
