/** A machine of one software CPU in this thread, for tests: machine code at 1 MiB in long mode, ports that are recorded. */
import type { IoHandler, SoftOptions } from '../../src/accel/contract.ts'
import { loadProgram } from '../../src/machine/boot/program.ts'
import { GuestMemory } from '../../src/memory/guest-memory.ts'
import type { TierSettings } from '../../src/soft/jit/tier.ts'
import { SoftVcpu } from '../../src/soft/vcpu.ts'
import { SoftVm } from '../../src/soft/vm.ts'

export interface MicroMachine {
  readonly memory: GuestMemory
  readonly vm: SoftVm
  readonly vcpu: SoftVcpu
  readonly io: RecordingIo
}

/** Remembers what was written to ports; a write to 0x600 stops the machine. */
export class RecordingIo implements IoHandler {
  readonly written: { port: number; size: number; value: number }[] = []
  readonly mmio: { address: number; size: number }[] = []
  stopRequested = false

  portRead(_port: number, size: number): number {
    return size === 1 ? 0xff : size === 2 ? 0xffff : 0xffff_ffff
  }
  portWrite(port: number, size: number, value: number): void {
    if (this.written.length < 1000) this.written.push({ port, size, value })
    if (port === 0x600) this.stopRequested = true
  }
  mmioRead(address: number, size: number, data: DataView): void {
    if (this.mmio.length < 1000) this.mmio.push({ address, size })
    for (let index = 0; index < size; index++) data.setUint8(index, 0xff)
  }
  mmioWrite(address: number, size: number): void {
    if (this.mmio.length < 1000) this.mmio.push({ address, size })
  }
}

/** Lets code at CPL 3 use the pages that loadProgram maps: the U bit in every entry of PML4, PDPT and PD. */
export function allowUser(memory: GuestMemory): void {
  for (let entry = 0x9000; entry < 0xc000; entry += 8) {
    const value = memory.readU64(entry)
    if (value & 1n) memory.writeU64(entry, value | 4n)
  }
}

export function microMachine(
  program: Uint8Array,
  soft: SoftOptions = {},
  mib = 4,
  settings?: TierSettings,
): MicroMachine {
  const memory = GuestMemory.create(mib)
  const vm = new SoftVm({ memory, cpus: 1, soft })
  const entry = loadProgram(memory, program)
  const vcpu = new SoftVcpu(vm.vcpuTicket(0), settings)
  vcpu.reset()
  vcpu.writeSystemRegisters({ ...vcpu.readSystemRegisters(), ...entry.system })
  vcpu.writeRegisters(entry.registers)
  return { memory, vm, vcpu, io: new RecordingIo() }
}
