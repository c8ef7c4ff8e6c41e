import { describe, expect, it } from 'vitest'
import { type CpuidEntry, decodeCpuid, encodeCpuid, normaliseCpuid } from './cpuid.ts'
import { KvmSystem } from './system.ts'
import { kvmUnusable } from './testing.ts'

const INTEL = { ebx: 0x756e6547, ecx: 0x6c65746e, edx: 0x49656e69 }
const AMD = { ebx: 0x68747541, ecx: 0x444d4163, edx: 0x69746e65 }
const entry = (leaf: number, values: Partial<CpuidEntry> = {}): CpuidEntry => ({
  leaf,
  subleaf: 0,
  flags: 0,
  eax: 0,
  ebx: 0,
  ecx: 0,
  edx: 0,
  ...values,
})
const find = (entries: readonly CpuidEntry[], leaf: number, subleaf = 0) =>
  entries.find(candidate => candidate.leaf === leaf && candidate.subleaf === subleaf)!

describe('CPUID of a vCPU', () => {
  it('describes this machine, not the host (Intel)', () => {
    const host = [
      entry(0, { eax: 0x1f, ...INTEL }),
      entry(1, { ebx: 0x1734_5678, ecx: 0, edx: 1 << 28 }),
      entry(4, { subleaf: 0, eax: 0xfc00_4121 }),
      entry(4, { subleaf: 3, eax: 0xfc1f_c163 }),
      entry(0xb, { subleaf: 0, ebx: 2, edx: 99 }),
      entry(0x1f, { subleaf: 0, ebx: 2, edx: 99 }),
      entry(0x40000000, { eax: 0x40000001, ebx: 0x4b4d564b }),
    ]
    const guest = normaliseCpuid(host, { index: 2, cpus: 4, localApic: true })
    expect(find(guest, 1)).toMatchObject({ ebx: 0x0204_0878, ecx: (0x8100_0000 | 0) >>> 0, edx: 1 << 28 })
    expect((find(guest, 4, 0).eax >>> 14) & 0xfff).toBe(0)
    expect((find(guest, 4, 3).eax >>> 14) & 0xfff).toBe(3)
    expect(find(guest, 4, 3).eax >>> 26).toBe(3)
    expect(find(guest, 0xb, 1)).toMatchObject({ eax: 2, ebx: 4, ecx: 0x201, edx: 2 })
    expect(find(guest, 0x1f)).toBeUndefined()
    expect(find(guest, 0x40000000)).toEqual(host[6])
    // The host's table is untouched, and one CPU alone has no siblings.
    expect(host[1]!.ebx).toBe(0x1734_5678)
    expect(find(normaliseCpuid(host, { index: 0, cpus: 1, localApic: false }), 1)).toMatchObject({
      ebx: 0x0001_0878,
      ecx: 0x8000_0000,
      edx: 0,
    })
  })

  it('describes this machine, not the host (AMD)', () => {
    const host = [
      entry(0, { eax: 0x10, ...AMD }),
      entry(0x80000001, { ecx: 0 }),
      entry(0x80000008, { eax: 0x3030, ecx: 0x703f }),
      entry(0x8000001e, { eax: 77, ebx: 0x1234, ecx: 0x5678 }),
    ]
    const guest = normaliseCpuid(host, { index: 1, cpus: 2, localApic: true })
    expect(find(guest, 0x80000001).ecx).toBe(2)
    expect(find(guest, 0x80000008)).toMatchObject({ eax: 0x3030, ecx: 0x1001 })
    expect(find(guest, 0x8000001e)).toMatchObject({ eax: 1, ebx: 1, ecx: 0 })
  })

  it.skipIf(kvmUnusable())('survives its encoding (needs /dev/kvm)', () => {
    const system = KvmSystem.open()
    const supported = system.supportedCpuid()
    system.close()
    expect(encodeCpuid(decodeCpuid(supported))).toEqual(supported)
    expect(find(decodeCpuid(supported), 0x40000000).ebx).toBe(0x4b4d564b)
  })
})
