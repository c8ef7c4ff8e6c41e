/**
 * LZ4 blocks (lz4_Block_format.md): the hot loop of booting a Debian kernel. The module has a memory of its own;
 * src/machine/boot/decompress/lz4.ts puts the block in it and takes the result out.
 */

/** A block is malformed: it reads or writes outside its bounds, or copies from before the start of the output. */
const MALFORMED: i32 = -1
/** The output does not fit `capacity`. */
const FULL: i32 = -2

/** Decodes the block at `source` to `target`; the number of bytes written, or one of the negative codes above. */
export function decode(source: usize, sourceSize: usize, target: usize, capacity: usize): i32 {
  const sourceEnd = source + sourceSize
  const targetEnd = target + capacity
  let from = source
  let to = target
  while (from < sourceEnd) {
    const token = <u32>load<u8>(from++)
    let literals: usize = token >> 4
    if (literals == 15) {
      let more: u32
      do {
        if (from >= sourceEnd) return MALFORMED
        more = load<u8>(from++)
        literals += more
      } while (more == 255)
    }
    if (literals > sourceEnd - from) return MALFORMED
    if (literals > targetEnd - to) return FULL
    // Short runs are most of them: two whole words, when both sides have the room, are cheaper than a call.
    if (literals <= 16 && sourceEnd - from >= 16 && targetEnd - to >= 16) {
      v128.store(to, v128.load(from))
    } else {
      memory.copy(to, from, literals)
    }
    from += literals
    to += literals
    // The last sequence has literals only.
    if (from == sourceEnd) return <i32>(to - target)
    if (sourceEnd - from < 2) return MALFORMED
    const distance: usize = load<u16>(from)
    from += 2
    if (distance == 0 || distance > to - target) return MALFORMED
    let length: usize = (token & 15) + 4
    if ((token & 15) == 15) {
      let more: u32
      do {
        if (from >= sourceEnd) return MALFORMED
        more = load<u8>(from++)
        length += more
      } while (more == 255)
    }
    if (length > targetEnd - to) return FULL
    let match = to - distance
    const end = to + length
    if (distance >= 16 && targetEnd - to >= length + 16) {
      while (to < end) {
        v128.store(to, v128.load(match))
        to += 16
        match += 16
      }
    } else if (distance >= 8 && targetEnd - to >= length + 8) {
      while (to < end) {
        store<u64>(to, load<u64>(match))
        to += 8
        match += 8
      }
    } else {
      // Overlapping: the bytes just written are the ones to copy.
      while (to < end) store<u8>(to++, load<u8>(match++))
    }
    to = end
  }
  return MALFORMED
}
