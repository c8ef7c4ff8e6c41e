/** Makes the slot of a device: its window, interrupt, doorbells and shared pages. */
import type { VirtualMachine } from '../accel/contract.ts'
import { SLOT_GSIS, slotAddress, VIRTIO_MMIO_SIZE } from './address-map.ts'
import type { DeviceSlot } from './device-slots.ts'
import { SLOT_SHARED_SIZE, SLOTS_OFFSET } from './shared-layout.ts'

/** Of the virtio-mmio register layout (VIRTIO 1.2, 4.2.2). */
const QUEUE_NOTIFY = 0x50
const INTERRUPT_ACK = 0x64
const USED_BUFFER = 1

export function makeSlot(vm: VirtualMachine, index: number, queues: number): DeviceSlot {
  const address = slotAddress(index)
  const gsi = SLOT_GSIS[index]!
  const registers = SLOTS_OFFSET + index * SLOT_SHARED_SIZE
  const face = registers + VIRTIO_MMIO_SIZE
  // An interrupt makes a driver read why it came and acknowledge it: two exits to us, unless the guest can read that itself. That buffers were used
  // needs no acknowledgment either, for the line is edge-triggered: a bell that nobody hears takes it, and the bit stays set.
  if (vm.showPage?.(address, face) === true) vm.doorbell(address + INTERRUPT_ACK, USED_BUFFER)
  return {
    index,
    wasm: vm.memory.wasm,
    address,
    size: VIRTIO_MMIO_SIZE,
    gsi,
    interrupt: vm.interruptLine(gsi),
    doorbells: Array.from({ length: queues }, (_, queue) => vm.doorbell(address + QUEUE_NOTIFY, queue)),
    shared: { registers, face },
  }
}
