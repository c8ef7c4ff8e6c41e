/**
 * A device's register page in the shared memory: what vCPU workers and the device's worker have in common.
 *
 *   0x000  words: identity, features, status, selectors, handshake
 *   0x080  words counted by vCPU workers
 *   0x200  the device's own counters, 64-bit floats written by its worker alone
 *   0x400  queues: 32 of 64 bytes each
 *   0xc00  the device's configuration space
 *
 * Words are `Atomics` territory: status bits are set from both sides.
 */
import type { GuestMemory } from '../../memory/guest-memory.ts'
import { GUEST_FAULTS } from '../errors.ts'

export const MAX_QUEUES = 32
export const CONFIG_OFFSET = 0xc00
export const CONFIG_SIZE = 0x400
const COUNTERS_OFFSET = 0x200
export const MAX_COUNTERS = 64
const QUEUES_WORD = 0x400 / 4
const QUEUE_WORDS = 16

/** Word indices within the page. */
export const W_DEVICE_ID = 0
export const W_QUEUES = 1
export const W_CONFIG_SIZE = 2
/** The bytes of configuration space that the driver may write: from, to (exclusive). */
export const W_WRITABLE_FROM = 3
export const W_WRITABLE_TO = 4
export const W_STATUS = 5
export const W_INTERRUPT = 6
/** Odd while the device's worker is changing the configuration space. */
export const W_GENERATION = 7
export const W_OFFERED = 8 // and 9
export const W_ACCEPTED = 10 // and 11
export const W_OFFERED_SEL = 12
export const W_ACCEPTED_SEL = 13
export const W_QUEUE_SEL = 14
/** Held by a vCPU's worker while it changes the status. */
export const W_LOCK = 15
/** What is asked of the device's worker, the number of the request, and the last that was done. */
export const W_COMMAND = 16
export const W_REQUEST = 17
export const W_DONE = 18
/** Set when the device's worker is gone: nobody waits for it any more. */
export const W_DEAD = 19
/** Set by a config write, cleared by the device's worker. */
export const W_CONFIG_WRITTEN = 20
/** The last reason for DEVICE_NEEDS_RESET, an index into GUEST_FAULTS. */
export const W_FAULT = 21
export const W_FAULTS = 22
export const W_ACTIVATIONS = 23
export const W_RESETS = 24
export const W_INTERRUPTS = 25
/** Counted by vCPU workers: accesses that the specification does not allow, and doorbells that took an exit. */
export const W_BAD_ACCESSES = 32
export const W_NOTIFIES = 33

export const COMMAND_ACTIVATE = 1
export const COMMAND_RESET = 2

/** Word indices within a queue's entry. */
export const Q_NUM_MAX = 0
export const Q_NUM = 1
export const Q_READY = 2
export const Q_DESC_LOW = 3
export const Q_DESC_HIGH = 4
export const Q_DRIVER_LOW = 5
export const Q_DRIVER_HIGH = 6
export const Q_DEVICE_LOW = 7
export const Q_DEVICE_HIGH = 8

/** The word index of queue `queue`'s entry. */
export const queueWord = (queue: number): number => QUEUES_WORD + queue * QUEUE_WORDS

/** Views of one page; cheap, made once a thread and device. */
export class RegisterPage {
  readonly words: Int32Array
  readonly config: Uint8Array
  readonly counters: Float64Array

  constructor(memory: GuestMemory, offset: number) {
    const { buffer } = memory.wasm
    this.words = new Int32Array(buffer, offset, CONFIG_OFFSET / 4)
    this.config = new Uint8Array(buffer, offset + CONFIG_OFFSET, CONFIG_SIZE)
    this.counters = new Float64Array(buffer, offset + COUNTERS_OFFSET, MAX_COUNTERS)
  }
}

/** A device's counters as any thread can read them, for metrics. */
export function pageMetrics(page: RegisterPage, counterNames: readonly string[]): Record<string, number | string> {
  const { words } = page
  const metrics: Record<string, number | string> = {
    status: words[W_STATUS]!,
    activations: words[W_ACTIVATIONS]!,
    resets: words[W_RESETS]!,
    interrupts: words[W_INTERRUPTS]! >>> 0,
    notifyExits: words[W_NOTIFIES]! >>> 0,
    badAccesses: words[W_BAD_ACCESSES]! >>> 0,
    guestFaults: words[W_FAULTS]! >>> 0,
    lastGuestFault: GUEST_FAULTS[words[W_FAULT]!] ?? 'none',
  }
  counterNames.forEach((name, index) => {
    metrics[name] = page.counters[index]!
  })
  return metrics
}
