/** What only a KVM on (emulated) hardware shows. The rest of its tests are in src/kvm, and run here, too. */
import { describe, expect, it } from 'vitest'
import { chooseAccelerator } from '../../src/accel/select.ts'

describe('KVM on hardware', () => {
  it('is usable, and chosen by itself', async () => {
    const { chosen, reports } = await chooseAccelerator('auto')
    expect(reports[0]).toMatchObject({ name: 'kvm', usable: true, runsMicroGuests: true })
    expect(chosen?.name).toBe('kvm')
  })
})
