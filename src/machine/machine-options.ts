/** What a machine is made of. Checked before anything is created. */
import type { Accelerator, AcceleratorName, SoftOptions } from '../accel/contract.ts'
import type { GuestMemory } from '../memory/guest-memory.ts'
import { MAX_RAM_MIB, MIN_RAM_MIB } from '../memory/layout.ts'
import { MAX_CPUS, MAX_SLOTS } from './address-map.ts'
import type { KernelFile } from './boot/kernel-image.ts'
import type { BootProtocol } from './boot/load.ts'
import type { MachineDevice } from './device-slots.ts'
import { MachineError } from './errors.ts'
import type { VcpuHandle } from './vcpu-handle.ts'

/** What `Machine.create` is told. */
export interface MachineOptions {
  /** A vmlinux or bzImage, as bytes or as a file. Without kernel and program the machine can only be restored. */
  readonly kernel?: Uint8Array | KernelFile
  readonly initrd?: Uint8Array
  /** The kernel's command line; `console=ttyS0` unless told. */
  readonly cmdline?: string
  readonly protocol?: BootProtocol
  /** Instead of a kernel: machine code, loaded at 1 MiB and entered in 64-bit mode with a stack. */
  readonly program?: Uint8Array
  /** 1 unless told. */
  readonly cpus?: number
  /** 256 unless told. Or `memory`, when the caller has prepared it. */
  readonly memoryMib?: number
  readonly memory?: GuestMemory
  /** Which accelerator: a name, or one that is already loaded. The best that works here, unless told. */
  readonly accel?: AcceleratorName | 'auto' | Accelerator
  readonly soft?: SoftOptions
  /** Without interrupt controllers and timer: for micro-guests. */
  readonly bare?: boolean
  /** In the order in which the guest is to find them. */
  readonly devices?: readonly MachineDevice[]
  /** Where the vCPUs run, one for each: threads that `startVcpuThreads` started before, or a `LocalVcpu`. The machine ends them. */
  readonly threads?: readonly VcpuHandle[]
}

export interface CheckedOptions extends MachineOptions {
  readonly cmdline: string
  readonly cpus: number
  readonly memoryMib: number
  readonly devices: readonly MachineDevice[]
}

export function checkOptions(options: MachineOptions): CheckedOptions {
  const cpus = options.cpus ?? 1
  if (!Number.isInteger(cpus) || cpus < 1 || cpus > MAX_CPUS) {
    throw new MachineError('BAD_SETTING', `a machine cannot have ${cpus} CPUs: give 1 to ${MAX_CPUS}`)
  }
  const memoryMib = options.memory ? options.memory.size / 2 ** 20 : (options.memoryMib ?? 256)
  if (!Number.isInteger(memoryMib) || memoryMib < MIN_RAM_MIB || memoryMib > MAX_RAM_MIB) {
    throw new MachineError(
      'BAD_SETTING',
      `a machine cannot have ${memoryMib} MiB of memory: give a whole number from ${MIN_RAM_MIB} to ${MAX_RAM_MIB}`,
    )
  }
  const devices = options.devices ?? []
  if (devices.length > MAX_SLOTS) {
    throw new MachineError('BAD_SETTING', `a machine has room for ${MAX_SLOTS} devices, not ${devices.length}`)
  }
  if (options.kernel && options.program) {
    throw new MachineError('BAD_SETTING', 'give a machine a kernel or a program, not both')
  }
  if (options.initrd && !options.kernel) throw new MachineError('BAD_SETTING', 'an initrd needs a kernel')
  if (options.threads && options.threads.length !== cpus) {
    throw new MachineError('BAD_SETTING', `${options.threads.length} threads do not fit ${cpus} CPUs: one for each`)
  }
  return { ...options, cmdline: options.cmdline ?? 'console=ttyS0', cpus, memoryMib, devices }
}
