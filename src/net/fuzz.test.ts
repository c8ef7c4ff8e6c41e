/** Frames that are damaged in every way, by a seed: the stack neither throws, nor opens a flow it should not, nor grows. */
import { describe, expect, it } from 'vitest'
import { fuzzNetwork } from './testing/fuzz.ts'

describe('the network under damaged frames', () => {
  it.each([1, 2, 3, 4])('survives seed %i', seed => {
    const { frames, counters } = fuzzNetwork(seed, 3000)
    expect(frames).toBe(3000)
    expect(counters.malformed).toBeGreaterThan(0)
    expect(counters.badChecksum).toBeGreaterThan(0)
  })
})
