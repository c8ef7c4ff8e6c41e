/** What a machine reports. */
import { type CpuDump, GENERAL_REGISTERS } from '../accel/contract.ts'

/** How a machine ended. */
export type MachineExit =
  /** The guest powered itself off. */
  | { readonly reason: 'power-off' }
  /** The guest asked to be reset. */
  | { readonly reason: 'reboot' }
  /** A machine without interrupt controllers executed HLT. */
  | { readonly reason: 'halted' }
  /** Triple fault: also how some kernels reset (`reboot=t`). */
  | { readonly reason: 'triple-fault'; readonly cpu: number; readonly dump: CpuDump }
  /** The accelerator could not go on, or a thread of ours died. */
  | { readonly reason: 'internal-error'; readonly cpu: number; readonly message: string; readonly dump?: CpuDump }
  /** `stop()` or `close()` was called. */
  | { readonly reason: 'killed' }

/** What a machine tells whoever listens. */
export interface MachineEvents {
  /** Bytes the guest wrote to its serial console. */
  console: [data: Uint8Array]
  /** The guest powered off or asked to be reset; `exit` follows. */
  power: [what: 'off' | 'reboot']
  /** The machine has stopped for good. Emitted once; all console output came before. */
  exit: [exit: MachineExit]
}

/** An exit for people, in one line; the registers, where there are any, are separate: `formatDump`. */
export function describeExit(exit: MachineExit): string {
  switch (exit.reason) {
    case 'power-off':
      return 'the guest powered off'
    case 'reboot':
      return 'the guest asked to be restarted'
    case 'halted':
      return 'the guest halted'
    case 'triple-fault':
      return exit.dump.lost
        ? `vCPU ${exit.cpu} met a triple fault; KVM on AMD resets a CPU at that moment, so the registers there were are lost`
        : `vCPU ${exit.cpu} met a triple fault at ${hex(exit.dump.registers.rip)}`
    case 'internal-error':
      return `vCPU ${exit.cpu} cannot go on: ${exit.message}`
    case 'killed':
      return 'the machine was stopped'
  }
}

const hex = (value: bigint): string => `0x${value.toString(16)}`

/** Registers and the bytes at RIP, four to a line. */
export function formatDump({ registers, system, code }: CpuDump): string {
  const wide = (name: string, value: bigint): string => `${name.padStart(6)} ${value.toString(16).padStart(16, '0')}`
  const cells = registers.general.map((value, i) => wide(GENERAL_REGISTERS[i]!, value))
  cells.push(wide('rip', registers.rip), wide('rflags', registers.rflags))
  cells.push(wide('cr0', system.cr0), wide('cr2', system.cr2), wide('cr3', system.cr3), wide('cr4', system.cr4))
  cells.push(wide('efer', system.efer), wide('cs', BigInt(system.cs.selector)))
  const lines: string[] = []
  for (let i = 0; i < cells.length; i += 4) lines.push(cells.slice(i, i + 4).join(''))
  const bytes = [...code].map(byte => byte.toString(16).padStart(2, '0')).join(' ')
  return [...lines, `  code ${bytes || '(cannot be read)'}`].join('\n')
}
