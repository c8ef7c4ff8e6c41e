/**
 * What a machine gives a device that sits at a virtio-mmio window, and what the device must bring. Types only: devices
 * in virtio/ satisfy `MachineDevice` without importing anything else from here.
 *
 *   main thread      MachineDevice.attach(slot) ── starts its device worker, resolves when that worker is ready
 *   vCPU workers     MmioDescription ──> MmioHandler (one in each worker; the registers themselves are in `slot.shared`)
 *   device worker    DeviceSlot ──> waits on `doorbells[queue].fd`, works on `wasm`, raises `interrupt`
 *
 * Order of a device's life: attach, (restore), [guest runs], pause, save, resume, ..., close. Between `pause` and
 * `resume` no vCPU runs and the device must not touch guest memory, raise its interrupt or have a request in flight.
 */
import type { DoorbellTicket, InterruptTicket } from '../accel/contract.ts'

/** A slot's part of the shared memory: two pages, one after the other. */
export interface SlotSharedMemory {
  /** Offset in the shared memory of 4 KiB for what the guest does not see of the transport's registers. */
  readonly registers: number
  /** Offset of the window as the guest reads it. Where the accelerator can, the guest reads it without an exit. */
  readonly face: number
}

/** Structured-cloneable: the whole of it can be sent to the device's worker. */
export interface DeviceSlot {
  /** Position among the machine's devices, from 0: the order in which the guest names them (vda, vdb, ...). */
  readonly index: number
  /** The machine's shared memory; `GuestMemory.attach(wasm)` gives guest RAM. */
  readonly wasm: WebAssembly.Memory
  /** Guest-physical address of the 4 KiB window. */
  readonly address: number
  readonly size: number
  /** The global system interrupt that ACPI names for this window: edge-triggered, active high. */
  readonly gsi: number
  readonly interrupt: InterruptTicket
  /** One a queue, in queue order: rung by a 32-bit write of the queue's index to QueueNotify (address + 0x50). */
  readonly doorbells: readonly DoorbellTicket[]
  readonly shared: SlotSharedMemory
}

/** How a vCPU worker makes the handler for a window. Structured-cloneable; sent once to every vCPU worker. */
export interface MmioDescription {
  /** Which code in the vCPU worker makes the handler: see `src/machine/mmio-handlers.ts`. */
  readonly kind: 'virtio-mmio'
  readonly address: number
  readonly size: number
  readonly slot: DeviceSlot
  /** Whatever the handler needs besides: the virtio device type, offered features, queue sizes. */
  readonly detail: unknown
}

/**
 * Serves one window on a vCPU's thread; several vCPUs may be in it at once. Never throws, never blocks for long.
 * `offset` is from the start of the window; `offset + size` never goes beyond its end.
 */
export interface MmioHandler {
  /** Fills the first `size` bytes (1, 2, 4 or 8) of `data`. */
  read(offset: number, size: number, data: DataView): void
  write(offset: number, size: number, data: DataView): void
}

/** The signature of a function in virtio/ that the vCPU worker calls with a description of its kind. */
export type MmioHandlerFactory = (description: MmioDescription) => MmioHandler

/** What a device is to a machine: the main thread's side. */
export interface MachineDevice {
  /** For messages, metrics and saved state: 'blk', 'net', 'vsock', 'rng', ... */
  readonly name: string
  /** How many doorbells it wants. */
  readonly queues: number
  /** Starts whatever serves it (a device worker, usually) and resolves when the guest may touch the window. */
  attach(slot: DeviceSlot): Promise<MmioDescription>
  /** Drains requests in flight and holds still. Every vCPU has stopped. */
  pause(): Promise<void>
  resume(): Promise<void>
  /** Only while paused. A versioned structure; `restore` checks every number in it and throws on what cannot be. */
  save(): Promise<Uint8Array>
  restore(state: Uint8Array): Promise<void>
  /** The guest resets: back to the state after `attach`. Every vCPU has stopped. */
  reset(): Promise<void>
  metrics(): Promise<Record<string, number>>
  /** Ends its worker and closes what it opened. May be called at any point of its life, and more than once. */
  close(): Promise<void>
}
