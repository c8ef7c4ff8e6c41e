/** The decoder's cursor, prefixes and operands: what one- and two-byte opcodes share. */
import {
  EA_FLAT32,
  EA_FLAT64,
  EA_REGISTER,
  EA_SEG16,
  EA_SEG32,
  EA_SEG64,
  EA_TRUNC32,
  H_UNDEFINED,
  OP_AUX,
  OP_BASE,
  OP_DISP,
  OP_DST,
  OP_EA,
  OP_HANDLER,
  OP_IMM,
  OP_INDEX,
  OP_SCALE,
  OP_SEG,
  OP_SIZE,
  OP_SRC,
} from './ops'
import { DS, FS, MODE_32, MODE_64, MODE_FLAT, MODE_SIZE_MASK, S_BLOCK_RIP, S_ZERO, SS } from './state'

/** Next byte of code, a shared-memory address. */
export let at: usize = 0
/** First byte of the instruction. */
export let start: usize = 0
export let mode: u32 = 0
export let is64: bool = false
export let rex: u32 = 0
/** log2 of the operand size for word/dword/qword forms: 1, 2 or 3. */
export let opSize: u32 = 2
/** Address size in bytes: 2, 4, 8. */
export let addrSize: u32 = 8
/** Segment override, or -1. */
export let segment: i32 = -1
export let prefix66: bool = false
export let prefix67: bool = false
/** 0, 0xf2 or 0xf3. */
export let rep: u32 = 0
export let lock: bool = false
/** Set by forms that may have LOCK. */
export let lockable: bool = false
export let modByte: u32 = 0
export let mod: u32 = 0
/** ModRM.reg with REX.R, ModRM.rm with REX.B. */
export let reg: u32 = 0
export let rm: u32 = 0
/** Set by instructions after which a block cannot go on. */
export let ends: bool = false

/** Bytes from the block's start to the instruction's, for RIP-relative operands; patched once the length is known. */
export let ripRelative: bool = false

export function begin(code: usize, modeWord: u32): void {
  at = code
  start = code
  mode = modeWord
  const size = modeWord & MODE_SIZE_MASK
  is64 = size == MODE_64
  rex = 0
  segment = -1
  prefix66 = false
  prefix67 = false
  rep = 0
  lock = false
  lockable = false
  ends = false
  ripRelative = false
}

/** After prefixes: the sizes they give. */
export function settleSizes(): void {
  const size = mode & MODE_SIZE_MASK
  if (size == MODE_64) {
    opSize = rex & 8 ? 3 : prefix66 ? 1 : 2
    addrSize = prefix67 ? 4 : 8
  } else {
    opSize = (size == MODE_32) != prefix66 ? 2 : 1
    addrSize = (size == MODE_32) != prefix67 ? 4 : 2
  }
}

export function setRex(value: u32): void {
  rex = value
}
export function setPrefix66(): void {
  prefix66 = true
}
export function setPrefix67(): void {
  prefix67 = true
}
export function setSegment(value: i32): void {
  segment = value
}
export function setRep(value: u32): void {
  rep = value
}
export function setLock(): void {
  lock = true
}
export function allowLock(): void {
  lockable = true
}
export function endBlock(): void {
  ends = true
}
export function setOpSize(size: u32): void {
  opSize = size
}
/** PUSH, POP, near branches: 64 bits by default in 64-bit code. */
export function default64(): void {
  if (is64) opSize = prefix66 ? 1 : 3
}

@inline
export function fetch8(): u32 {
  const value = load<u8>(at)
  at += 1
  return value
}
@inline
export function fetch16(): u32 {
  const value = load<u16>(at)
  at += 2
  return value
}
@inline
export function fetch32(): u32 {
  const value = load<u32>(at)
  at += 4
  return value
}
@inline
export function fetch64(): u64 {
  const value = load<u64>(at)
  at += 8
  return value
}

/** Immediate of the operand size, at most 32 bits, sign-extended. */
export function immediate(size: u32): i64 {
  if (size == 0) return <i64>(<i8>fetch8())
  if (size == 1) return <i64>(<i16>fetch16())
  return <i64>(<i32>fetch32())
}

/** State offset of register `number` at this size: 8-bit registers 4..7 without REX are AH CH DH BH. */
@inline
export function registerOffset(number: u32, size: u32): u32 {
  return size == 0 && !rex && number >= 4 && number < 8 ? ((number - 4) << 3) | 1 : number << 3
}

export function setHandler(op: usize, handler: u32): void {
  store<u16>(op, <u16>handler, OP_HANDLER)
}
export function setAux(op: usize, handler: u32, aux: u32): void {
  store<u16>(op, <u16>handler, OP_HANDLER)
  store<u8>(op, <u8>aux, OP_AUX)
}
export function undefined_(op: usize): void {
  setAux(op, H_UNDEFINED, 0)
  ends = true
}

