/** What a virtio device is to the transport that carries it, and the other way round. Every device folder satisfies this. */
import type { PollSet } from '../host/poll.ts'
import type { GuestMemory } from '../memory/guest-memory.ts'
import type { Virtqueue } from './queue/virtqueue.ts'

/** Device types: VIRTIO 1.2, chapter 5. */
export const TYPE_NET = 1
export const TYPE_BLOCK = 2
export const TYPE_CONSOLE = 3
export const TYPE_ENTROPY = 4
export const TYPE_BALLOON = 5
export const TYPE_VSOCK = 19

/** Saved state: plain values that survive JSON. */
export type SavedValue =
  | null
  | boolean
  | number
  | string
  | readonly SavedValue[]
  | { readonly [key: string]: SavedValue }

export interface VirtioDevice {
  readonly type: number
  /** Feature bits of its own; the transport adds those of the transport and the queues. */
  readonly features: readonly number[]
  /** The largest size of each queue: powers of two. */
  readonly queueSizes: readonly number[]
  /** The configuration space at first. */
  readonly config: Uint8Array
  /** The bytes of it that the driver may write: from, to (exclusive). */
  readonly writableConfig?: readonly [number, number]
  /** What `DeviceLink.counters` counts, in order. */
  readonly counterNames: readonly string[]

  /** Called once, before anything else. */
  attach(link: DeviceLink): void
  /** The driver is ready. `has` tells which features it took. Queues that it did not set up are not `ready`. */
  activate(queues: readonly Virtqueue[], has: (feature: number) => boolean): void
  /** The driver has gone, or starts again. After this no queue is touched. */
  reset(): void
  /**
   * A queue's doorbell rang (or may have). True when there is more to do than was fair to do now: it is called again
   * after the worker's other devices had their turn. Throws GuestFault when the driver broke the rules.
   */
  notified(queue: number): boolean
  /** So much is moving that a doorbell is better answered with what comes after it than at once. */
  readonly isBusy?: boolean
  /** The driver wrote to `writableConfig`. */
  configWritten?(): void
  /** A request of the machine's owner, in the device's own terms. */
  control?(request: SavedValue): SavedValue
  /** What the transport does not know; called while nothing runs. */
  save(): SavedValue
  /** After `activate`, if the saved device was active. Throws VirtioError when `state` makes no sense. */
  restore(state: SavedValue): void
  /** Closes what the device owns. Called once, at the end. */
  close(): void
}

/** The device's way back to its transport. */
export interface DeviceLink {
  readonly memory: GuestMemory
  /** Host descriptors that the device waits for. Handlers catch what they throw: see `fail`. */
  readonly poll: PollSet
  /** Shared counters, named by `counterNames`. */
  readonly counters: Float64Array
  /** Publishes what was pushed to `queue` and interrupts the guest if it wants that. */
  publish(queue: Virtqueue): void
  /** As `publish`, but an interrupt may wait for one that the guest needs more urgently: until nothing else is expected to come soon. */
  publishIdly(queue: Virtqueue): void
  /** Has `notified` called for a queue after the worker's other devices had their turn. */
  ring(queue: number): void
  /** Has `notified` called for a queue at once: for poll handlers, never from within `notified`. */
  serve(queue: number): void
  /** Changes the configuration space and tells the driver. */
  changeConfig(offset: number, bytes: Uint8Array): void
  /** For incremental snapshots: pages that read otherwise now. `offset` is in the shared memory. */
  noteDropped(offset: number, length: number): void
  /** A byte of the configuration space as it is now. */
  readConfig(offset: number): number
  /** Tells the machine's owner of a failure that the guest sees only as an I/O error. */
  report(error: unknown): void
  /** What a poll handler does with what it caught: the guest's fault, or ours, as for `notified`. */
  fail(error: unknown): void
}
