/** Micro-guests on this host's /dev/kvm, whatever kind it is: one vCPU, on this thread. */
import { afterEach, describe, expect, it } from 'vitest'
import type { VcpuExit } from '../accel/contract.ts'
import { GuestMemory } from '../memory/guest-memory.ts'
import { CODE_ADDRESS, type GeneralName, startFlat } from './micro-guest.ts'
import { kvmUnusable, Recorder } from './testing.ts'
import { KvmVcpu } from './vcpu.ts'
import { KvmVirtualMachine } from './vm.ts'

let vm: KvmVirtualMachine | undefined
afterEach(() => {
  vm?.close()
  vm = undefined
})

function boot(code: readonly number[], values: Partial<Record<GeneralName, bigint>> = {}): KvmVcpu {
  const memory = GuestMemory.create(2)
  memory.write(CODE_ADDRESS, Uint8Array.from(code))
  vm = KvmVirtualMachine.create({ memory, cpus: 1, bare: true })
  const vcpu = new KvmVcpu(vm.vcpuTicket(0))
  vcpu.reset()
  startFlat(vcpu, CODE_ADDRESS, values)
  return vcpu
}

const HLT = 0xf4

describe.skipIf(kvmUnusable())('a vCPU of /dev/kvm (needs to be allowed to open it)', () => {
  it('says hello over port 0x3f8', () => {
    const text = 'Hello, vitrine!\n'
    // lodsb; test al,al; jz +3; out dx,al; jmp -8; hlt
    const loop = [0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8, HLT]
    const vcpu = boot([...loop, ...Buffer.from(`${text}\0`)], {
      rsi: BigInt(CODE_ADDRESS + loop.length),
      rdx: 0x3f8n,
    })
    const io = new Recorder()
    expect(vcpu.run(io)).toEqual({ reason: 'halted' } satisfies VcpuExit)
    expect(io.portWrites.map(([port, size, value]) => [port, size, String.fromCharCode(value)])).toEqual(
      [...text].map(character => [0x3f8, 1, character]),
    )
    expect(vcpu.counters()).toMatchObject({ portExits: text.length })
  })
})
