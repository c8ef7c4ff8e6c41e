/** A store whose users are killed at any moment. `npm run fuzz -- snapshot-kill` does it 200 times. */
import { expect, it } from 'vitest'
import { killAgainAndAgain } from './testing/kills.ts'

it('has only whole snapshots, however often its users are killed', { timeout: 120_000 }, async () => {
  const { checked, swept } = await killAgainAndAgain(10, 3, () => {})
  expect(checked).toBeGreaterThan(10)
  expect(swept).toBeGreaterThan(0)
})
