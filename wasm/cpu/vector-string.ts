/** PCMPESTRM, PCMPESTRI, PCMPISTRM and PCMPISTRI (SDM volume 1, 12.7 and volume 2, 4.1). */
import { cpu, gpr, setGpr } from './cpu'
import { FLAG_LITERAL, S_FLAG_A, S_FLAG_KIND, S_RAX, S_RDX, S_TEMP2 } from './state'
import { setXmm } from './vector-state'

let words: bool = false
let signed: bool = false

/** Element `i` of the string at `at`. */
function element(at: usize, i: u32): i32 {
  if (words) return signed ? <i32>load<i16>(at + (i << 1)) : <i32>load<u16>(at + (i << 1))
  return signed ? <i32>load<i8>(at + i) : <i32>load<u8>(at + i)
}

function implicitLength(at: usize, most: u32): u32 {
  if (!words) return ctz<u32>(<u32>i8x16.bitmask(i8x16.eq(v128.load(at), i8x16.splat(0))) | 0x10000)
  for (let i: u32 = 0; i < most; i++) if (element(at, i) == 0) return i
  return most
}

/** The magnitude of EAX or EDX (RAX, RDX with REX.W), at most the number of elements. */
function explicitLength(offset: usize, most: u32, wide: bool): u32 {
  let value: i64 = load<i64>(cpu + offset)
  if (!wide) value = <i64>(<i32>value)
  const magnitude: u64 = value < 0 ? 0 - <u64>value : <u64>value
  return magnitude > most ? most : <u32>magnitude
}

/** One bit an element of the second string. */
function aggregate(kind: u32, a: usize, lengthA: u32, b: usize, lengthB: u32, most: u32): u32 {
  let result: u32 = 0
  if (!words && kind == 0) {
    const text = v128.load(b)
    for (let i: u32 = 0; i < lengthA; i++) result |= i8x16.bitmask(i8x16.eq(text, i8x16.splat(load<i8>(a + i))))
    return result & ((1 << lengthB) - 1)
  }
  if (!words && kind == 2) {
    const equal: u32 = i8x16.bitmask(i8x16.eq(v128.load(a), v128.load(b)))
    return (equal & ((1 << min(lengthA, lengthB)) - 1)) | (0xffff & ~((1 << max(lengthA, lengthB)) - 1))
  }
  for (let j: u32 = 0; j < most; j++) {
    let bit = false
    if (kind == 0) {
      // Equal any.
      if (j < lengthB) for (let i: u32 = 0; i < lengthA; i++) if (element(a, i) == element(b, j)) bit = true
    } else if (kind == 1) {
      // Ranges.
      if (j < lengthB) {
        const value = element(b, j)
        for (let i: u32 = 0; i + 1 < lengthA; i += 2) if (value >= element(a, i) && value <= element(a, i + 1)) bit = true
      }
    } else if (kind == 2) {
      // Equal each.
      if (j >= lengthA || j >= lengthB) bit = j >= lengthA && j >= lengthB
      else bit = element(a, j) == element(b, j)
    } else {
      // Equal ordered: the first string at this place of the second.
      bit = true
      for (let i: u32 = 0; i < lengthA && i + j < most; i++)
        if (i + j >= lengthB || element(a, i) != element(b, i + j)) bit = false
    }
    if (bit) result |= 1 << j
  }
  return result
}

/** `opcode` 60 to 63: explicit mask, explicit index, implicit mask, implicit index. */
export function compareStrings(opcode: u32, first: v128, second: v128, imm: u32, wide: bool): void {
  const a = cpu + S_TEMP2,
    b = cpu + S_TEMP2 + 16
  v128.store(a, first)
  v128.store(b, second)
  words = (imm & 1) != 0
  signed = (imm & 2) != 0
  const most: u32 = words ? 8 : 16
  const all: u32 = words ? 0xff : 0xffff
  let lengthA: u32, lengthB: u32
  if (opcode >= 0x62) {
    lengthA = implicitLength(a, most)
    lengthB = implicitLength(b, most)
  } else {
    lengthA = explicitLength(S_RAX, most, wide)
    lengthB = explicitLength(S_RDX, most, wide)
  }
  let result = aggregate((imm >> 2) & 3, a, lengthA, b, lengthB, most)
  if (imm & 16) result ^= imm & 32 ? (1 << lengthB) - 1 : all
  result &= all
  store<u32>(cpu, FLAG_LITERAL, S_FLAG_KIND)
  // CF, ZF, SF, OF; AF and PF are cleared.
  store<i64>(
    cpu,
    (result ? 1 : 0) | (lengthB < most ? 0x40 : 0) | (lengthA < most ? 0x80 : 0) | (result & 1 ? 0x800 : 0),
    S_FLAG_A,
  )
  if (opcode & 1) {
    setGpr(1, result == 0 ? most : imm & 0x40 ? 31 - clz(result) : ctz(result))
    return
  }
  if (!(imm & 0x40)) return setXmm(0, i32x4(result, 0, 0, 0))
  // The mask, an element each.
  const bits = words ? i16x8(1, 2, 4, 8, 16, 32, 64, 128) : i8x16(1, 2, 4, 8, 16, 32, 64, -128, 1, 2, 4, 8, 16, 32, 64, -128)
  if (words) setXmm(0, i16x8.eq(v128.and(i16x8.splat(<i16>result), bits), bits))
  else {
    const low = <u64>(result & 0xff) * 0x0101010101010101,
      high = <u64>(result >> 8) * 0x0101010101010101
    setXmm(0, i8x16.eq(v128.and(i64x2(low, high), bits), bits))
  }
}
