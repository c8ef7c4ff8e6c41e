/** The public face of Vitrine. */

export type { AcceleratorName, CpuDump } from './accel/contract.ts'
export { assetPath } from './host/assets.ts'
export { BOX_MODULES, buildInitramfs, ensureInitramfs, type InitramfsOptions } from './image/initramfs.ts'
export { KernelError, type KernelErrorCode } from './image/kernel/errors.ts'
export { type FindOptions, type FoundKernel, findKernel } from './image/kernel/find.ts'
export type { DeviceSlot, MachineDevice } from './machine/device-slots.ts'
export { MachineError, type MachineErrorCode } from './machine/errors.ts'
export { Machine, type MachineMetrics, type MachinePhase } from './machine/machine.ts'
export { describeExit, formatDump, type MachineEvents, type MachineExit } from './machine/machine-events.ts'
export type { MachineOptions } from './machine/machine-options.ts'
export { decodeMachineState, encodeMachineState, type MachineState } from './machine/machine-state.ts'
