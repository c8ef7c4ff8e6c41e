/** What a VM's vCPUs share, as a blob: timer, clock, interrupt controllers. */

import { KvmError } from './errors.ts'
import { ioctl } from './ioctl.ts'
import { KVM } from './ioctls.ts'
import { getIrqChip, getPit, type IrqChipId, setIrqChip, setPit } from './irqchip.ts'
import { decodeState, encodeState, section } from './state-blob.ts'
import { CLOCK_DATA, IRQCHIP, PIT_STATE2 } from './structs.ts'

const MAGIC = 0x4d56_564b // "KVVM"
const VERSION = 1
const WHAT = 'machine (KVM)'

const TAG_PIT = 1
const TAG_CLOCK = 2
const CHIPS: readonly (readonly [tag: number, id: IrqChipId])[] = [
  [3, KVM.KVM_IRQCHIP_PIC_MASTER],
  [4, KVM.KVM_IRQCHIP_PIC_SLAVE],
  [5, KVM.KVM_IRQCHIP_IOAPIC],
]

/** `chips` is false for a bare VM, which has a clock only. */
export function saveVm(vmFd: number, chips: boolean): Uint8Array {
  const sections = new Map<number, Uint8Array>()
  if (chips) sections.set(TAG_PIT, getPit(vmFd))
  const clock = CLOCK_DATA.create()
  ioctl(vmFd, 'KVM_GET_CLOCK', clock.bytes)
  sections.set(TAG_CLOCK, clock.bytes)
  if (chips) for (const [tag, id] of CHIPS) sections.set(tag, getIrqChip(vmFd, id))
  return encodeState(MAGIC, VERSION, sections)
}

export function restoreVm(vmFd: number, chips: boolean, blob: Uint8Array): void {
  const sections = decodeState(blob, MAGIC, VERSION, WHAT)
  const get = (tag: number, size: number) => section(sections, tag, size, WHAT)
  const pit = chips ? get(TAG_PIT, PIT_STATE2.size) : undefined
  const clock = CLOCK_DATA.create().set('clock', CLOCK_DATA.over(get(TAG_CLOCK, CLOCK_DATA.size)).get('clock'))
  const states = chips ? CHIPS.map(([tag, id]) => chipState(get(tag, IRQCHIP.size), id)) : []
  if (pit) setPit(vmFd, pit)
  // Only the guest's own time: the flags that GET reports (the realtime and TSC readings) would make time jump ahead.
  ioctl(vmFd, 'KVM_SET_CLOCK', clock.bytes)
  for (const state of states) setIrqChip(vmFd, state)
}

/** A chip's state names the chip; one that names another would overwrite it. */
function chipState(state: Uint8Array, id: IrqChipId): Uint8Array {
  if (IRQCHIP.over(state).get('chip_id') !== id) {
    throw new KvmError(
      'BAD_STATE',
      `the saved state of the ${WHAT} cannot be restored: interrupt controller ${id} is not there`,
    )
  }
  return state
}
