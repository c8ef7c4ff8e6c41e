/** virtio-console: VIRTIO 1.2, section 5.3. Guest buffers are read and written by the host's descriptors in place. */
import { IoVector } from '../../host/io-vector.ts'
import { POLLERR, POLLHUP, POLLIN, POLLOUT } from '../../host/poll.ts'
import { BROKEN, readVector, WOULD_BLOCK, writeVector } from '../../host/unix-socket.ts'
import { type DeviceLink, type SavedValue, TYPE_CONSOLE, type VirtioDevice } from '../device.ts'
import { GuestFault } from '../errors.ts'
import type { Virtqueue } from '../queue/virtqueue.ts'
import { integerOf, listOf, recordOf } from '../saved.ts'
import {
  CONSOLE_QUEUE_SIZE,
  type ConsoleOptions,
  consoleConfig,
  F_SIZE,
  RX_QUEUE,
  sizeBytes,
  TX_QUEUE,
} from './config.ts'
import { BYTES_IN, BYTES_OUT, CONSOLE_COUNTERS, DROPPED_BYTES, RESIZES } from './metrics.ts'
import { restoreConsole, saveConsole } from './state.ts'

const FAIR_SHARE = 64

export class ConsoleDevice implements VirtioDevice {
  readonly type = TYPE_CONSOLE
  readonly features: readonly number[] = [F_SIZE]
  readonly queueSizes: readonly number[] = [CONSOLE_QUEUE_SIZE, CONSOLE_QUEUE_SIZE]
  readonly config: Uint8Array
  readonly counterNames = CONSOLE_COUNTERS
  readonly #options: ConsoleOptions
  #columns: number
  #rows: number
  #link!: DeviceLink
  #readable!: IoVector
  #writable!: IoVector
  #part!: IoVector
  #queues: readonly Virtqueue[] = []
  /** Input is waited for: the guest has room. */
  #listening = false
  #inputEnded = false
  /** Output is waited for: 'wait' only. */
  #stalled = false
  /** How much of the oldest output buffer is out. */
  #done = 0
  /** Queues, as bits, whose first buffer was answered with the size. */
  #announced = 0

  constructor(options: ConsoleOptions) {
    this.#options = options
    this.#columns = options.columns ?? 80
    this.#rows = options.rows ?? 25
    this.config = consoleConfig(this.#columns, this.#rows)
  }

  attach(link: DeviceLink): void {
    this.#link = link
    this.#readable = new IoVector(link.memory.bytes)
    this.#writable = new IoVector(link.memory.bytes)
    this.#part = new IoVector(link.memory.bytes)
  }

  activate(queues: readonly Virtqueue[]): void {
    this.#queues = queues
  }

  reset(): void {
    this.#queues = []
    this.#done = 0
    this.#announced = 0
    this.#listen(false)
    this.#stall(false)
  }

  notified(index: number): boolean {
    this.#announceSize(index)
    if (index === TX_QUEUE) return !this.#stalled && this.#send()
    this.#receive()
    return false
  }

  /**
   * Linux takes the size from the configuration space only when it is told of a change, and only for a console that it has
   * set up by then: so it is told when it has given its first buffers, and again with its first output.
   */
  #announceSize(index: number): void {
    const bit = 1 << index
    if ((this.#announced & bit) !== 0 || !this.#queues[index]?.hasAvailable) return
    this.#announced |= bit
    this.#link.changeConfig(0, sizeBytes(this.#columns, this.#rows))
  }

  /** Guest to host. */
  #send(): boolean {
    const queue = this.#queues[TX_QUEUE]
    if (queue === undefined) return false
    let share = FAIR_SHARE
    queue.quiet()
    do {
      for (; share > 0; share--) {
        this.#readable.clear()
        this.#writable.clear()
        const head = queue.pop(this.#readable, this.#writable)
        if (head < 0) break
        if (this.#writable.count !== 0) throw new GuestFault('request-shape', 'console output in a writable buffer')
        if (!this.#write()) {
          queue.unpop()
          this.#link.publish(queue)
          this.#stall(true)
          return false
        }
        this.#done = 0
        queue.push(head, 0)
      }
      this.#link.publish(queue)
      if (share === 0) return true
    } while (queue.rearm())
    return false
  }

  /** Writes the rest of the buffer; false when that has to wait. */
  #write(): boolean {
    const { counters } = this.#link
    const total = this.#readable.byteLength
    while (this.#done < total) {
      this.#part.setToRangeOf(this.#readable, this.#done, total - this.#done)
      const written = writeVector(this.#options.outputFd, this.#part)
      if (written >= 0) {
        counters[BYTES_OUT]! += written
        this.#done += written
      } else if (written === WOULD_BLOCK && this.#options.whenFull === 'wait') return false
      else {
        counters[DROPPED_BYTES]! += total - this.#done
        return true
      }
    }
    return true
  }

  #stall(stalled: boolean): void {
    if (stalled === this.#stalled) return
    this.#stalled = stalled
    const { poll } = this.#link
    if (stalled) poll.add(this.#options.outputFd, POLLOUT, () => this.#onOutput())
    else poll.remove(this.#options.outputFd)
  }

  #onOutput(): void {
    this.#stall(false)
    this.#link.ring(TX_QUEUE)
  }

  /** Host to guest: one read a buffer, for as long as there is both. */
  #receive(): void {
    const queue = this.#queues[RX_QUEUE]
    if (queue === undefined || this.#inputEnded) return
    let share = FAIR_SHARE
    queue.quiet()
    while (queue.hasAvailable && share-- > 0) {
      this.#readable.clear()
      this.#writable.clear()
      const head = queue.pop(this.#readable, this.#writable)
      if (this.#readable.count !== 0) throw new GuestFault('request-shape', 'a console input buffer is not writable')
      const bytes = readVector(this.#options.inputFd, this.#writable)
      if (bytes <= 0) {
        queue.unpop()
        this.#inputEnded = bytes === 0 || bytes === BROKEN
        break
      }
      queue.pushWritten(head, this.#writable, bytes)
      this.#link.counters[BYTES_IN]! += bytes
    }
    this.#link.publish(queue)
    this.#listen(!this.#inputEnded && (queue.hasAvailable || queue.rearm()))
  }

  #listen(wanted: boolean): void {
    if (wanted === this.#listening) return
    this.#listening = wanted
    const { poll } = this.#link
    if (wanted) poll.add(this.#options.inputFd, POLLIN, events => this.#onInput(events))
    else poll.remove(this.#options.inputFd)
  }

  #onInput(events: number): void {
    try {
      this.#receive()
      // An end without a last byte would be ready for ever.
      if (events & (POLLHUP | POLLERR) && (events & POLLIN) === 0) this.#listen(false)
    } catch (error) {
      this.#link.fail(error)
    }
  }

  /** `{ resize: [columns, rows] }`. */
  control(request: SavedValue): SavedValue {
    const size = listOf(recordOf(request, 'a console request').resize, 'the size', 2)
    this.#columns = integerOf(size[0], 'the width', 1, 0xffff)
    this.#rows = integerOf(size[1], 'the height', 1, 0xffff)
    this.#link.counters[RESIZES]! += 1
    this.#link.changeConfig(0, sizeBytes(this.#columns, this.#rows))
    return null
  }

  save(): SavedValue {
    return saveConsole({ columns: this.#columns, rows: this.#rows, done: this.#done })
  }

  restore(state: SavedValue): void {
    const { columns, rows, done } = restoreConsole(state)
    this.#columns = columns
    this.#rows = rows
    this.#done = done
  }

  /** The descriptors are the caller's. */
  close(): void {}
}
