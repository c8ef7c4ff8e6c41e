import { describe, expect, it } from 'vitest'
import { acceleratorNames, chooseAccelerator, loadAccelerator, requireAccelerator } from './select.ts'

describe('the choice of an accelerator', () => {
  it('knows KVM, and loads it by name', async () => {
    expect(acceleratorNames()).toContain('kvm')
    expect((await loadAccelerator('kvm')).name).toBe('kvm')
  })

  it('takes the first that its probe calls usable', async () => {
    const { chosen, reports } = await chooseAccelerator('auto')
    expect(reports.filter(report => report.usable).map(report => report.name)).toEqual(chosen ? [chosen.name] : [])
  })

  it('names those that exist when asked for another', async () => {
    await expect(chooseAccelerator('abacus')).rejects.toMatchObject({ name: 'AcceleratorError', code: 'UNKNOWN' })
    await expect(requireAccelerator('abacus')).rejects.toThrow(/choose one of kvm/)
  })
})
