/** Bare machine code in place of a kernel: long mode, the first GiB identity-mapped, a small stack. For micro-guests. */
import type { GuestMemory } from '../../memory/guest-memory.ts'
import { HIGH_MEMORY } from '../address-map.ts'
import { MachineError } from '../errors.ts'
import type { EntryState } from './cpu-state.ts'
import { prepareLinux64 } from './linux64.ts'

export function loadProgram(memory: GuestMemory, program: Uint8Array): EntryState {
  const room = memory.regions[0]!.size - HIGH_MEMORY
  if (program.length === 0) throw new MachineError('BAD_KERNEL', 'the program is empty')
  if (program.length > room) {
    throw new MachineError('DOES_NOT_FIT', `the program has ${program.length} bytes; there is room for ${room}`)
  }
  memory.write(HIGH_MEMORY, program)
  return prepareLinux64(memory, { entry: HIGH_MEMORY, initrd: undefined, rsdp: 0, commandLineSize: 0 })
}
