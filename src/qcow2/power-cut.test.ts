/** Power cuts at every point of a write log. Longer: npm run fuzz -- qcow2. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { playPowerCuts } from './testing/power-cut.ts'
import { qemuCheck, qemuMissing } from './testing/qemu.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-power-cut-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

function secondOpinion(image: Uint8Array): void {
  const path = join(folder, 'cut.qcow2')
  writeFileSync(path, image)
  const report = qemuCheck(path)
  expect(report.corruptions ?? 0).toBe(0)
  expect(report['check-errors']).toBe(0)
}

describe('power cuts', () => {
  for (let seed = 1; seed <= 5; seed++) {
    it(`lose nothing that was flushed and corrupt nothing (seed ${seed})`, () => {
      const options = qemuMissing ? {} : { sampleEvery: 97, onSample: secondOpinion }
      const { cuts } = playPowerCuts(seed, { steps: 25, ...options })
      expect(cuts).toBeGreaterThan(20)
    })
  }
})
