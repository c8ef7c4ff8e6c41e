/** Effective addresses of predecoded operations. */
import { cpu } from './cpu'
import { POISON, raiseError, VECTOR_GP, VECTOR_SS } from './fault'
import {
  EA_FLAT32,
  EA_SEG16,
  EA_SEG64,
  EA_TRUNC32,
  OP_BASE,
  OP_DISP,
  OP_EA,
  OP_INDEX,
  OP_SCALE,
  OP_SEG,
  OP_SIZE,
} from './ops'
import { FS, S_SEG, SEG_ATTR, SEG_BASE, SEG_LIMIT, SEG_NULL, SEG_STRIDE, SS } from './state'

/** base + (index << scale) + disp, nothing else. */
@inline
export function sum(c: usize, op: usize): u64 {
  return (
    load<u64>(c + <usize>load<u8>(op, OP_BASE)) +
    (load<u64>(c + <usize>load<u8>(op, OP_INDEX)) << <u64>load<u8>(op, OP_SCALE)) +
    load<u64>(op, OP_DISP)
  )
}

/** Linear address of the operand; POISON after raising #GP or #SS for a segment violation. */
@inline
export function effective(c: usize, op: usize): u64 {
  if (load<u8>(op, OP_EA) == 0) return sum(c, op)
  return effectiveSlow(op, 1 << load<u8>(op, OP_SIZE))
}

/** LEA: the offset in its address size, no segment. */
export function offsetOnly(op: usize): u64 {
  const value = sum(cpu, op)
  const kind = load<u8>(op, OP_EA)
  return kind == 0 ? value : kind == EA_SEG16 ? value & 0xffff : value & 0xffff_ffff
}

export function effectiveSlow(op: usize, bytes: u32): u64 {
  const offset = sum(cpu, op)
  const segment = <u32>load<u8>(op, OP_SEG)
  switch (<u32>load<u8>(op, OP_EA)) {
    case 0:
      return offset
    case EA_SEG64:
      return offset + load<u64>(cpu + <u32>segment * SEG_STRIDE, S_SEG + SEG_BASE)
    case EA_TRUNC32:
      return (offset & 0xffff_ffff) + (segment >= <u32>FS ? load<u64>(cpu + <u32>segment * SEG_STRIDE, S_SEG + SEG_BASE) : 0)
    case EA_FLAT32:
      return offset & 0xffff_ffff
    case EA_SEG16:
      return segmented(segment, <u32>offset & 0xffff, bytes, false)
    default:
      return segmented(segment, <u32>offset, bytes, false)
  }
}

/**
 * Linear address of `bytes` at `offset` of a segment, outside 64-bit code, with the limit checked (SDM vol. 3, 5.3). Types are checked
 * for null and for writing to what cannot be written.
 */
export function segmented(segment: u32, offset: u32, bytes: u32, write: bool): u64 {
  const at = cpu + segment * SEG_STRIDE
  const limit = load<u32>(at, S_SEG + SEG_LIMIT)
  const attributes = load<u32>(at, S_SEG + SEG_ATTR)
  const last = <u64>offset + <u64>(bytes - 1)
  let ok = load<u32>(at, S_SEG + SEG_NULL) == 0
  if ((attributes & 0xc) == 4) {
    // Expand-down data: valid offsets are above the limit.
    const top: u64 = attributes & 0x4000 ? 0xffff_ffff : 0xffff
    ok = ok && offset > limit && last <= top
  } else ok = ok && last <= <u64>limit
  if (write && ((attributes & 8) != 0 || !(attributes & 2))) ok = false
  if (!ok) {
    raiseError(segment == SS ? VECTOR_SS : VECTOR_GP, 0)
    return POISON
  }
  return (load<u64>(at, S_SEG + SEG_BASE) + <u64>offset) & 0xffff_ffff
}
