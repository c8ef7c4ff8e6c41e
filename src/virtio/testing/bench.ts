/** A device on a workbench: its transport, its window and a driver in one thread, with no accelerator and no guest. */
import { createEventFd, drainEventFd, signalEventFd } from '../../host/event-fd.ts'
import { closeFd } from '../../host/file.ts'
import { PollSet } from '../../host/poll.ts'
import { GuestMemory } from '../../memory/guest-memory.ts'
import { DEVICES_BASE } from '../../memory/layout.ts'
import type { VirtioDevice } from '../device.ts'
import { InlineHandshake, ThreadHandshake } from '../mmio/handshake.ts'
import { pageMetrics } from '../mmio/page.ts'
import { QUEUE_NOTIFY } from '../mmio/registers.ts'
import { VirtioTransport } from '../mmio/transport.ts'
import { MmioWindow } from '../mmio/window.ts'
import type { VirtioSlot } from '../slot.ts'
import { DriverModel } from './driver.ts'

const WINDOW = 0xc000_1000
const SLOTS = DEVICES_BASE + 0x4_0000

export interface BenchOptions {
  readonly memory?: GuestMemory
  readonly sizeMib?: number
  readonly poll?: PollSet
  readonly index?: number
}

export class DeviceBench<Device extends VirtioDevice = VirtioDevice> {
  readonly memory: GuestMemory
  readonly poll: PollSet
  readonly slot: VirtioSlot
  readonly device: Device
  readonly #ownPoll: PollSet | undefined
  readonly transport: VirtioTransport
  readonly driver: DriverModel
  /** What the transport reported as not being the guest's fault. */
  readonly errors: unknown[] = []

  constructor(device: Device, options: BenchOptions = {}) {
    const index = options.index ?? 0
    this.memory = options.memory ?? GuestMemory.create(options.sizeMib ?? 32)
    this.#ownPoll = options.poll ? undefined : new PollSet()
    this.poll = options.poll ?? this.#ownPoll!
    this.device = device
    this.slot = makeSlot(this.memory, index, device.queueSizes.length)
    const { fd } = this.slot.interrupt as { readonly fd: number }
    const line = { gsi: this.slot.interrupt.gsi, raise: () => signalEventFd(fd) }
    this.transport = new VirtioTransport(this.memory, this.slot, device, this.poll, line, error =>
      this.errors.push(error),
    )
    const serve = (): void => this.transport.serveControl()
    const handshake = new InlineHandshake(() => serve, new ThreadHandshake(this.slot.controlFd))
    this.driver = new DriverModel(
      this.memory,
      new MmioWindow(this.memory, this.slot, handshake),
      0x10_0000 + index * 0x40_0000,
    )
  }

  /** Turns of the device's loop until there is nothing to do, or `limit` turns. The number of turns. */
  run(limit = 10_000): number {
    let turns = 0
    while (turns < limit && this.poll.wait(0) > 0) turns++
    this.poll.rest()
    return turns
  }

  /** Turns until `done`, waiting for the host's side of things. */
  runUntil(done: () => boolean, timeoutMs = 5000): void {
    const end = Date.now() + timeoutMs
    while (!done()) {
      if (Date.now() > end) throw new Error('the device did not get there in time')
      this.poll.wait(10)
    }
  }

  /** How often the interrupt line was raised since the last call. */
  takeInterrupts(): number {
    return drainEventFd((this.slot.interrupt as { readonly fd: number }).fd)
  }

  get metrics(): Record<string, number | string> {
    return pageMetrics(this.transport.page, this.device.counterNames)
  }

  close(): void {
    this.transport.close()
    this.#ownPoll?.close()
    closeSlot(this.slot)
  }
}

/** A slot as a machine makes it, without a machine. */
export function makeSlot(memory: GuestMemory, index: number, queues: number): VirtioSlot {
  const address = WINDOW + index * 0x1000
  return {
    index,
    wasm: memory.wasm,
    address,
    interrupt: { kind: 'eventfd', gsi: 5 + index, fd: createEventFd() },
    doorbells: Array.from({ length: queues }, (_, match) => ({
      address: address + QUEUE_NOTIFY,
      match,
      fd: createEventFd(),
    })),
    shared: { registers: SLOTS + index * 0x2000 },
    controlFd: createEventFd(),
  }
}

export function closeSlot(slot: VirtioSlot): void {
  if (slot.interrupt.kind === 'eventfd') closeFd(slot.interrupt.fd)
  for (const doorbell of slot.doorbells) closeFd(doorbell.fd)
  closeFd(slot.controlFd)
}
