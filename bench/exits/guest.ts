/**
 * The micro-guests of the benchmark, in one RAM: a port written in a loop at privilege level 0, and an MMIO word written in
 * a loop at level 3 (where the loop itself is native on every KVM). Ours and the C driver run the same bytes.
 */
import type { CpuRegisters, SystemRegisters } from '../../src/accel/contract.ts'
import { Assembler } from '../../src/kvm/assembler.ts'
import { flatSystemRegisters, registersAt } from '../../src/kvm/micro-guest.ts'
import { USER_BASE, USER_MODE_MIB, userModeSystemRegisters, writeUserModeTables } from '../../src/kvm/user-mode.ts'
import { GuestMemory } from '../../src/memory/guest-memory.ts'

const PORT_CODE = 0xd000
export const PORT = 0x80
export const MMIO_ADDRESS = 0xc000_1000

export type ExitKind = 'port' | 'mmio'

export function createGuestMemory(): GuestMemory {
  const memory = GuestMemory.create(USER_MODE_MIB)
  writeUserModeTables(memory)
  memory.write(PORT_CODE, new Assembler(PORT_CODE).out(PORT).jmp(PORT_CODE).bytes)
  // mov [rbx], eax; jmp -4
  memory.write(USER_BASE, Uint8Array.of(0x89, 0x03, 0xeb, 0xfc))
  return memory
}

/** The state from which the guest makes exits of one kind for ever. */
export function startState(
  kind: ExitKind,
  reset: SystemRegisters,
): { system: SystemRegisters; registers: CpuRegisters } {
  return kind === 'port'
    ? { system: flatSystemRegisters(reset), registers: registersAt(PORT_CODE, { rax: 7n }) }
    : {
        system: userModeSystemRegisters(reset),
        registers: registersAt(USER_BASE, { rax: 7n, rbx: BigInt(MMIO_ADDRESS) }),
      }
}
