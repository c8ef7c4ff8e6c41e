/**
 * The device's side of virtio-mmio: carries one device in its worker. Serves activation and reset asked for through the
 * shared page, doorbells, interrupts, configuration changes, save and restore; and turns a guest's mistakes into
 * DEVICE_NEEDS_RESET (VIRTIO 1.2, 2.1.2), which stops this device and nothing else.
 */
import type { InterruptLine } from '../../accel/interrupt.ts'
import { hearBell } from '../../host/bell.ts'
import { EDGES, POLLIN, type PollSet } from '../../host/poll.ts'
import { DirtyLog } from '../../memory/dirty-log.ts'
import type { GuestMemory } from '../../memory/guest-memory.ts'
import type { DeviceLink, VirtioDevice } from '../device.ts'
import { GUEST_FAULTS, GuestFault, VirtioError } from '../errors.ts'
import { F_EVENT_IDX, F_INDIRECT_DESC, featureWord, TRANSPORT_FEATURES } from '../features.ts'
import { type QueuePosition, type QueueSetup, Virtqueue } from '../queue/virtqueue.ts'
import type { VirtioSlot } from '../slot.ts'
import type { DeviceLoad } from './load.ts'
import * as page from './page.ts'
import * as reg from './registers.ts'

const TWO_32 = 0x1_0000_0000
/** How often in a turn the guest's doorbell is answered within its own access: more of them are better served together. */
const AT_ONCE = 4

export class VirtioTransport implements DeviceLink {
  readonly memory: GuestMemory
  readonly poll: PollSet
  readonly counters: Float64Array
  readonly device: VirtioDevice
  readonly page: page.RegisterPage
  readonly queues: readonly Virtqueue[]
  readonly #slot: VirtioSlot
  readonly #words: Int32Array
  readonly #face: Int32Array
  readonly #line: InterruptLine
  readonly #onError: (error: unknown) => void
  readonly #dirty: DirtyLog
  readonly #load: DeviceLoad | undefined
  #active = false
  /** Queues to be looked at in the next turn, a bit each. */
  #rung = 0
  /** An interrupt that waits for another one. */
  #owed = false
  /** The turn in which the guest rang last, and how often. */
  #turn = 0
  #answered = 0
  readonly #onRung = (): void => this.#serveRung()
  readonly #onRest = (): void => this.settle()

  /**
   * `onError` hears of failures that are not the guest's: bugs, and host errors that no request could carry. `load`: the vCPU runs on this
   * thread, too, and nobody else rings; it hears how long the device keeps it waiting.
   */
  constructor(
    memory: GuestMemory,
    slot: VirtioSlot,
    device: VirtioDevice,
    poll: PollSet,
    line: InterruptLine,
    onError: (error: unknown) => void,
    load?: DeviceLoad,
  ) {
    if (device.queueSizes.length > page.MAX_QUEUES || slot.doorbells.length !== device.queueSizes.length) {
      throw new VirtioError(
        'BAD_DESCRIPTION',
        `slot ${slot.index} has ${slot.doorbells.length} doorbells for a device of ${device.queueSizes.length} queues ` +
          `(at most ${page.MAX_QUEUES}): make one doorbell a queue`,
      )
    }
    this.memory = memory
    this.poll = poll
    this.device = device
    this.page = new page.RegisterPage(memory, slot.shared.registers)
    this.counters = this.page.counters
    this.#slot = slot
    this.#words = this.page.words
    this.#face = this.page.face
    this.#line = line
    this.#onError = onError
    const dirty = new DirtyLog(memory)
    this.#dirty = dirty
    this.queues = device.queueSizes.map((size, index) => new Virtqueue(memory, dirty, index, size))
    this.#fillPage()
    this.#load = load
    this.#listen()
    device.attach(this)
  }

  #listen(): void {
    const { controlFd, doorbells } = this.#slot
    if (this.#load) {
      hearBell(controlFd, () => this.serveControl())
      for (const [queue, { fd }] of doorbells.entries()) hearBell(fd, () => this.#kicked(queue))
    } else {
      // Each ring is an edge: what the bells count is of no interest, and they are never read.
      this.poll.add(controlFd, POLLIN | EDGES, () => this.serveControl())
      for (const [queue, { fd }] of doorbells.entries()) this.poll.add(fd, POLLIN | EDGES, () => this.serve(queue))
    }
  }

