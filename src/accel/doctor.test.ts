import { describe, expect, it } from 'vitest'
import type { AcceleratorReport } from './contract.ts'
import { decide, diagnose } from './doctor.ts'

const report = (name: 'kvm' | 'soft', usable: boolean, runsMicroGuests = usable): AcceleratorReport => ({
  name,
  usable,
  runsMicroGuests,
  summary: `${name} summary`,
  findings: [],
})

describe('the doctor', () => {
  it('explains the choice', () => {
    expect(decide([report('kvm', true), report('soft', true)], undefined)).toMatchObject({ chosen: 'kvm' })
    const fallback = decide([report('kvm', false, true), report('soft', true)], '')
    expect(fallback).toEqual({ chosen: 'soft', reason: 'kvm: kvm summary' })
    expect(decide([report('kvm', false, true)], 'kvm')).toMatchObject({ chosen: 'kvm' })
    expect(decide([report('kvm', false)], 'kvm')).toMatchObject({
      chosen: null,
      reason: expect.stringMatching(/kvm summary/),
    })
    expect(decide([report('kvm', true)], 'abacus')).toMatchObject({
      chosen: null,
      reason: expect.stringMatching(/does not exist/),
    })
    expect(decide([report('kvm', false)], undefined).chosen).toBeNull()
  })

  it('looks at every accelerator of this host', async () => {
    const { host, accelerators } = await diagnose()
    expect(host).toMatchObject({ platform: process.platform, node: process.version })
    expect(host.cpus).toBeGreaterThan(0)
    expect(accelerators.map(({ name }) => name)).toContain('kvm')
    for (const { findings, summary } of accelerators) {
      expect(summary).not.toBe('')
      for (const finding of findings) if (!finding.ok) expect(finding.remedy).toBeTruthy()
    }
  })
})
