/** The dirty log: one bit a RAM page, kept only while the host asks for it. */
import { cpu } from './cpu'
import { ramPage } from './ram'
import { S_DIRTY_MAP } from './state'

/** Notes that the RAM page at shared-memory address `host` is written. */
@inline
export function markDirty(host: usize): void {
  const map: usize = load<u32>(cpu, S_DIRTY_MAP)
  if (map) setDirty(map, ramPage(host))
}

function setDirty(map: usize, page: u32): void {
  atomic.or<u32>(map + ((page >> 5) << 2), 1 << (page & 31))
}
