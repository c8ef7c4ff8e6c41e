/**
 * A device's two pages in the shared memory: what vCPU workers and the device's worker have in common.
 *
 *   0x0000  words: features, selectors, handshake
 *   0x0080  words counted by vCPU workers
 *   0x0200  the device's own counters, 64-bit floats written by its worker alone
 *   0x0400  queues: 32 of 64 bytes each
 *   0x1000  the face: the window as the guest reads it, register by register, with the configuration space at its 0x100
 *
 * Words are `Atomics` territory: status bits are set from both sides. An accelerator that can (`VirtualMachine.showPage`) lets the guest read
 * the face itself, without an exit; so nothing else may be in it, and it is never out of date.
 */
import type { GuestMemory } from '../../memory/guest-memory.ts'
import { GUEST_FAULTS } from '../errors.ts'
import * as reg from './registers.ts'

export const MAX_QUEUES = 32
const WORDS_SIZE = 0xc00
const FACE_OFFSET = 0x1000
const FACE_SIZE = 0x1000
export const CONFIG_SIZE = 0x400
const COUNTERS_OFFSET = 0x200
export const MAX_COUNTERS = 64
const QUEUES_WORD = 0x400 / 4
const QUEUE_WORDS = 16

/** Word indices within the face. */
export const F_DEVICE_ID = reg.DEVICE_ID / 4
const F_DEVICE_FEATURES = reg.DEVICE_FEATURES / 4
const F_QUEUE_NUM_MAX = reg.QUEUE_NUM_MAX / 4
const F_QUEUE_READY = reg.QUEUE_READY / 4
export const F_INTERRUPT = reg.INTERRUPT_STATUS / 4
export const F_STATUS = reg.STATUS / 4
/** Odd while the device's worker is changing the configuration space. */
export const F_GENERATION = reg.CONFIG_GENERATION / 4

/** Word indices within the first page. */
export const W_QUEUES = 1
export const W_CONFIG_SIZE = 2
/** The bytes of configuration space that the driver may write: from, to (exclusive). */
export const W_WRITABLE_FROM = 3
export const W_WRITABLE_TO = 4
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

/** Views of the two pages; cheap, made once a thread and device. */
export class RegisterPage {
  readonly words: Int32Array
  readonly face: Int32Array
  readonly config: Uint8Array
  readonly counters: Float64Array

  constructor(memory: GuestMemory, offset: number) {
    const { buffer } = memory.wasm
    this.words = new Int32Array(buffer, offset, WORDS_SIZE / 4)
    this.face = new Int32Array(buffer, offset + FACE_OFFSET, FACE_SIZE / 4)
    this.config = new Uint8Array(buffer, offset + FACE_OFFSET + reg.CONFIG, CONFIG_SIZE)
    this.counters = new Float64Array(buffer, offset + COUNTERS_OFFSET, MAX_COUNTERS)
  }

  /** The face of a device that has just been made; no device id yet. */
  paint(): void {
    const { face } = this
    face.fill(0)
    face[reg.MAGIC_VALUE / 4] = reg.MAGIC
    face[reg.VERSION / 4] = reg.MMIO_VERSION
    face[reg.VENDOR_ID / 4] = reg.VENDOR
    // No shared memory regions: a length of all ones says so (4.2.2).
    for (const register of [reg.SHM_LEN_LOW, reg.SHM_LEN_HIGH, reg.SHM_BASE_LOW, reg.SHM_BASE_HIGH])
      face[register / 4] = -1
  }

  /** The selected queue's entry in words, or -1 when there is no such queue. */
  get selectedQueue(): number {
    const queue = this.words[W_QUEUE_SEL]! >>> 0
    return queue < this.words[W_QUEUES]! ? queueWord(queue) : -1
  }

  /** To be called after a selector, or what it selects, has changed. */
  showSelected(): void {
    const { words, face, selectedQueue: at } = this
    const select = words[W_OFFERED_SEL]! >>> 0
    face[F_DEVICE_FEATURES] = select < 2 ? words[W_OFFERED + select]! : 0
    face[F_QUEUE_NUM_MAX] = at < 0 ? 0 : words[at + Q_NUM_MAX]!
    face[F_QUEUE_READY] = at < 0 ? 0 : words[at + Q_READY]!
  }
}

/** A device's counters as any thread can read them, for metrics. */
export function pageMetrics(page: RegisterPage, counterNames: readonly string[]): Record<string, number | string> {
  const { words, face } = page
  const metrics: Record<string, number | string> = {
    status: face[F_STATUS]!,
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
