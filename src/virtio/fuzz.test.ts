import { describe, expect, it } from 'vitest'
import { fuzzDevice } from './testing/fuzz.ts'
import { SUBJECTS } from './testing/subjects.ts'

/** Seeds a device gets here; `npm run fuzz -- virtio` goes on for as long as it is told. */
const SEEDS = 8
const STEPS = 300

describe.each(SUBJECTS.map(subject => [subject.name, subject] as const))('fuzzing %s', (_, subject) => {
  it(`survives ${SEEDS} sequences of ${STEPS} steps, and they reach it`, () => {
    let faults = 0
    for (let seed = 1; seed <= SEEDS; seed++) faults += fuzzDevice(subject, seed, STEPS).faults
    // A fuzzer that never gets a device to complain is not trying.
    expect(faults).toBeGreaterThan(SEEDS)
  })
})
