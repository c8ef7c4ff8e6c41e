/**
 * The PVH entry: 32-bit protected mode without paging, EBX at `struct hvm_start_info`. Xen's docs/misc/pvh.pandoc and
 * public/arch-x86/hvm/start_info.h.
 */
import type { CpuRegisters, SystemRegisters } from '../../accel/contract.ts'
import type { GuestMemory } from '../../memory/guest-memory.ts'
import { COMMAND_LINE, PVH_MEMORY_MAP, PVH_MODULE_LIST, PVH_START_INFO } from '../address-map.ts'
import { CODE_32, DATA_32, type EntryState, general, TSS_32, writeGdt } from './cpu-state.ts'
import type { InitrdPlacement } from './initrd.ts'
import { guestMemoryMap } from './memory-map.ts'

const MAGIC = 0x336e_c578
const CR0_PE = 1n
const CR0_ET = 0x10n

export interface PvhSettings {
  readonly entry: number
  readonly initrd: InitrdPlacement | undefined
  readonly rsdp: number
}

export function preparePvh(memory: GuestMemory, settings: PvhSettings): EntryState {
  const map = guestMemoryMap(memory)
  map.forEach((range, i) => {
    const at = PVH_MEMORY_MAP + i * 24
    memory.writeU64(at, BigInt(range.address))
    memory.writeU64(at + 8, BigInt(range.size))
    memory.writeU32(at + 16, range.type)
    memory.writeU32(at + 20, 0)
  })
  if (settings.initrd) {
    memory.writeU64(PVH_MODULE_LIST, BigInt(settings.initrd.address))
    memory.writeU64(PVH_MODULE_LIST + 8, BigInt(settings.initrd.size))
    memory.writeU64(PVH_MODULE_LIST + 16, 0n)
    memory.writeU64(PVH_MODULE_LIST + 24, 0n)
  }
  memory.writeU32(PVH_START_INFO, MAGIC)
  memory.writeU32(PVH_START_INFO + 4, 1)
  memory.writeU32(PVH_START_INFO + 8, 0)
  memory.writeU32(PVH_START_INFO + 12, settings.initrd ? 1 : 0)
  memory.writeU64(PVH_START_INFO + 16, settings.initrd ? BigInt(PVH_MODULE_LIST) : 0n)
  memory.writeU64(PVH_START_INFO + 24, BigInt(COMMAND_LINE))
  memory.writeU64(PVH_START_INFO + 32, BigInt(settings.rsdp))
  memory.writeU64(PVH_START_INFO + 40, BigInt(PVH_MEMORY_MAP))
  memory.writeU32(PVH_START_INFO + 48, map.length)
  memory.writeU32(PVH_START_INFO + 52, 0)

  const tables = writeGdt(memory, CODE_32, DATA_32, TSS_32)
  const registers: CpuRegisters = {
    general: general({ rbx: PVH_START_INFO }),
    rip: BigInt(settings.entry),
    rflags: 2n,
  }
  const system: Partial<SystemRegisters> = {
    ...tables,
    cr0: CR0_PE | CR0_ET,
    cr3: 0n,
    cr4: 0n,
    efer: 0n,
  }
  return { registers, system }
}
