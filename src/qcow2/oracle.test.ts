/** Random operations over random geometries and chains, with qemu-img as the judge. Longer: npm run fuzz -- qcow2. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { oracleRound } from './testing/oracle-round.ts'
import { qemuMissing } from './testing/qemu.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-qcow2-oracle-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

describe.skipIf(qemuMissing)('against qemu-img and qemu-io', () => {
  for (let seed = 1; seed <= 6; seed++) {
    it(`agrees after random operations (seed ${seed})`, () => {
      const operations = oracleRound(seed, folder, 100)
      expect(operations).toBeGreaterThan(100)
    })
  }
})
