/** The local interrupt pins as firmware leaves them: LINT0 takes the 8259's interrupts, LINT1 is the NMI. */
import { ioctl } from './ioctl.ts'
import { LAPIC } from './structs.ts'

/** Offsets in the APIC's register page (SDM volume 3, 11.5.1). */
const LVT_LINT0 = 0x350
const LVT_LINT1 = 0x360
const DELIVER_NMI = 4 << 8
const DELIVER_EXTINT = 7 << 8

export function setBootLocalApic(fd: number): void {
  const lapic = LAPIC.create()
  ioctl(fd, 'KVM_GET_LAPIC', lapic.bytes)
  const deliver = (register: number, mode: number) =>
    lapic.view.setUint32(register, (lapic.view.getUint32(register, true) & ~0x700) | mode, true)
  deliver(LVT_LINT0, DELIVER_EXTINT)
  deliver(LVT_LINT1, DELIVER_NMI)
  ioctl(fd, 'KVM_SET_LAPIC', lapic.bytes)
}
