/**
 * The guest's side of a device: its virtio-mmio window, served on the vCPU's own thread from the shared page.
 * VIRTIO 1.2, section 4.2. Nothing here trusts the guest and nothing here throws: what the specification does not allow
 * is ignored and counted.
 */
import { ringBell } from '../../host/bell.ts'
import type { GuestMemory } from '../../memory/guest-memory.ts'
import { F_VERSION_1 } from '../features.ts'
import type { VirtioSlot } from '../slot.ts'
import { type Handshake, ThreadHandshake } from './handshake.ts'
import * as page from './page.ts'
import * as reg from './registers.ts'

/** Registers that can be read; bit for bit what the face has. */
const READABLE: readonly number[] = [
  ...[reg.MAGIC_VALUE, reg.VERSION, reg.DEVICE_ID, reg.VENDOR_ID, reg.DEVICE_FEATURES, reg.QUEUE_NUM_MAX],
  ...[reg.QUEUE_READY, reg.INTERRUPT_STATUS, reg.STATUS, reg.SHM_LEN_LOW, reg.SHM_LEN_HIGH, reg.SHM_BASE_LOW],
  ...[reg.SHM_BASE_HIGH, reg.QUEUE_RESET, reg.CONFIG_GENERATION],
]
const STATUS_KNOWN =
  reg.STATUS_ACKNOWLEDGE |
  reg.STATUS_DRIVER |
  reg.STATUS_FEATURES_OK |
  reg.STATUS_DRIVER_OK |
  reg.STATUS_NEEDS_RESET |
  reg.STATUS_FAILED

export class MmioWindow {
  readonly address: number
  readonly #page: page.RegisterPage
  readonly #words: Int32Array
  readonly #face: Int32Array
  readonly #config: Uint8Array
  readonly #readable = new Uint8Array(reg.CONFIG / 4)
  readonly #slot: VirtioSlot
  readonly #handshake: Handshake

  constructor(memory: GuestMemory, slot: VirtioSlot, handshake: Handshake = new ThreadHandshake(slot.controlFd)) {
    const shared = new page.RegisterPage(memory, slot.shared.registers)
    this.address = slot.address
    this.#page = shared
    this.#words = shared.words
    this.#face = shared.face
    for (const register of READABLE) this.#readable[register / 4] = 1
    this.#config = shared.config
    this.#slot = slot
    this.#handshake = handshake
  }

  /** Fills `size` bytes of `data`. `offset` is within the window. */
  read(offset: number, size: number, data: DataView): void {
    if (offset >= reg.CONFIG) {
      this.#readConfig(offset - reg.CONFIG, size, data)
      return
    }
    // Everything below the configuration space is 32 bits wide and aligned (4.2.2.2).
    const value = size === 4 && (offset & 3) === 0 ? this.#readRegister(offset) : this.#bad()
    for (let i = 0; i < size; i++) data.setUint8(i, i < 4 ? value >>> (8 * i) : 0)
  }

  write(offset: number, size: number, data: DataView): void {
    if (offset >= reg.CONFIG) this.#writeConfig(offset - reg.CONFIG, size, data)
    else if (size === 4 && (offset & 3) === 0) this.#writeRegister(offset, data.getUint32(0, true))
    else this.#bad()
  }

  #bad(): number {
    Atomics.add(this.#words, page.W_BAD_ACCESSES, 1)
    return 0
  }

