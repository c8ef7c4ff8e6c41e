/** What to show when a vCPU cannot go on: its registers and the bytes at RIP. */
import type { CpuDump } from '../accel/contract.ts'
import type { GuestMemory } from '../memory/guest-memory.ts'
import { ioctl } from './ioctl.ts'
import { getRegisters, getSystemRegisters } from './registers.ts'
import { TRANSLATION } from './structs.ts'

const CODE_BYTES = 16

export function dumpVcpu(fd: number, memory: GuestMemory): CpuDump {
  const registers = getRegisters(fd)
  const system = getSystemRegisters(fd)
  const longMode = (system.efer & 0x400n) !== 0n && (system.cs.attributes & 0x2000) !== 0
  const linear = longMode ? registers.rip : BigInt.asUintN(32, system.cs.base + registers.rip)
  return { registers, system, code: readCode(fd, memory, linear) }
}

/**
 * After a triple fault. AMD's manual leaves the VMCB undefined then (APM 2, 15.14.3), so kvm-amd resets the vCPU before it tells
 * us, GPRs included, and no interface of KVM shows what was there. VT-x keeps the registers.
 */
export function dumpShutdown(fd: number, memory: GuestMemory): CpuDump {
  const dump = dumpVcpu(fd, memory)
  const reset = dump.registers.rip === 0xfff0n && dump.system.cs.base === 0xffff_0000n
  return reset ? { ...dump, lost: true } : dump
}

/** Byte by byte through the guest's page tables: the code may end at a page that is not there. */
function readCode(fd: number, memory: GuestMemory, linear: bigint): Uint8Array {
  const code: number[] = []
  for (let i = 0n; i < CODE_BYTES; i++) {
    const translation = TRANSLATION.create().set('linear_address', BigInt.asUintN(64, linear + i))
    ioctl(fd, 'KVM_TRANSLATE', translation.bytes)
    if (translation.get('valid') === 0) break
    const offset = memory.offsetOf(Number(translation.get('physical_address')), 1)
    if (offset < 0) break
    code.push(memory.bytes[offset]!)
  }
  return Uint8Array.from(code)
}
