/** The interrupt controllers and the timer inside KVM: two 8259s, an IOAPIC, an 8254, and interrupt lines as eventfds. */
import { ioctl, ioctlValue } from './ioctl.ts'
import { KVM } from './ioctls.ts'
import { IRQCHIP, IRQFD, PIT_CONFIG, PIT_STATE2 } from './structs.ts'

/** Global system interrupts: the IOAPIC's 24 pins. */
export const GSI_COUNT = 24

/** Must come before the first vCPU, so that each gets a local APIC. */
export function createIrqChip(vmFd: number): void {
  ioctlValue(vmFd, 'KVM_CREATE_IRQCHIP')
  // The dummy speaker answers port 0x61 in the kernel; without it, each of the guest's TSC calibrations exits to us.
  ioctl(vmFd, 'KVM_CREATE_PIT2', PIT_CONFIG.create().set('flags', KVM.KVM_PIT_SPEAKER_DUMMY).bytes)
}

/** Raises edge-triggered line `gsi` whenever `fd` is signalled. */
export function addIrqFd(vmFd: number, fd: number, gsi: number): void {
  ioctl(vmFd, 'KVM_IRQFD', IRQFD.create().set('fd', fd).set('gsi', gsi).bytes)
}

export function removeIrqFd(vmFd: number, fd: number, gsi: number): void {
  const request = IRQFD.create().set('fd', fd).set('gsi', gsi).set('flags', KVM.KVM_IRQFD_FLAG_DEASSIGN)
  ioctl(vmFd, 'KVM_IRQFD', request.bytes)
}

export type IrqChipId =
  | typeof KVM.KVM_IRQCHIP_PIC_MASTER
  | typeof KVM.KVM_IRQCHIP_PIC_SLAVE
  | typeof KVM.KVM_IRQCHIP_IOAPIC

export function getIrqChip(vmFd: number, id: IrqChipId): Uint8Array {
  const chip = IRQCHIP.create().set('chip_id', id)
  ioctl(vmFd, 'KVM_GET_IRQCHIP', chip.bytes)
  return chip.bytes
}

/** `state` is what `getIrqChip` gave; it carries the chip's id. */
export const setIrqChip = (vmFd: number, state: Uint8Array): void => void ioctl(vmFd, 'KVM_SET_IRQCHIP', state)

export function getPit(vmFd: number): Uint8Array {
  const pit = PIT_STATE2.create()
  ioctl(vmFd, 'KVM_GET_PIT2', pit.bytes)
  return pit.bytes
}

export const setPit = (vmFd: number, state: Uint8Array): void => void ioctl(vmFd, 'KVM_SET_PIT2', state)
