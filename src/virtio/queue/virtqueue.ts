/**
 * A split virtqueue on shared guest memory: VIRTIO 1.2, section 2.7. Allocates nothing after construction.
 *
 * Every field that the driver controls is read once into a local, checked, and only then used: the guest's other CPUs may
 * change it under us at any time. (ECMAScript forbids engines to repeat a read of shared memory, so once means once.)
 * Ring indices go through `Atomics`, whose sequential consistency is the full fence that EVENT_IDX needs: between
 * publishing used.idx and reading used_event, and between writing avail_event and reading avail.idx again.
 */
import type { IoVector } from '../../host/io-vector.ts'
import type { DirtyLog } from '../../memory/dirty-log.ts'
import type { GuestMemory } from '../../memory/guest-memory.ts'
import { CodeWatch } from '../../soft/code-watch.ts'
import { GuestFault } from '../errors.ts'

const DESC_SIZE = 16
const DESC_NEXT = 1
const DESC_WRITE = 2
const DESC_INDIRECT = 4
/** The longest indirect table: as many segments as preadv takes. */
const MAX_INDIRECT = 1024
const MAX_CHAIN_BYTES = 0xffff_ffff
const AVAIL_NO_INTERRUPT = 1
const USED_NO_NOTIFY = 1
const TWO_32 = 0x1_0000_0000

/** Where a queue is, as the driver set it up. Guest-physical addresses. */
export interface QueueSetup {
  readonly size: number
  readonly desc: number
  readonly driver: number
  readonly device: number
}

/** Where a queue had got to. */
export interface QueuePosition {
  readonly nextAvail: number
  readonly nextUsed: number
}

export class Virtqueue {
  readonly index: number
  readonly maxSize: number
  readonly #memory: GuestMemory
  readonly #dirty: DirtyLog
  readonly #code: CodeWatch
  readonly #view: DataView
  readonly #u16: Uint16Array
  #ready = false
  #eventIdx = false
  #indirect = false
  #size = 0
  #mask = 0
  /** Offsets in the shared memory; those of 16-bit ring fields are indices into #u16. */
  #desc = 0
  #availFlags = 0
  #availIdx = 0
  #availRing = 0
  #usedEvent = 0
  #usedFlags = 0
  #usedIdx = 0
  #usedRing = 0
  #availEvent = 0
  #nextAvail = 0
  /** The last avail.idx that was read. */
  #availSeen = 0
  #nextUsed = 0
  #published = 0

  constructor(memory: GuestMemory, dirty: DirtyLog, index: number, maxSize: number) {
    this.index = index
    this.maxSize = maxSize
    this.#memory = memory
    this.#dirty = dirty
    this.#code = new CodeWatch(memory)
    this.#view = memory.view
    this.#u16 = new Uint16Array(memory.wasm.buffer)
  }

  get ready(): boolean {
    return this.#ready
  }

  get size(): number {
    return this.#size
  }

