/** Read-modify-write operands: a pointer to work on, in place when the TLB allows, else a copy that is written back. */
import { cpu } from './cpu'
import { PAGE_MASK, probeWrite, TLB_ADDEND, TLB_WRITE, tlbSlot } from './memory'
import { readSlow, writeSlow } from './memory-slow'
import { S_BOUNCE, S_BOUNCE_ADDRESS, S_BOUNCE_SIZE } from './state'

/** Address where the `sizeof<T>()` bytes at `address` can be changed, or 0 after a fault. Then `endRmw(pointer)`. */
@inline
export function beginRmw<T>(address: u64): usize {
  const entry = tlbSlot(address)
  if (load<u64>(entry, TLB_WRITE) == ((address + (sizeof<T>() - 1)) & PAGE_MASK))
    return <usize>load<u32>(entry, TLB_ADDEND) + <usize>address
  return beginRmwSlow(address, sizeof<T>())
}

export function beginRmwSlow(address: u64, bytes: u32): usize {
  if (!probeWrite(address, bytes)) return 0
  const entry = tlbSlot(address)
  if (load<u64>(entry, TLB_WRITE) == ((address + <u64>(bytes - 1)) & PAGE_MASK))
    return <usize>load<u32>(entry, TLB_ADDEND) + <usize>address
  const c = cpu
  store<u64>(c, readSlow(address, ctz<u32>(bytes)), S_BOUNCE)
  store<u64>(c, address, S_BOUNCE_ADDRESS)
  store<u32>(c, bytes, S_BOUNCE_SIZE)
  return c + S_BOUNCE
}

/** After storing through `beginRmw`'s pointer. */
@inline
export function endRmw(c: usize, pointer: usize): void {
  if (pointer == c + S_BOUNCE) writeBack()
}

export function writeBack(): void {
  const c = cpu
  writeSlow(load<u64>(c, S_BOUNCE_ADDRESS), load<u64>(c, S_BOUNCE), ctz<u32>(load<u32>(c, S_BOUNCE_SIZE)))
}
