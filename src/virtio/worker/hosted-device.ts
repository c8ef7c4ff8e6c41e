/**
 * A device, as a machine sees it from its main thread: the machine's `MachineDevice`. Several may share one
 * worker, or the machine's own thread; which do is the choice of whoever makes them.
 */
import { createEventFd } from '../../host/event-fd.ts'
import { closeFd } from '../../host/file.ts'
import { GuestMemory } from '../../memory/guest-memory.ts'
import type { SavedValue } from '../device.ts'
import { VirtioError } from '../errors.ts'
import { pageMetrics, RegisterPage, W_DEAD, W_DONE } from '../mmio/page.ts'
import type { GivenSlot, VirtioMmioDetail, VirtioSlot } from '../slot.ts'
import { type DeviceDescription, queueCount } from './descriptions.ts'
import type { DeviceHost } from './device-host.ts'

const WINDOW_SIZE = 0x1000

export class HostedDevice {
  readonly name: string
  readonly queues: number
  readonly description: DeviceDescription
  readonly #host: DeviceHost
  readonly #number: number
  #slot: VirtioSlot | undefined
  #counterNames: readonly string[] = []
  #attached = false
  #closed = false

  constructor(host: DeviceHost, description: DeviceDescription) {
    this.name = description.kind
    this.queues = queueCount(description)
    this.description = description
    this.#host = host
    this.#number = host.reserve()
  }

  /** Makes the device where it lives. The result is the machine's `MmioDescription`, for `virtioMmioHandler`. */
  async attach<Slot extends GivenSlot>(
    given: Slot,
  ): Promise<{
    readonly kind: 'virtio-mmio'
    readonly address: number
    readonly size: number
    readonly slot: Slot
    readonly detail: VirtioMmioDetail
  }> {
    const { index, wasm, address, interrupt, doorbells, shared } = given
    const controlFd = createEventFd()
    const slot: VirtioSlot = {
      ...{ index, wasm, address, interrupt, doorbells },
      ...{ shared: { registers: shared.registers }, controlFd },
    }
    this.#slot = slot
    // A vCPU that waits for a worker that has crashed would wait for ever.
    const { words } = new RegisterPage(GuestMemory.attach(wasm), shared.registers)
    this.#host.onEnd(() => {
      Atomics.store(words, W_DEAD, 1)
      Atomics.notify(words, W_DONE)
    })
    const names = await this.#host.send({
      ...{ do: 'attach', device: this.#number, slot, description: this.description },
    } as const)
    this.#attached = true
    const serve = this.#host.handshake?.(this.#number)
    this.#counterNames = names as readonly string[]
    return {
      kind: 'virtio-mmio',
      address,
      size: WINDOW_SIZE,
      slot: given,
      detail: { controlFd, ...(serve ? { serve } : {}) },
    }
  }

  async pause(): Promise<void> {
    await this.#host.send({ do: 'pause', device: this.#number })
  }

  async resume(): Promise<void> {
    await this.#host.send({ do: 'resume', device: this.#number })
  }

  async save(): Promise<Uint8Array> {
    const state = await this.#host.send({ do: 'save', device: this.#number })
    return new TextEncoder().encode(JSON.stringify(state))
  }

  async restore(bytes: Uint8Array): Promise<void> {
    let state: SavedValue
    try {
      state = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes)) as SavedValue
    } catch (cause) {
      throw new VirtioError('BAD_STATE', `the saved state of '${this.name}' is damaged. Take the snapshot again.`, {
        cause,
      })
    }
    await this.#host.send({ do: 'restore', device: this.#number, state })
  }

  async reset(): Promise<void> {
    await this.#host.send({ do: 'reset', device: this.#number })
  }

  /** Something of the device's own; see its folder. */
  control(request: SavedValue): Promise<SavedValue> {
    return this.#host.send({ do: 'control', device: this.#number, request })
  }

  async metrics(): Promise<Record<string, number>> {
    if (this.#slot === undefined) return {}
    const page = new RegisterPage(GuestMemory.attach(this.#slot.wasm), this.#slot.shared.registers)
    const metrics: Record<string, number> = {}
    for (const [name, value] of Object.entries(pageMetrics(page, this.#counterNames))) {
      if (typeof value === 'number') metrics[name] = value
    }
    return metrics
  }

  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    if (this.#attached && this.#host.alive) await this.#host.send({ do: 'close', device: this.#number }).catch(() => {})
    await this.#host.release()
    if (this.#slot !== undefined) closeFd(this.#slot.controlFd)
  }
}
