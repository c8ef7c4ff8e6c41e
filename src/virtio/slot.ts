/**
 * What a machine gives a virtio device: a window in the guest's address space, an interrupt line, a doorbell a queue, a
 * page of registers in the shared memory. Plain values only: slots are sent to vCPU workers and device workers alike.
 *
 * `GivenSlot` is the part of the machine's `DeviceSlot` that is used here (imports never go up, so it is said again).
 */
import type { DoorbellTicket, InterruptTicket } from '../accel/contract.ts'

export interface GivenSlot {
  readonly index: number
  readonly wasm: WebAssembly.Memory
  /** Guest-physical address of the 4 KiB window. */
  readonly address: number
  readonly interrupt: InterruptTicket
  /** One for each queue, in order: rung by a 32-bit write of the queue's number to QueueNotify. */
  readonly doorbells: readonly DoorbellTicket[]
  /** Offset in the shared memory of the two pages of 4 KiB that are `RegisterPage`. */
  readonly shared: { readonly registers: number }
}

export interface VirtioSlot extends GivenSlot {
  /** An eventfd: a vCPU's worker tells the device's worker of activation, reset and config writes. */
  readonly controlFd: number
}

/** What `VirtioMachineDevice.attach` puts into the machine's `MmioDescription.detail`. */
export interface VirtioMmioDetail {
  readonly controlFd: number
  /** On the vCPU's own thread: what serves activation and reset at once, for as long as the device lives there. */
  readonly server?: () => (() => void) | undefined
}
