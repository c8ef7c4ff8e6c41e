import { describe, expect, it } from 'vitest'
import type { Diagnosis } from '../accel/doctor.ts'
import { formatDiagnosis } from './doctor.ts'

const host = { platform: 'linux', arch: 'x64', kernel: '6.1', node: 'v20', cpu: 'Test CPU', cpus: 2, memoryMib: 1024 }

describe('vitrine doctor', () => {
  it('shows what was found, and the remedy beside what is missing', () => {
    const diagnosis: Diagnosis = {
      host,
      accelerators: [
        {
          name: 'kvm',
          usable: false,
          runsMicroGuests: false,
          summary: '/dev/kvm is forbidden',
          findings: [{ what: 'device', ok: false, detail: 'may not be opened', remedy: 'join the group kvm' }],
        },
        {
          name: 'soft',
          usable: true,
          runsMicroGuests: true,
          summary: 'runs anywhere',
          findings: [{ what: 'WebAssembly', ok: true, detail: 'with threads' }],
        },
      ],
      chosen: 'soft',
      reason: 'kvm: /dev/kvm is forbidden',
    }
    expect(formatDiagnosis(diagnosis)).toEqual([
      'Host: linux 6.1 on x64, Test CPU (2 CPUs), 1024 MiB, Node v20',
      '',
      'kvm: not usable: /dev/kvm is forbidden',
      '  no  device  may not be opened',
      '              -> join the group kvm',
      '',
      'soft: usable: runs anywhere',
      '  ok  WebAssembly  with threads',
      '',
      'Machines will use soft (kvm: /dev/kvm is forbidden).',
    ])
    expect(formatDiagnosis({ ...diagnosis, chosen: null, reason: 'nothing works' }).at(-1)).toBe(
      'No machine can run here: nothing works.',
    )
  })
})
