/** Guest RAM as KVM sees it: one memory slot for each region of the shared memory, and the log of what was written. */
import { addressOf } from '../host/libc.ts'
import type { GuestMemory } from '../memory/guest-memory.ts'
import { ioctl } from './ioctl.ts'
import { KVM } from './ioctls.ts'
import { DIRTY_LOG, USERSPACE_MEMORY_REGION } from './structs.ts'

const PAGE = 4096

/** Gives every region to the VM; called again to switch dirty logging on or off. */
export function setMemorySlots(vmFd: number, memory: GuestMemory, logDirty: boolean): void {
  const base = addressOf(memory.bytes)
  memory.regions.forEach((region, slot) => {
    const request = USERSPACE_MEMORY_REGION.create()
      .set('slot', slot)
      .set('flags', logDirty ? KVM.KVM_MEM_LOG_DIRTY_PAGES : 0)
      .set('guest_phys_addr', BigInt(region.address))
      .set('memory_size', BigInt(region.size))
      .set('userspace_addr', BigInt(base + region.offset))
    // Safe: the region is inside the WebAssembly memory, which the VM object keeps alive until the VM is closed.
    ioctl(vmFd, 'KVM_SET_USER_MEMORY_REGION', request.bytes)
  })
}

/** Lets the guest read a page of the shared memory at `address`; what it writes there exits, or rings a doorbell, as if nothing were there. `index`: which of these it is. */
export function showPage(vmFd: number, memory: GuestMemory, index: number, address: number, offset: number): void {
  const request = USERSPACE_MEMORY_REGION.create()
    .set('slot', memory.regions.length + index)
    .set('flags', KVM.KVM_MEM_READONLY)
    .set('guest_phys_addr', BigInt(address))
    .set('memory_size', BigInt(PAGE))
    .set('userspace_addr', BigInt(addressOf(memory.bytes) + offset))
  // Safe: as above.
  ioctl(vmFd, 'KVM_SET_USER_MEMORY_REGION', request.bytes)
}

/** One bit per page of each region, and clears the log. */
export function takeDirtyLog(vmFd: number, memory: GuestMemory): Uint8Array[] {
  return memory.regions.map((region, slot) => {
    // KVM writes whole 64-bit words; a buffer of its own so that V8 does not move it between here and the call.
    const words = new SharedArrayBuffer(Math.ceil(region.size / PAGE / 64) * 8)
    const bitmap = new Uint8Array(words)
    const request = DIRTY_LOG.create()
      .set('slot', slot)
      .set('dirty_bitmap', BigInt(addressOf(bitmap)))
    // Safe: the bitmap has a bit for every page of the slot, rounded up to the words that KVM copies.
    ioctl(vmFd, 'KVM_GET_DIRTY_LOG', request.bytes)
    return bitmap.subarray(0, Math.ceil(region.size / PAGE / 8))
  })
}
