/**
 * The DEVICES part of the shared memory (see src/memory/layout.ts), in address order.
 *
 *   0x10_0000  control words: what the vCPU workers and the main thread tell each other          4 KiB
 *   0x10_1000  legacy devices: a block of words each, then counters                              4 KiB
 *   0x11_0000  console output ring (guest to host)                                              64 KiB
 *   0x12_0000  console input ring (host to guest)                                               64 KiB
 *   0x14_0000  device slots: 8 KiB each, registers then the window as the guest reads it
 */
import { DEVICES_BASE, DEVICES_END } from '../memory/layout.ts'
import { MAX_SLOTS } from './address-map.ts'

export const CONTROL_OFFSET = DEVICES_BASE
export const LEGACY_OFFSET = DEVICES_BASE + 0x1000
export const CONSOLE_OUT_OFFSET = DEVICES_BASE + 0x1_0000
export const CONSOLE_IN_OFFSET = DEVICES_BASE + 0x2_0000
export const CONSOLE_RING_SIZE = 0x1_0000
export const SLOTS_OFFSET = DEVICES_BASE + 0x4_0000
export const SLOT_SHARED_SIZE = 0x2000

/** Words of the control page, as indices of an Int32Array at CONTROL_OFFSET; words that are waited on are lines apart. */
export const CONTROL = {
  /** 1 while the main thread wants every vCPU out of the guest: nothing may block for long. */
  holdStill: 0,
  /** What the guest asked for through a power or reset register: one of POWER_REQUEST. */
  powerRequest: 1,
  /** Guards the legacy devices: 0 free, 1 taken, 2 taken with others waiting. */
  legacyLock: 16,
  /** Bytes ever put into and taken from each ring, modulo 2^32. */
  outHead: 32,
  outTail: 48,
  inHead: 64,
  inTail: 80,
  /** Output that was dropped because the machine was being stopped while its console was full. */
  outDropped: 96,
} as const

export const POWER_REQUEST = { none: 0, off: 1, reboot: 2 } as const

/** Blocks of the legacy page, in words. */
export const LEGACY = { serial: 0, i8042: 64, rtc: 80, counters: 128 } as const

export const COUNTER = {
  unclaimedPortReads: 0,
  unclaimedPortWrites: 1,
  unclaimedMmioReads: 2,
  unclaimedMmioWrites: 3,
  /** Every access that came out of the guest to us: what hardware would call exits. */
  portReads: 4,
  portWrites: 5,
  mmioReads: 6,
  mmioWrites: 7,
} as const

if (SLOTS_OFFSET + MAX_SLOTS * SLOT_SHARED_SIZE > DEVICES_END) {
  throw new Error('the device slots do not fit their region')
}

export const controlWords = (wasm: WebAssembly.Memory): Int32Array => new Int32Array(wasm.buffer, CONTROL_OFFSET, 128)

/** `count` words of the legacy page from word `block`. */
export const legacyWords = (wasm: WebAssembly.Memory, block: number, count: number): Int32Array =>
  new Int32Array(wasm.buffer, LEGACY_OFFSET + block * 4, count)