export function setReg(op: usize, field: usize, number: u32, size: u32): void {
  store<u8>(op + field, <u8>registerOffset(number, size))
}
export function setDst(op: usize, number: u32, size: u32): void {
  store<u8>(op, <u8>registerOffset(number, size), OP_DST)
}
export function setSrc(op: usize, number: u32, size: u32): void {
  store<u8>(op, <u8>registerOffset(number, size), OP_SRC)
}
export function setSize(op: usize, size: u32): void {
  store<u8>(op, <u8>size, OP_SIZE)
}
export function setImm(op: usize, value: i64): void {
  store<i64>(op, value, OP_IMM)
}

@inline
export function isMemory(): bool {
  return mod != 3
}

/** Which EA_* kind and segment an operand gets whose default segment is `usual`. */
export function setSegmentKind(op: usize, usual: u32): void {
  const seg = segment < 0 ? usual : <u32>segment
  store<u8>(op, <u8>seg, OP_SEG)
  let kind: u32
  if (is64) {
    // Overrides other than FS and GS are ignored in 64-bit code.
    const based = segment >= FS
    if (!based) store<u8>(op, <u8>usual, OP_SEG)
    kind = addrSize == 4 ? EA_TRUNC32 : based ? EA_SEG64 : EA_FLAT64
  } else if (addrSize == 2) kind = EA_SEG16
  else kind = mode & MODE_FLAT && seg < <u32>FS ? EA_FLAT32 : EA_SEG32
  store<u8>(op, <u8>kind, OP_EA)
}

/** Decodes ModRM, SIB and displacement into the record. */
export function modrm(op: usize): void {
  const byte = fetch8()
  modByte = byte
  mod = byte >> 6
  reg = ((byte >> 3) & 7) | ((rex & 4) << 1)
  rm = byte & 7
  if (mod == 3) {
    rm |= (rex & 1) << 3
    store<u8>(op, EA_REGISTER, OP_EA)
    return
  }
  if (addrSize == 2) {
    modrm16(op)
    return
  }
  let base: u32 = S_ZERO
  let index: u32 = S_ZERO
  let usual: u32 = DS
  let displacement: i64 = 0
  let noBase = false
  if (rm == 4) {
    const sib = fetch8()
    const indexNumber = ((sib >> 3) & 7) | ((rex & 2) << 2)
    if (indexNumber != 4) {
      index = indexNumber << 3
      store<u8>(op, <u8>(sib >> 6), OP_SCALE)
    }
    const baseNumber = sib & 7
    if (baseNumber == 5 && mod == 0) {
      displacement = <i64>(<i32>fetch32())
      noBase = true
    } else {
      base = (baseNumber | ((rex & 1) << 3)) << 3
      if (baseNumber == 4 && !(rex & 1)) usual = SS
      if (baseNumber == 5 && !(rex & 1)) usual = SS
    }
  } else if (rm == 5 && mod == 0) {
    displacement = <i64>(<i32>fetch32())
    noBase = true
    if (is64) {
      base = S_BLOCK_RIP
      ripRelative = true
    }
  } else {
    base = (rm | ((rex & 1) << 3)) << 3
    if (rm == 5 && !(rex & 1)) usual = SS
  }
  if (mod == 1) displacement = <i64>(<i8>fetch8())
  else if (mod == 2) displacement = <i64>(<i32>fetch32())
  store<u8>(op, <u8>base, OP_BASE)
  store<u8>(op, <u8>index, OP_INDEX)
  store<i64>(op, displacement, OP_DISP)
  setSegmentKind(op, usual)
}

/** 16-bit addressing: BX+SI, BX+DI, BP+SI, BP+DI, SI, DI, BP or disp16, BX. */
function modrm16(op: usize): void {
  let base: u32 = S_ZERO
  let index: u32 = S_ZERO
  let usual: u32 = DS
  switch (rm) {
    case 0:
      base = 3 << 3
      index = 6 << 3
      break
    case 1:
      base = 3 << 3
      index = 7 << 3
      break
    case 2:
      base = 5 << 3
      index = 6 << 3
      usual = SS
      break
    case 3:
      base = 5 << 3
      index = 7 << 3
      usual = SS
      break
    case 4:
      base = 6 << 3
      break
    case 5:
      base = 7 << 3
      break
    case 6:
      if (mod != 0) {
        base = 5 << 3
        usual = SS
      }
      break
    default:
      base = 3 << 3
  }
  let displacement: i64 = 0
  if (mod == 1) displacement = <i64>(<i8>fetch8())
  else if (mod == 2 || (mod == 0 && rm == 6)) displacement = <i64>(<i16>fetch16())
  store<u8>(op, <u8>base, OP_BASE)
  store<u8>(op, <u8>index, OP_INDEX)
  store<i64>(op, displacement, OP_DISP)
  setSegmentKind(op, usual)
}

/** MOV moffs and string sources: an absolute offset. */
export function absoluteOperand(op: usize): void {
  let offset: i64
  if (addrSize == 8) offset = <i64>fetch64()
  else if (addrSize == 4) offset = <i64>(<u64>fetch32())
  else offset = <i64>(<u64>fetch16())
  store<u8>(op, S_ZERO, OP_BASE)
  store<u8>(op, S_ZERO, OP_INDEX)
  store<i64>(op, offset, OP_DISP)
  setSegmentKind(op, DS)
}
