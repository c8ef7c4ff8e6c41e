/**
 * A model of a virtio driver that works directly on guest memory and a device's window, for tests. It keeps to VIRTIO 1.2
 * (3.1.1, 2.7) unless told otherwise: everything it writes can also be written by hand, which is what hostile tests do.
 */
import type { GuestMemory } from '../../memory/guest-memory.ts'
import * as reg from '../mmio/registers.ts'
import type { MmioWindow } from '../mmio/window.ts'

export const NEXT = 1
export const WRITE = 2
export const INDIRECT = 4

export interface Segment {
  readonly address: number
  readonly length: number
  readonly write?: boolean
}

export interface Used {
  readonly id: number
  readonly length: number
}

/** The guest's window accesses, as a CPU would make them. */
export class WindowAccess {
  readonly window: MmioWindow
  readonly #data = new DataView(new ArrayBuffer(8))

  constructor(window: MmioWindow) {
    this.window = window
  }

  read(offset: number, size = 4): number {
    this.window.read(offset, size, this.#data)
    return size === 1
      ? this.#data.getUint8(0)
      : size === 2
        ? this.#data.getUint16(0, true)
        : this.#data.getUint32(0, true)
  }

  write(offset: number, value: number, size = 4): void {
    this.#data.setUint32(0, value, true)
    this.window.write(offset, size, this.#data)
  }
}

/** The driver's side of one split queue. */
export class DriverQueue {
  readonly index: number
  readonly size: number
  readonly desc: number
  readonly avail: number
  readonly used: number
  readonly #memory: GuestMemory
  readonly #access: WindowAccess
  readonly #eventIdx: boolean
  readonly #allocate: (length: number, align: number) => number
  readonly #free: number[]
  readonly #chains = new Map<number, number[]>()
  #availIdx = 0
  #kickedIdx = 0
  #usedIdx = 0

  constructor(
    memory: GuestMemory,
    access: WindowAccess,
    allocate: (length: number, align: number) => number,
    index: number,
    size: number,
    eventIdx: boolean,
  ) {
    this.#memory = memory
    this.#access = access
    this.#allocate = allocate
    this.#eventIdx = eventIdx
    this.index = index
    this.size = size
    this.desc = allocate(16 * size, 16)
    this.avail = allocate(6 + 2 * size, 2)
    this.used = allocate(6 + 8 * size, 4)
    memory.slice(this.desc, 16 * size).fill(0)
    memory.slice(this.avail, 6 + 2 * size).fill(0)
    memory.slice(this.used, 6 + 8 * size).fill(0)
    this.#free = Array.from({ length: size }, (_, i) => size - 1 - i)
  }

  get freeDescriptors(): number {
    return this.#free.length
  }

  writeDescriptor(
    index: number,
    address: number,
    length: number,
    flags: number,
    next: number,
    table = this.desc,
  ): void {
    const at = table + 16 * index
    this.#memory.writeU64(at, BigInt(address))
    this.#memory.writeU32(at + 8, length)
    this.#memory.writeU16(at + 12, flags)
    this.#memory.writeU16(at + 14, next)
  }

  /** Puts `head` into the avail ring and moves avail.idx. */
  offer(head: number): void {
    this.#memory.writeU16(this.avail + 4 + 2 * (this.#availIdx % this.size), head)
    this.setAvailIndex(this.#availIdx + 1)
  }

  setAvailIndex(value: number): void {
    this.#availIdx = value & 0xffff
    this.#memory.writeU16(this.avail + 2, this.#availIdx)
  }

  /** Makes a buffer of `segments` available, in a chain or through an indirect table; its head. Does not ring. */
  add(segments: readonly Segment[], indirect = false): number {
    const wanted = indirect ? 1 : segments.length
    if (this.#free.length < wanted) throw new Error(`queue ${this.index} has no ${wanted} free descriptors`)
    const taken = Array.from({ length: wanted }, () => this.#free.pop()!)
    const head = taken[0]!
    const table = indirect ? this.#allocate(16 * segments.length, 16) : this.desc
    segments.forEach((segment, i) => {
      const last = i === segments.length - 1
      const flags = (segment.write ? WRITE : 0) | (last ? 0 : NEXT)
      const next = last ? 0 : indirect ? i + 1 : taken[i + 1]!
      this.writeDescriptor(indirect ? i : taken[i]!, segment.address, segment.length, flags, next, table)
    })
    if (indirect) this.writeDescriptor(head, table, 16 * segments.length, INDIRECT, 0)
    this.#chains.set(head, taken)
    this.offer(head)
    return head
  }

  /** Rings the doorbell if the device wants that; true when it did. */
  kick(): boolean {
    const from = this.#kickedIdx
    const to = this.#availIdx
    this.#kickedIdx = to
    if (this.#eventIdx) {
      const event = this.#memory.readU16(this.used + 4 + 8 * this.size)
      if (((to - event - 1) & 0xffff) >= ((to - from) & 0xffff)) return false
    } else if (this.#memory.readU16(this.used) & 1) return false
    this.ring()
    return true
  }

  /** Rings whether the device wants that or not. */
  ring(): void {
    this.#access.write(reg.QUEUE_NOTIFY, this.index)
  }

  /** What the device has returned since the last call. Its descriptors are free again. */
  takeUsed(): Used[] {
    const done: Used[] = []
    while (this.#usedIdx !== this.#memory.readU16(this.used + 2)) {
      const at = this.used + 4 + 8 * (this.#usedIdx % this.size)
      const id = this.#memory.readU32(at)
      done.push({ id, length: this.#memory.readU32(at + 4) })
      this.#free.push(...(this.#chains.get(id) ?? []))
      this.#chains.delete(id)
      this.#usedIdx = (this.#usedIdx + 1) & 0xffff
    }
    // used_event: interrupt at the next one.
    this.#memory.writeU16(this.avail + 4 + 2 * this.size, this.#usedIdx)
    return done
  }

  /** With EVENT_IDX: no interrupt before `count` more buffers were returned. */
  setUsedEvent(count: number): void {
    this.#memory.writeU16(this.avail + 4 + 2 * this.size, (this.#usedIdx + count - 1) & 0xffff)
  }
}

export class DriverModel extends WindowAccess {
  readonly memory: GuestMemory
  queues: DriverQueue[] = []
  accepted: readonly number[] = []
  #next: number
  readonly #start: number

  /** Rings and buffers are allocated from guest-physical `start` up. */
  constructor(memory: GuestMemory, window: MmioWindow, start = 0x10_0000) {
    super(window)
    this.memory = memory
    this.#next = start
    this.#start = start
  }

  /** Guest memory for a buffer; never freed but by `start`. */
  readonly allocate = (length: number, align = 16): number => {
    const address = Math.ceil(this.#next / align) * align
    this.#next = address + length
    return address
  }

  get status(): number {
    return this.read(reg.STATUS)
  }

  offered(): Set<number> {
    const bits = new Set<number>()
    for (let word = 0; word < 2; word++) {
      this.write(reg.DEVICE_FEATURES_SEL, word)
      const value = this.read(reg.DEVICE_FEATURES)
      for (let bit = 0; bit < 32; bit++) if (value & (1 << bit)) bits.add(32 * word + bit)
    }
    return bits
  }

  writeFeatures(bits: readonly number[]): void {
    for (let word = 0; word < 2; word++) {
      let value = 0
      for (const bit of bits) if (bit >>> 5 === word) value |= 1 << (bit & 31)
      this.write(reg.DRIVER_FEATURES_SEL, word)
      this.write(reg.DRIVER_FEATURES, value >>> 0)
    }
  }

  reset(): void {
    this.write(reg.STATUS, 0)
    this.#next = this.#start
    this.queues = []
  }

  /** Up to and including FEATURES_OK. By default takes all that is offered. */
  negotiate(refuse: readonly number[] = []): boolean {
    this.reset()
    this.write(reg.STATUS, reg.STATUS_ACKNOWLEDGE)
    this.write(reg.STATUS, reg.STATUS_ACKNOWLEDGE | reg.STATUS_DRIVER)
    this.accepted = [...this.offered()].filter(bit => !refuse.includes(bit))
    this.writeFeatures(this.accepted)
    this.write(reg.STATUS, this.status | reg.STATUS_FEATURES_OK)
    return (this.status & reg.STATUS_FEATURES_OK) !== 0
  }

  /** Sets one queue up and makes it ready. */
  setupQueue(index: number, size?: number): DriverQueue {
    this.write(reg.QUEUE_SEL, index)
    const queue = new DriverQueue(
      this.memory,
      this,
      this.allocate,
      index,
      size ?? this.read(reg.QUEUE_NUM_MAX),
      this.accepted.includes(29),
    )
    this.writeQueueRegisters(queue.size, queue.desc, queue.avail, queue.used)
    this.write(reg.QUEUE_READY, 1)
    this.queues[index] = queue
    return queue
  }

  writeQueueRegisters(size: number, desc: number, avail: number, used: number): void {
    const high = (address: number): number => Math.floor(address / 0x1_0000_0000) >>> 0
    this.write(reg.QUEUE_NUM, size)
    this.write(reg.QUEUE_DESC_LOW, desc >>> 0)
    this.write(reg.QUEUE_DESC_HIGH, high(desc))
    this.write(reg.QUEUE_DRIVER_LOW, avail >>> 0)
    this.write(reg.QUEUE_DRIVER_HIGH, high(avail))
    this.write(reg.QUEUE_DEVICE_LOW, used >>> 0)
    this.write(reg.QUEUE_DEVICE_HIGH, high(used))
  }

  driverOk(): void {
    this.write(reg.STATUS, this.status | reg.STATUS_DRIVER_OK)
  }

  /** The whole of 3.1.1: `count` queues, of the largest size or `size`. */
  start(count: number, size?: number, refuse: readonly number[] = []): void {
    if (!this.negotiate(refuse)) throw new Error('the device refused its own features')
    for (let index = 0; index < count; index++) this.setupQueue(index, size)
    this.driverOk()
  }

  /** A buffer with these bytes in it. */
  buffer(bytes: Uint8Array | readonly number[]): Segment {
    const address = this.allocate(bytes.length)
    this.memory.slice(address, bytes.length).set(bytes)
    return { address, length: bytes.length }
  }

  /** A device-writable buffer, filled with 0xee so that what was not written shows. */
  space(length: number): Segment {
    const address = this.allocate(length)
    this.memory.slice(address, length).fill(0xee)
    return { address, length, write: true }
  }

  bytes(segment: Segment): Uint8Array {
    return new Uint8Array(this.memory.slice(segment.address, segment.length))
  }

  config(offset: number, size = 4): number {
    return this.read(reg.CONFIG + offset, size)
  }
}
