/**
 * The DEVICES part of the shared memory (see src/memory/layout.ts), in address order.
 *
 *   0x10_0000  control words: what the vCPU workers and the main thread tell each other          4 KiB
 *   0x10_1000  legacy devices: COM1, i8042, RTC, ACPI registers, counters                        4 KiB
 *   0x11_0000  console output ring (guest to host)                                              64 KiB
 *   0x12_0000  console input ring (host to guest)                                               64 KiB
 *   0x14_0000  device slots: 8 KiB each, registers then scratch
 */
import { DEVICES_BASE, DEVICES_END } from '../memory/layout.ts'

export const CONTROL_OFFSET = DEVICES_BASE
export const LEGACY_OFFSET = DEVICES_BASE + 0x1000
export const CONSOLE_OUT_OFFSET = DEVICES_BASE + 0x1_0000
export const CONSOLE_IN_OFFSET = DEVICES_BASE + 0x2_0000
export const CONSOLE_RING_SIZE = 0x1_0000
export const SLOTS_OFFSET = DEVICES_BASE + 0x4_0000
export const SLOT_SHARED_SIZE = 0x2000

/** Words of the control page, as indices of an Int32Array at CONTROL_OFFSET. */
export const CONTROL = {
  /** 1 while the main thread wants every vCPU out of the guest: nothing may block for long. */
  holdStill: 0,
  /** Guards the legacy devices: 0 free, 1 taken, 2 taken with others waiting. */
  legacyLock: 1,
  /** What the guest asked for through a power or reset register: 0 nothing, 1 power off, 2 reboot. */
  powerRequest: 2,
} as const

if (SLOTS_OFFSET + 64 * SLOT_SHARED_SIZE > DEVICES_END) throw new Error('the device slots do not fit their region')