  get position(): QueuePosition {
    return { nextAvail: this.#nextAvail, nextUsed: this.#nextUsed }
  }

  /** Starts on a queue that the driver has set up, after checking all of it (2.7, table of alignments). Throws GuestFault. */
  start(setup: QueueSetup, eventIdx: boolean, indirect: boolean, position?: QueuePosition): void {
    const { size, desc, driver, device } = setup
    if (size === 0 || size > this.maxSize || (size & (size - 1)) !== 0) {
      throw new GuestFault('queue-size', `queue ${this.index} has size ${size}: a power of two up to ${this.maxSize}`)
    }
    if (desc % 16 !== 0 || driver % 2 !== 0 || device % 4 !== 0) {
      throw new GuestFault('queue-alignment', `queue ${this.index} is not aligned to 16, 2 and 4 bytes`)
    }
    const descOffset = this.#memory.offsetOf(desc, size * DESC_SIZE)
    const driverOffset = this.#memory.offsetOf(driver, 6 + 2 * size)
    const deviceOffset = this.#memory.offsetOf(device, 6 + 8 * size)
    if (descOffset < 0 || driverOffset < 0 || deviceOffset < 0) {
      throw new GuestFault('queue-not-in-ram', `queue ${this.index} is not all in RAM`)
    }
    this.#size = size
    this.#mask = size - 1
    this.#desc = descOffset
    this.#availFlags = driverOffset / 2
    this.#availIdx = driverOffset / 2 + 1
    this.#availRing = driverOffset / 2 + 2
    this.#usedEvent = driverOffset / 2 + 2 + size
    this.#usedFlags = deviceOffset / 2
    this.#usedIdx = deviceOffset / 2 + 1
    this.#usedRing = deviceOffset + 4
    this.#availEvent = deviceOffset / 2 + 2 + 4 * size
    this.#eventIdx = eventIdx
    this.#indirect = indirect
    this.#nextAvail = position?.nextAvail ?? 0
    this.#availSeen = this.#nextAvail
    this.#nextUsed = position?.nextUsed ?? 0
    this.#published = this.#nextUsed
    this.#ready = true
  }

  stop(): void {
    this.#ready = false
  }

  /** True when the driver has made a buffer available. Throws GuestFault when avail.idx is impossible. */
  get hasAvailable(): boolean {
    return this.#ready && (this.#nextAvail !== this.#availSeen || this.#look())
  }

  #look(): boolean {
    const idx = Atomics.load(this.#u16, this.#availIdx)
    const pending = (idx - this.#nextAvail) & 0xffff
    if (pending > this.#size) {
      throw new GuestFault('avail-index', `queue ${this.index}: avail.idx is ahead by ${pending} of ${this.#size}`)
    }
    this.#availSeen = idx
    return pending !== 0
  }

  /**
   * Takes the next available buffer: appends its device-readable and device-writable parts to the two lists, and returns
   * its head for `push`. -1 when there is none. Throws GuestFault for anything the specification does not allow.
   */
  pop(readable: IoVector, writable: IoVector): number {
    if (!this.hasAvailable) return -1
    const head = this.#u16[this.#availRing + (this.#nextAvail & this.#mask)]!
    if (head >= this.#size)
      throw new GuestFault('descriptor-index', `queue ${this.index}: head ${head} of ${this.#size}`)
    this.#walk(head, readable, writable)
    this.#nextAvail = (this.#nextAvail + 1) & 0xffff
    return head
  }

  /** Gives back the last `count` buffers that were popped and not pushed, as if they had not been taken. */
  unpop(count = 1): void {
    this.#nextAvail = (this.#nextAvail - count) & 0xffff
  }

  #walk(head: number, readable: IoVector, writable: IoVector): void {
    const view = this.#view
    let table = this.#desc
    let limit = this.#size
    let index = head
    let seen = 0
    let inIndirect = false
    let sawWritable = false
    for (;;) {
      const at = table + index * DESC_SIZE
      const address = view.getUint32(at + 4, true) * TWO_32 + view.getUint32(at, true)
      const length = view.getUint32(at + 8, true)
      const flagsAndNext = view.getUint32(at + 12, true)
      const flags = flagsAndNext & 0xffff
      if (++seen > limit) throw new GuestFault('descriptor-loop', `queue ${this.index}: a chain longer than its table`)
      if (flags & DESC_INDIRECT) {
        if (!this.#indirect) throw new GuestFault('indirect-unexpected', 'an indirect table that was not negotiated')
        if (inIndirect || flags & DESC_NEXT) throw new GuestFault('indirect-nested', 'an indirect table in a chain')
        if (length === 0 || length % DESC_SIZE !== 0 || length > MAX_INDIRECT * DESC_SIZE) {
          throw new GuestFault('indirect-size', `an indirect table of ${length} bytes`)
        }
        table = this.#memory.offsetOf(address, length)
        if (table < 0) throw new GuestFault('descriptor-address', 'an indirect table outside RAM')
        limit = length / DESC_SIZE
        index = 0
        seen = 0
        inIndirect = true
        continue
      }
      if (length === 0) throw new GuestFault('descriptor-length', 'a descriptor of no bytes')
      const offset = this.#memory.offsetOf(address, length)
      if (offset < 0) throw new GuestFault('descriptor-address', `a buffer of ${length} bytes outside RAM`)
      const list = flags & DESC_WRITE ? writable : readable
      if (flags & DESC_WRITE) sawWritable = true
      else if (sawWritable) throw new GuestFault('descriptor-order', 'a readable descriptor after a writable one')
      if (!list.push(offset, length))
        throw new GuestFault('descriptor-loop', 'more descriptors than a request can have')
      if (list.byteLength > MAX_CHAIN_BYTES) throw new GuestFault('descriptor-length', 'a chain of more than 4 GiB')
      if ((flags & DESC_NEXT) === 0) return
      index = flagsAndNext >>> 16
      if (index >= limit) throw new GuestFault('descriptor-index', `queue ${this.index}: next ${index} of ${limit}`)
    }
  }

  /** Returns a buffer to the driver with `written` bytes in it; seen by the driver at the next `publish`. */
  push(head: number, written: number): void {
    const at = this.#usedRing + 8 * (this.#nextUsed & this.#mask)
    this.#view.setUint32(at, head, true)
    this.#view.setUint32(at + 4, written, true)
    if (this.#dirty.enabled) this.#dirty.mark(at, 8)
    this.#nextUsed = (this.#nextUsed + 1) & 0xffff
  }

  /** As `push`, for a buffer that the device has written to. */
  pushWritten(head: number, writable: IoVector, written: number): void {
    this.noteWritten(writable, written)
    this.push(head, written)
  }

  /** Notes the pages of the first `written` bytes of `writable`: for incremental snapshots, and for vCPUs that have decoded code there. */
  noteWritten(writable: IoVector, written: number): void {
    this.#code.noteVector(writable, written)
    if (this.#dirty.enabled) this.#dirty.markVector(writable, written)
  }

  /** Makes all that was pushed visible; true when the driver wants an interrupt for it (2.7.7.2, 2.7.10). */
  publish(): boolean {
    const from = this.#published
    const to = this.#nextUsed
    if (from === to) return false
    Atomics.store(this.#u16, this.#usedIdx, to)
    this.#published = to
    if (this.#dirty.enabled) this.#dirty.mark(this.#usedIdx * 2, 2)
    if (!this.#eventIdx) return (Atomics.load(this.#u16, this.#availFlags) & AVAIL_NO_INTERRUPT) === 0
    const event = Atomics.load(this.#u16, this.#usedEvent)
    return ((to - event - 1) & 0xffff) < ((to - from) & 0xffff)
  }

  /** Asks for no doorbell while we are looking at the queue anyway. With EVENT_IDX there is nothing to do. */
  quiet(): void {
    if (!this.#ready || this.#eventIdx) return
    Atomics.store(this.#u16, this.#usedFlags, USED_NO_NOTIFY)
  }

  /** Asks for a doorbell at the next available buffer. True when one is there already: look again. */
  rearm(): boolean {
    if (!this.#ready) return false
    this.#armAt(this.#nextAvail)
    return this.hasAvailable
  }

  /** As `rearm`, when the buffers that are there do not suffice: for one more than those. True when there is one already. */
  rearmForMore(): boolean {
    if (!this.#ready) return false
    const seen = this.#availSeen
    this.#armAt(seen)
    this.#look()
    return this.#availSeen !== seen
  }

  #armAt(index: number): void {
    if (this.#eventIdx) {
      Atomics.store(this.#u16, this.#availEvent, index)
      if (this.#dirty.enabled) this.#dirty.mark(this.#availEvent * 2, 2)
    } else Atomics.store(this.#u16, this.#usedFlags, 0)
  }
}
