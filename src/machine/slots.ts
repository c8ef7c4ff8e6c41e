/** Makes the slot of a device: its window, interrupt, doorbells and shared pages. */
import type { VirtualMachine } from '../accel/contract.ts'
import { SLOT_GSIS, slotAddress, VIRTIO_MMIO_SIZE } from './address-map.ts'
import type { DeviceSlot } from './device-slots.ts'
import { SLOT_SHARED_SIZE, SLOTS_OFFSET } from './shared-layout.ts'

/** QueueNotify of the virtio-mmio register layout (VIRTIO 1.2, 4.2.2). */
const QUEUE_NOTIFY = 0x50

export function makeSlot(vm: VirtualMachine, index: number, queues: number): DeviceSlot {
  const address = slotAddress(index)
  const gsi = SLOT_GSIS[index]!
  const registers = SLOTS_OFFSET + index * SLOT_SHARED_SIZE
  return {
    index,
    wasm: vm.memory.wasm,
    address,
    size: VIRTIO_MMIO_SIZE,
    gsi,
    interrupt: vm.interruptLine(gsi),
    doorbells: Array.from({ length: queues }, (_, queue) => vm.doorbell(address + QUEUE_NOTIFY, queue)),
    shared: { registers, scratch: registers + VIRTIO_MMIO_SIZE },
  }
}