  #unlisten(): void {
    const { controlFd, doorbells } = this.#slot
    for (const fd of [controlFd, ...doorbells.map(doorbell => doorbell.fd)]) {
      if (this.#load) hearBell(fd, undefined)
      else this.poll.remove(fd)
    }
  }

  get active(): boolean {
    return this.#active
  }

  #fillPage(): void {
    const words = this.#words
    const { device } = this
    words.fill(0)
    this.page.paint()
    this.page.config.set(device.config)
    const offered = [...TRANSPORT_FEATURES, ...device.features]
    words[page.W_OFFERED] = featureWord(offered, 0)
    words[page.W_OFFERED + 1] = featureWord(offered, 1)
    words[page.W_CONFIG_SIZE] = device.config.length
    words[page.W_WRITABLE_FROM] = device.writableConfig?.[0] ?? 0
    words[page.W_WRITABLE_TO] = device.writableConfig?.[1] ?? 0
    device.queueSizes.forEach((size, queue) => {
      words[page.queueWord(queue) + page.Q_NUM_MAX] = size
    })
    words[page.W_QUEUES] = device.queueSizes.length
    this.page.showSelected()
    // Last: a device id of 0 means that nothing is there.
    Atomics.store(this.#face, page.F_DEVICE_ID, device.type)
  }

  /** Does what a vCPU's worker asked for. Called when the control bell rings, and by inline handshakes. */
  serveControl(): void {
    const words = this.#words
    if (Atomics.exchange(words, page.W_CONFIG_WRITTEN, 0) !== 0) this.#guard(() => this.device.configWritten?.())
    const request = Atomics.load(words, page.W_REQUEST)
    if (request === Atomics.load(words, page.W_DONE)) return
    const command = Atomics.load(words, page.W_COMMAND)
    if (command === page.COMMAND_RESET) this.reset()
    else if (command === page.COMMAND_ACTIVATE) this.#activate()
    Atomics.store(words, page.W_DONE, request)
    Atomics.notify(words, page.W_DONE)
  }

  #activate(): void {
    if (this.#active) return
    this.#words[page.W_ACTIVATIONS]! += 1
    this.#guard(() => this.start())
    this.ringAll()
  }

