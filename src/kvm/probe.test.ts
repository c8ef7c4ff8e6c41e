import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { GuestMemory } from '../memory/guest-memory.ts'
import { probeKvm } from './probe.ts'
import { kvmUnusable } from './testing.ts'
import { KvmVirtualMachine } from './vm.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-probe-'))
afterAll(() => rmSync(folder, { recursive: true }))

const create = (device: string) => KvmVirtualMachine.create({ memory: GuestMemory.create(2), cpus: 1 }, device)
const isRoot = process.geteuid?.() === 0

describe('probing KVM', () => {
  it('says when it is absent, and what to do', () => {
    const device = join(folder, 'none')
    const report = probeKvm(device)
    expect(report).toMatchObject({ name: 'kvm', usable: false, runsMicroGuests: false })
    expect(report.findings).toHaveLength(1)
    expect(report.findings[0]).toMatchObject({ what: 'device', ok: false, remedy: expect.stringMatching(/firmware/) })
    expect(() => create(device)).toThrow(expect.objectContaining({ code: 'ABSENT', errno: 'ENOENT' }))
  })

  it.skipIf(!isRoot)('says when it is forbidden, and what to do (needs root, to be somebody else)', () => {
    const device = join(folder, 'forbidden')
    writeFileSync(device, '')
    chmodSync(device, 0)
    process.seteuid?.(65534)
    try {
      const report = probeKvm(device)
      expect(report).toMatchObject({ usable: false, runsMicroGuests: false })
      expect(report.findings[0]).toMatchObject({ what: 'device', ok: false, remedy: expect.stringMatching(/usermod/) })
      expect(() => create(device)).toThrow(expect.objectContaining({ code: 'FORBIDDEN', errno: 'EACCES' }))
    } finally {
      process.seteuid?.(0)
    }
  })

  it('is not deceived by another device', () => {
    const report = probeKvm('/dev/null')
    expect(report.usable).toBe(false)
    expect(report.findings.at(-1)).toMatchObject({ what: 'API version', ok: false })
  })

  it.skipIf(kvmUnusable())('finds out what this /dev/kvm is good for (needs /dev/kvm)', () => {
    const report = probeKvm()
    expect(report.runsMicroGuests).toBe(true)
    expect(report.findings.map(finding => finding.what)).toEqual([
      'device',
      'API version',
      'capabilities',
      'micro-guest',
    ])
    for (const finding of report.findings) expect(finding.ok || finding.remedy !== undefined).toBe(true)
    expect(report.usable).toBe(report.findings.every(finding => finding.ok))
  })
})
