/** Guest-physical addresses: what is RAM and where it is. The only place that decides it. */
import { cpu } from './cpu'
import { S_RAM_HIGH, S_RAM_LOW, S_RAM_OFFSET } from './state'

/** Shared-memory address of the byte at guest-physical `address`, or 0 when that is not RAM. RAM ends on page boundaries. */
@inline
export function ramAddress(address: u64): usize {
  const low: u64 = load<u32>(cpu, S_RAM_LOW)
  if (address < low) return <usize>load<u32>(cpu, S_RAM_OFFSET) + <usize>address
  const high = address - 0x1_0000_0000
  if (high < <u64>load<u32>(cpu, S_RAM_HIGH)) return <usize>load<u32>(cpu, S_RAM_OFFSET) + <usize>low + <usize>high
  return 0
}

/** Number of the RAM page at shared-memory address `host`: index of the code-page map and the dirty log. */
@inline
export function ramPage(host: usize): u32 {
  return (<u32>host - load<u32>(cpu, S_RAM_OFFSET)) >> 12
}