  /** Rings every doorbell of an active device ourselves: a driver may have rung before we listened. */
  ringAll(): void {
    if (this.#active) for (const queue of this.queues) this.ring(queue.index)
  }

  /** Starts the queues and the device as the page has them. `positions`: of the restored queues. Throws GuestFault. */
  start(positions?: readonly (QueuePosition | undefined)[]): void {
    const accepted = [this.#words[page.W_ACCEPTED]!, this.#words[page.W_ACCEPTED + 1]!]
    const has = (bit: number): boolean => ((accepted[bit >>> 5] ?? 0) & (1 << (bit & 31))) !== 0
    for (const queue of this.queues) {
      const setup = this.queueSetup(queue.index)
      if (setup !== undefined) {
        queue.start(setup, has(F_EVENT_IDX), has(F_INDIRECT_DESC), positions?.[queue.index])
      }
    }
    this.#active = true
    this.device.activate(this.queues, has)
  }

  /** What the driver wrote into a queue's registers; undefined if it is not ready. */
  queueSetup(queue: number): QueueSetup | undefined {
    const words = this.#words
    const at = page.queueWord(queue)
    if (words[at + page.Q_READY] === 0) return undefined
    const wide = (low: number): number => (words[at + low + 1]! >>> 0) * TWO_32 + (words[at + low]! >>> 0)
    return {
      size: words[at + page.Q_NUM]! >>> 0,
      desc: wide(page.Q_DESC_LOW),
      driver: wide(page.Q_DRIVER_LOW),
      device: wide(page.Q_DEVICE_LOW),
    }
  }

  /** Asked for by the driver, or by the machine when it resets. Section 2.4.1: everything as at first, except the configuration space, which is the device's affair. */
  reset(): void {
    const words = this.#words
    this.#halt()
    words[page.W_RESETS]! += 1
    words[page.W_ACCEPTED] = 0
    words[page.W_ACCEPTED + 1] = 0
    words[page.W_OFFERED_SEL] = 0
    words[page.W_ACCEPTED_SEL] = 0
    words[page.W_QUEUE_SEL] = 0
    for (const queue of this.queues)
      words.fill(0, page.queueWord(queue.index) + page.Q_NUM, page.queueWord(queue.index + 1))
    this.page.showSelected()
    Atomics.store(this.#face, page.F_INTERRUPT, 0)
    Atomics.store(this.#face, page.F_STATUS, 0)
  }

  /** Stops using the queues. The device forgets what it was doing for this driver. */
  #halt(): void {
    const wasActive = this.#active
    this.#active = false
    for (const queue of this.queues) queue.stop()
    if (!wasActive) return
    try {
      this.device.reset()
    } catch (error) {
      this.#onError(error)
    }
  }

  /** The guest rings, in the middle of an access: the answer to what it sends may be on its way while it goes on. */
  #kicked(queue: number): void {
    const { turn, held } = this.poll
    if (turn !== this.#turn) {
      this.#turn = turn
      this.#answered = 0
    }
    if (held || this.device.isBusy === true || ++this.#answered > AT_ONCE) this.ring(queue)
    else this.serve(queue)
  }

  /** Lets the device look at a queue; true when there is more to do than was fair to do now. */
  serveQueue(queue: number): boolean {
    if (!this.#active) return false
    try {
      return this.#load ? this.#load.measure(this.device, queue) : this.device.notified(queue)
    } catch (error) {
      this.fail(error)
      return false
    }
  }

  #guard(work: () => void): void {
    try {
      work()
    } catch (error) {
      this.fail(error)
    }
  }

  /** The guest broke a rule, or the device broke down: it stops until the driver resets it. */
  fail(error: unknown): void {
    const words = this.#words
    if (!(error instanceof GuestFault)) this.#onError(error)
    words[page.W_FAULT] = GUEST_FAULTS.indexOf(error instanceof GuestFault ? error.code : 'device-error')
    Atomics.add(words, page.W_FAULTS, 1)
    this.#halt()
    const status = Atomics.or(this.#face, page.F_STATUS, reg.STATUS_NEEDS_RESET)
    if (status & reg.STATUS_DRIVER_OK) this.#interrupt(reg.INTERRUPT_CONFIG_CHANGE)
  }

  publish(queue: Virtqueue): void {
    if (queue.publish()) this.#interrupt(reg.INTERRUPT_USED_BUFFER)
  }

  serve(queue: number): void {
    if (this.serveQueue(queue)) this.ring(queue)
  }

  ring(queue: number): void {
    if (this.#rung === 0) this.poll.later(this.#onRung)
    this.#rung |= 1 << queue
  }

  #serveRung(): void {
    const rung = this.#rung
    this.#rung = 0
    for (let queue = 0; queue < this.queues.length; queue++) if ((rung & (1 << queue)) !== 0) this.serve(queue)
  }

  publishIdly(queue: Virtqueue): void {
    if (!queue.publish() || this.#owed) return
    this.#owed = true
    this.poll.atRest(this.#onRest)
  }

  /** Raises the interrupt that waits for another one, if there is one: nothing of it would be in a saved state. */
  settle(): void {
    if (this.#owed && this.#active) this.#interrupt(reg.INTERRUPT_USED_BUFFER)
    this.#owed = false
  }

  #interrupt(reason: number): void {
    // One interrupt makes a driver look at all queues (4.2.3.4).
    if (reason === reg.INTERRUPT_USED_BUFFER) this.#owed = false
    // The status first: the guest reads it as soon as the line is up.
    Atomics.or(this.#face, page.F_INTERRUPT, reason)
    this.#words[page.W_INTERRUPTS]! += 1
    this.#line.raise()
  }

  changeConfig(offset: number, bytes: Uint8Array): void {
    const face = this.#face
    Atomics.add(face, page.F_GENERATION, 1)
    this.page.config.set(bytes, offset)
    Atomics.add(face, page.F_GENERATION, 1)
    Atomics.notify(face, page.F_GENERATION)
    if (this.#active) this.#interrupt(reg.INTERRUPT_CONFIG_CHANGE)
  }

  readConfig(offset: number): number {
    return this.page.config[offset]!
  }

  noteDropped(offset: number, length: number): void {
    if (this.#dirty.enabled) this.#dirty.mark(offset, length)
  }

  report(error: unknown): void {
    this.#onError(error)
  }

  /** Raises the line again if the guest has not acknowledged what it was raised for: after a restore. */
  renewInterrupt(): void {
    if (Atomics.load(this.#face, page.F_INTERRUPT) !== 0) this.#line.raise()
  }

  /** Ends the device. Its page stays, without a device in it. */
  close(): void {
    this.#halt()
    this.#unlisten()
    Atomics.store(this.#words, page.W_DEAD, 1)
    Atomics.notify(this.#words, page.W_DONE)
    this.device.close()
  }
}