  #readRegister(offset: number): number {
    if (offset === reg.CONFIG_GENERATION) return this.#settledGeneration()
    return this.#readable[offset >>> 2] === 1 ? Atomics.load(this.#face, offset >>> 2) : this.#bad()
  }

  #writeRegister(offset: number, value: number): void {
    const words = this.#words
    switch (offset) {
      case reg.DEVICE_FEATURES_SEL:
        words[page.W_OFFERED_SEL] = value
        this.#page.showSelected()
        return
      case reg.DRIVER_FEATURES_SEL:
        words[page.W_ACCEPTED_SEL] = value
        return
      case reg.DRIVER_FEATURES:
        this.#acceptFeatures(value)
        return
      case reg.QUEUE_SEL:
        words[page.W_QUEUE_SEL] = value
        this.#page.showSelected()
        return
      case reg.QUEUE_NUM:
        this.#setQueueField(page.Q_NUM, value)
        return
      case reg.QUEUE_READY:
        this.#setQueueReady(value)
        return
      case reg.QUEUE_DESC_LOW:
        this.#setQueueField(page.Q_DESC_LOW, value)
        return
      case reg.QUEUE_DESC_HIGH:
        this.#setQueueField(page.Q_DESC_HIGH, value)
        return
      case reg.QUEUE_DRIVER_LOW:
        this.#setQueueField(page.Q_DRIVER_LOW, value)
        return
      case reg.QUEUE_DRIVER_HIGH:
        this.#setQueueField(page.Q_DRIVER_HIGH, value)
        return
      case reg.QUEUE_DEVICE_LOW:
        this.#setQueueField(page.Q_DEVICE_LOW, value)
        return
      case reg.QUEUE_DEVICE_HIGH:
        this.#setQueueField(page.Q_DEVICE_HIGH, value)
        return
      case reg.QUEUE_NOTIFY:
        this.#notify(value)
        return
      case reg.INTERRUPT_ACK:
        Atomics.and(this.#face, page.F_INTERRUPT, ~value)
        return
      case reg.STATUS:
        this.#lock()
        this.#setStatus(value)
        this.#unlock()
        return
      case reg.SHM_SEL:
        return
      default:
        this.#bad()
    }
  }

  /** Queues are set up between FEATURES_OK and DRIVER_OK, and while not ready; at other times their registers do not move. */
  #queueWritable(): number {
    const status = Atomics.load(this.#face, page.F_STATUS)
    const inSetup =
      (status & reg.STATUS_FEATURES_OK) !== 0 && (status & (reg.STATUS_DRIVER_OK | reg.STATUS_FAILED)) === 0
    const at = inSetup ? this.#page.selectedQueue : -1
    if (at < 0) this.#bad()
    return at
  }

  #setQueueField(field: number, value: number): void {
    const at = this.#queueWritable()
    if (at < 0) return
    if (this.#words[at + page.Q_READY] !== 0) this.#bad()
    else this.#words[at + field] = value
  }

  #setQueueReady(value: number): void {
    const at = this.#queueWritable()
    if (at < 0) return
    this.#words[at + page.Q_READY] = value & 1
    this.#page.showSelected()
  }

  #acceptFeatures(value: number): void {
    const words = this.#words
    const status = Atomics.load(this.#face, page.F_STATUS)
    const select = words[page.W_ACCEPTED_SEL]! >>> 0
    // Negotiation is over once FEATURES_OK is set (3.1.1).
    if ((status & reg.STATUS_DRIVER) === 0 || (status & reg.STATUS_FEATURES_OK) !== 0) this.#bad()
    else if (select < 2) words[page.W_ACCEPTED + select] = value
    else if (value !== 0) this.#bad()
  }

  /** Arrives here only when no accelerator rang the doorbell itself. */
  #notify(queue: number): void {
    const doorbell = this.#slot.doorbells[queue]
    if (doorbell === undefined) {
      this.#bad()
      return
    }
    Atomics.add(this.#words, page.W_NOTIFIES, 1)
    ringBell(doorbell.fd)
  }

  #setStatus(value: number): void {
    const words = this.#words
    if (value === 0) {
      if (!this.#handshake.request(words, page.COMMAND_RESET))
        Atomics.or(this.#face, page.F_STATUS, reg.STATUS_NEEDS_RESET)
      return
    }
    const old = Atomics.load(this.#face, page.F_STATUS)
    // The driver only adds bits (2.1.1); DEVICE_NEEDS_RESET is the device's own.
    const kept = old & ~reg.STATUS_NEEDS_RESET
    const added = value & ~old & STATUS_KNOWN & ~reg.STATUS_NEEDS_RESET
    if ((value & kept) !== kept || (value & ~STATUS_KNOWN) !== 0) {
      this.#bad()
      return
    }
    if (added & reg.STATUS_FAILED) {
      Atomics.or(this.#face, page.F_STATUS, reg.STATUS_FAILED)
      return
    }
    let next = old | (added & (reg.STATUS_ACKNOWLEDGE | reg.STATUS_DRIVER))
    if (added & reg.STATUS_FEATURES_OK) {
      if (next & reg.STATUS_DRIVER && this.#featuresAcceptable()) next |= reg.STATUS_FEATURES_OK
      else this.#bad()
    }
    const activate = (added & reg.STATUS_DRIVER_OK) !== 0 && (next & reg.STATUS_FEATURES_OK) !== 0
    if (added & reg.STATUS_DRIVER_OK) {
      if (activate) next |= reg.STATUS_DRIVER_OK
      else this.#bad()
    }
    Atomics.or(this.#face, page.F_STATUS, next)
    if (activate && !this.#handshake.request(words, page.COMMAND_ACTIVATE)) {
      Atomics.or(this.#face, page.F_STATUS, reg.STATUS_NEEDS_RESET)
    }
  }

  /** A subset of what was offered, with VERSION_1: there is no legacy interface here (6.1). */
  #featuresAcceptable(): boolean {
    const words = this.#words
    const excess0 = words[page.W_ACCEPTED]! & ~words[page.W_OFFERED]!
    const excess1 = words[page.W_ACCEPTED + 1]! & ~words[page.W_OFFERED + 1]!
    return excess0 === 0 && excess1 === 0 && (words[page.W_ACCEPTED + 1]! & (1 << (F_VERSION_1 - 32))) !== 0
  }

  #lock(): void {
    while (Atomics.compareExchange(this.#words, page.W_LOCK, 0, 1) !== 0) Atomics.wait(this.#words, page.W_LOCK, 1, 10)
  }

  #unlock(): void {
    Atomics.store(this.#words, page.W_LOCK, 0)
    Atomics.notify(this.#words, page.W_LOCK, 1)
  }

  /** Waits out a change in progress, so that two equal readings around a field's reads mean that the field is whole (2.5.2). */
  #settledGeneration(): number {
    const face = this.#face
    for (let tries = 0; tries < 100; tries++) {
      const generation = Atomics.load(face, page.F_GENERATION)
      if ((generation & 1) === 0) return generation
      Atomics.wait(face, page.F_GENERATION, generation, 1)
    }
    return Atomics.load(face, page.F_GENERATION)
  }

  #readConfig(offset: number, size: number, data: DataView): void {
    const end = this.#words[page.W_CONFIG_SIZE]!
    for (let i = 0; i < size; i++) data.setUint8(i, offset + i < end ? this.#config[offset + i]! : 0)
    if (offset + size > end) this.#bad()
  }

  #writeConfig(offset: number, size: number, data: DataView): void {
    const words = this.#words
    const status = Atomics.load(this.#face, page.F_STATUS)
    const inside = offset >= words[page.W_WRITABLE_FROM]! && offset + size <= words[page.W_WRITABLE_TO]!
    if (!inside || (status & reg.STATUS_DRIVER) === 0) {
      this.#bad()
      return
    }
    for (let i = 0; i < size; i++) this.#config[offset + i] = data.getUint8(i)
    Atomics.store(words, page.W_CONFIG_WRITTEN, 1)
    ringBell(this.#slot.controlFd)
  }
}
