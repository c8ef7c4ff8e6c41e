/**
 * The map of the one shared WebAssembly memory of a machine.
 *
 *   0          +--------------------------------------------------------+
 *              | never used: a null pointer in WASM hits nothing        |
 *   64 KiB     | STATICS: static data of WASM modules, distinct bases   |
 *   1 MiB      | DEVICES: virtio-mmio register pages, console rings,    |
 *              | legacy devices' state, machine control words, kvm_run  |
 *   4 MiB      | SOFT_CPU: per-vCPU state, TLBs, decoded-block caches   |
 *   128 MiB    +--------------------------------------------------------+
 *              | guest RAM (RAM_OFFSET .. RAM_OFFSET + size)            |
 *              +--------------------------------------------------------+
 *
 * Untouched pages cost nothing, so the KVM accelerator does not pay for the software CPU's part.
 *
 * Guest-physical addresses: RAM below the MMIO hole is at 0 .. min(size, 3 GiB); what is left goes to 4 GiB and up.
 */
export const STATICS_BASE = 0x1_0000
export const STATICS_END = 0x10_0000
export const DEVICES_BASE = 0x10_0000
export const DEVICES_END = 0x40_0000
/** In DEVICES: per vCPU KVM's three shared pages, mapped over the memory, and a page of ours (src/kvm/run-area.ts). */
export const KVM_RUN_BASE = 0x20_0000
export const KVM_RUN_STRIDE = 0x4000
export const KVM_RUN_END = 0x30_0000
export const MAX_CPUS = (KVM_RUN_END - KVM_RUN_BASE) / KVM_RUN_STRIDE
/** In DEVICES, last: a bit for each page of RAM that our own threads have written (src/memory/dirty-log.ts). */
export const DIRTY_LOG_BASE = 0x3c_0000
export const SOFT_CPU_BASE = 0x40_0000
export const SOFT_CPU_END = 0x800_0000
/** Where guest RAM starts in the shared memory. */
export const RAM_OFFSET = 0x800_0000

/** Guest-physical: the MMIO hole, where no RAM is. */
export const MMIO_HOLE_START = 0xc000_0000
export const MMIO_HOLE_END = 0x1_0000_0000

export const MIB = 1024 * 1024
/** The smallest and the largest guest: 2 MiB for micro-guests; what a wasm32 memory can hold beside our own part. */
export const MIN_RAM_MIB = 2
export const MAX_RAM_MIB = (0x1_0000_0000 - RAM_OFFSET) / MIB - 1
