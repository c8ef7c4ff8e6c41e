/**
 * The internet checksum (RFC 1071) over a buffer of the module's own. The sum does not depend on byte order except for a
 * final swap, so it adds little-endian words, sixteen bytes a step.
 */
const BUFFER: usize = 0x1_0000

/** Makes room for the largest frame; where to put it. */
export function buffer(): usize {
  if (memory.size() < 4) memory.grow(3)
  return BUFFER
}

/** The ones' complement sum of `length` bytes at the buffer, folded to 16 bits, in network order; not inverted. */
export function sum(length: usize): u32 {
  let at: usize = BUFFER
  const end = at + length
  let lanes = i32x4.splat(0)
  // A lane grows by at most 2 * 65535 a step: no overflow below 256 KiB.
  while (at + 16 <= end) {
    lanes = i32x4.add(lanes, i32x4.extadd_pairwise_i16x8_u(v128.load(at)))
    at += 16
  }
  let total: u64 =
    <u64>(<u32>i32x4.extract_lane(lanes, 0)) +
    <u64>(<u32>i32x4.extract_lane(lanes, 1)) +
    <u64>(<u32>i32x4.extract_lane(lanes, 2)) +
    <u64>(<u32>i32x4.extract_lane(lanes, 3))
  while (at + 2 <= end) {
    total += <u64>load<u16>(at)
    at += 2
  }
  if (at < end) total += <u64>load<u8>(at)
  while (total > 0xffff) total = (total >> 16) + (total & 0xffff)
  return <u32>(((total >> 8) | (total << 8)) & 0xffff)
}
