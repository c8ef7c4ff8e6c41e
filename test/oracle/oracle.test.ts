/**
 * The software CPU against the processor this runs on: fixed seeds, a few thousand instructions of each set. The long run is
 * `npm run fuzz -- cpu`.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { SETS } from './generate.ts'
import { Native, nativeUnavailable } from './native.ts'
import { runOracle } from './run.ts'
import { Soft } from './soft.ts'

const reason = nativeUnavailable()

describe.skipIf(reason)(
  `random instructions on hardware and on the software CPU${reason ? ` (skipped: ${reason})` : ''}`,
  () => {
    let native: Native
    let soft: Soft
    beforeAll(() => {
      native = new Native()
      soft = new Soft()
    })
    afterAll(() => native[Symbol.dispose]())

    it('integer instructions, compiled: 4,000 cases end in the same state', () => {
      const compiled = new Soft('compiler')
      const result = runOracle(native, compiled, { seed: 2027, count: 4000, filters: ['integer'], examples: 5 })
      expect(result.examples.join('\n\n')).toBe('')
      expect(compiled.compiledEntries).toBeGreaterThan(3000)
    }, 60_000)

    for (const set of Object.keys(SETS))
      it(`${set}: 4,000 cases end in the same state`, () => {
        const result = runOracle(native, soft, { seed: 2026, count: 4000, filters: [set], examples: 5 })
        expect(result.examples.join('\n\n')).toBe('')
        expect(result.cases).toBe(4000)
        // Most of them completed, and some faulted: the generator still makes sense.
        expect(result.vectors.get(3)).toBeGreaterThan(2000)
        if (set !== 'sequence') expect(result.vectors.get(14)).toBeGreaterThan(10)
      })
  },
)
