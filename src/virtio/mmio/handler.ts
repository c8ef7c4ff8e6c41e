/** How a vCPU's worker makes the handler of a virtio-mmio window from the description that the machine sent it. */
import { GuestMemory } from '../../memory/guest-memory.ts'
import type { GivenSlot, VirtioMmioDetail } from '../slot.ts'
import { InlineHandshake, ThreadHandshake } from './handshake.ts'
import { MmioWindow } from './window.ts'

/** A `MmioHandlerFactory` of the machine. */
export function virtioMmioHandler(description: { readonly slot: GivenSlot; readonly detail: unknown }): MmioWindow {
  const { controlFd, server } = description.detail as VirtioMmioDetail
  const elsewhere = new ThreadHandshake(controlFd)
  const handshake = server ? new InlineHandshake(server, elsewhere) : elsewhere
  return new MmioWindow(GuestMemory.attach(description.slot.wasm), { ...description.slot, controlFd }, handshake)
}
