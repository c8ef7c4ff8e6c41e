/** Limits of a box that is only a list of what was done to it. */
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { BoxLimits, type LimitedBox } from './limits.ts'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

interface Told extends LimitedBox {
  readonly done: string[]
  used: boolean
  frozen: boolean
  fails: boolean
}

function box(config: Partial<LimitedBox['config']>, releaseMs = 5000): Told {
  const told: Told = {
    ...{ done: [], used: false, frozen: false, fails: false },
    config: { timeoutMs: 0, idleMs: 2000, command: null, ...config },
    isUsed: async () => told.used,
    isFrozen: () => told.frozen,
    release: async () => {
      told.done.push('release')
      await new Promise(resolve => setTimeout(resolve, releaseMs))
      if (told.fails) throw new Error('the disk is full')
      told.done.push('released')
    },
    stop: async ({ reason }) => void told.done.push(reason),
  }
  new BoxLimits(told).watch()
  return told
}

describe('a box that nobody uses', () => {
  it('is stopped, or paused once however long its memory takes to save', async () => {
    const [stopped, paused] = [box({}), box({ onIdle: 'pause' })]
    await vi.advanceTimersByTimeAsync(2900)
    expect([stopped.done, paused.done]).toEqual([['idle'], ['release']])
    await vi.advanceTimersByTimeAsync(4000)
    expect(paused.done).toEqual(['release'])
  })

  it('keeps its memory where its user paused it', async () => {
    const frozen = box({})
    frozen.frozen = true
    await vi.advanceTimersByTimeAsync(4000)
    expect(frozen.done).toEqual(['release'])
  })

  it('goes on when it cannot be saved, and is tried again after as long', async () => {
    vi.spyOn(process.stderr, 'write').mockReturnValue(true)
    const full = box({ onIdle: 'pause' }, 100)
    full.fails = true
    await vi.advanceTimersByTimeAsync(3500)
    expect(full.done).toEqual(['release'])
    full.fails = false
    await vi.advanceTimersByTimeAsync(1700)
    expect(full.done).toEqual(['release', 'release', 'released'])
  })

  it('is left alone while it has a command, or is used', async () => {
    const [busy, used] = [box({ command: ['true'] }), box({})]
    used.used = true
    await vi.advanceTimersByTimeAsync(10_000)
    used.used = false
    await vi.advanceTimersByTimeAsync(1500)
    expect([busy.done, used.done]).toEqual([[], []])
  })
})

it('a box is stopped when its time is over', async () => {
  const timed = box({ timeoutMs: 3000, idleMs: 0 })
  await vi.advanceTimersByTimeAsync(3000)
  expect(timed.done).toEqual(['timeout'])
})
