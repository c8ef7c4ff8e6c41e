/** The devices the guest finds through ACPI: virtio-mmio windows, COM1, the power button, the VM generation id. */
import {
  ACPI_S5_TYPE,
  GSI_COM1,
  GSI_POWER_BUTTON,
  GSI_VM_GENERATION,
  PORT_COM1,
  SLOT_GSIS,
  slotAddress,
  VIRTIO_MMIO_SIZE,
  VM_GENERATION_ID,
} from '../address-map.ts'
import {
  type Aml,
  device,
  edgeInterrupt,
  eisaId,
  fixedMemory,
  ifArg0Equals,
  integer,
  isaInterrupt,
  method,
  name,
  notify,
  packageOf,
  ports,
  resources,
  scope,
  string,
} from './aml.ts'

/** `Notify` values: 5.6.6 for a button pressed; the VM generation id specification for a change. */
const NOTIFY_CHANGED = 0x80

export function dsdtBody(slots: number): Uint8Array {
  const devices: Aml[] = [com1(), vmGeneration(), powerButton(), eventDevice()]
  for (let i = 0; i < slots; i++) devices.push(virtioWindow(i))
  // 7.4.2: the value to write as SLP_TYP for soft off.
  const s5 = name('\\_S5', packageOf(integer(ACPI_S5_TYPE), integer(0), integer(0), integer(0)))
  return Uint8Array.from([...s5, ...scope('\\_SB', ...devices)])
}

const com1 = (): Aml =>
  device(
    'COM1',
    name('_HID', eisaId('PNP0501')),
    name('_UID', integer(1)),
    name('_DDN', string('COM1')),
    name('_CRS', resources(ports(PORT_COM1, 8), isaInterrupt(GSI_COM1))),
  )

/** Documentation/firmware-guide and drivers/virtio/virtio_mmio.c name the id. */
const virtioWindow = (index: number): Aml =>
  device(
    `VR${index.toString(16).toUpperCase().padStart(2, '0')}`,
    name('_HID', string('LNRO0005')),
    name('_UID', integer(index)),
    // Memory is coherent with the device: without this Linux would bounce every buffer on some architectures.
    name('_CCA', integer(1)),
    name('_CRS', resources(fixedMemory(slotAddress(index), VIRTIO_MMIO_SIZE), edgeInterrupt(SLOT_GSIS[index]!))),
  )

/** Microsoft's "Virtual Machine Generation ID": ADDR gives the address of the id in two halves. */
const vmGeneration = (): Aml =>
  device(
    'VGEN',
    name('_HID', string('VMGENCTR')),
    name('_CID', string('VM_Gen_Counter')),
    name('_DDN', string('VM_Gen_Counter')),
    name('ADDR', packageOf(integer(VM_GENERATION_ID), integer(0))),
  )

const powerButton = (): Aml => device('PWRB', name('_HID', eisaId('PNP0C0C')), name('_UID', integer(0)))

/** 5.6.9: the generic event device, which hardware-reduced ACPI has in place of an SCI. */
const eventDevice = (): Aml =>
  device(
    'GED',
    name('_HID', string('ACPI0013')),
    name('_UID', integer(0)),
    name('_CRS', resources(edgeInterrupt(GSI_VM_GENERATION), edgeInterrupt(GSI_POWER_BUTTON))),
    method(
      '_EVT',
      1,
      ifArg0Equals(GSI_VM_GENERATION, notify('\\_SB.VGEN', NOTIFY_CHANGED)),
      ifArg0Equals(GSI_POWER_BUTTON, notify('\\_SB.PWRB', NOTIFY_CHANGED)),
    ),
  )
