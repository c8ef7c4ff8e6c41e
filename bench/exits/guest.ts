/**
 * The micro-guests of the benchmark, in one RAM: a port written in a loop, and an MMIO word written in a loop. Both are flat
 * 32-bit code at privilege level 0. Ours and the C driver run the same bytes.
 */
import type { CpuRegisters, SystemRegisters } from '../../src/accel/contract.ts'
import { Assembler } from '../../src/kvm/assembler.ts'
import { CODE_ADDRESS, flatSystemRegisters, registersAt } from '../../src/kvm/micro-guest.ts'
import { GuestMemory } from '../../src/memory/guest-memory.ts'

const CODE = { port: CODE_ADDRESS, mmio: CODE_ADDRESS + 0x100 } as const
const PORT = 0x80
const MMIO_ADDRESS = 0xc000_1000

export type ExitKind = keyof typeof CODE

export function createGuestMemory(): GuestMemory {
  const memory = GuestMemory.create(2)
  memory.write(CODE.port, new Assembler(CODE.port).out(PORT).jmp(CODE.port).bytes)
  memory.write(CODE.mmio, new Assembler(CODE.mmio).store(MMIO_ADDRESS, 'eax').jmp(CODE.mmio).bytes)
  return memory
}

/** The state from which the guest makes exits of one kind for ever. */
export function startState(
  kind: ExitKind,
  reset: SystemRegisters,
): { system: SystemRegisters; registers: CpuRegisters } {
  return { system: flatSystemRegisters(reset), registers: registersAt(CODE[kind], { rax: 7n }) }
}
