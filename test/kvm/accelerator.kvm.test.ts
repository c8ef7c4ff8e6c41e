/** What only a KVM on (emulated) hardware shows. The rest of its tests are in src/kvm, and run here, too. */
import { spawnSync } from 'node:child_process'
import { describe, expect, it } from 'vitest'
import type { Diagnosis } from '../../src/accel/doctor.ts'
import { chooseAccelerator } from '../../src/accel/select.ts'
import { assetPath } from '../../src/host/assets.ts'

describe('KVM on hardware', () => {
  it('is usable, and chosen by itself', async () => {
    const { chosen, reports } = await chooseAccelerator('auto')
    expect(reports[0]).toMatchObject({ name: 'kvm', usable: true, runsMicroGuests: true })
    expect(chosen?.name).toBe('kvm')
  })

  it('is what vitrine doctor finds, and says that its ring 0 runs on the hardware', () => {
    const { stdout, stderr, status } = spawnSync(process.execPath, [assetPath('cli.js'), 'doctor', '--json'], {
      encoding: 'utf8',
    })
    expect([stderr, status]).toEqual(['', 0])
    const { chosen, accelerators } = JSON.parse(stdout) as Diagnosis
    expect(chosen).toBe('kvm')
    const kvm = accelerators.find(({ name }) => name === 'kvm')
    expect(kvm).toMatchObject({ usable: true, runsMicroGuests: true })
    expect(kvm?.findings.filter(({ ok }) => !ok)).toEqual([])
    expect(kvm?.findings.map(({ what }) => what)).toContain('micro-guest')
  })
})
