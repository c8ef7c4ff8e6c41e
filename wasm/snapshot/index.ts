/** The exports of the module for snapshots: both parts work on what is put into `room`. */
export { count, runs, show } from './runs'
export { hash, hashPages } from './xxhash'

const BUFFER: usize = 0x1_0000

/** Makes room for so many bytes; where they start. */
export function room(bytes: usize): usize {
  const pages = <i32>((BUFFER + bytes + 0xffff) >> 16)
  if (memory.size() < pages) memory.grow(pages - memory.size())
  return BUFFER
}
