/** Decodes one instruction: its prefixes, then its opcode by decode-byte.ts or, of two bytes, decode-0f.ts (Intel SDM vol. 2 appendix A). */
import { decode0f } from './decode-0f'
import { decodeByte } from './decode-byte'
import { setBlockOffset } from './decode-forms'
import {
  addrSize,
  at,
  begin,
  endBlock,
  ends,
  fetch8,
  is64,
  lock,
  lockable,
  opSize,
  rep,
  rex,
  ripRelative,
  setAux,
  setLock,
  setPrefix66,
  setPrefix67,
  setRep,
  setRex,
  setSegment,
  settleSizes,
  start,
  undefined_,
} from './decode-modrm'
import * as O from './ops'
import { CS, DS, ES, FS, GS, SS } from './state'

/** Decodes at `code` into the record `op`; returns the length. `decodeEnds()` tells whether the block must end here. */
export function decodeOne(op: usize, code: usize, modeWord: u32, offset: u32): u32 {
  memory.fill(op, 0, O.OP_RECORD_SIZE)
  begin(code, modeWord)
  setBlockOffset(offset)
  let opcode: u32 = 0
  for (;;) {
    opcode = fetch8()
    if (is64 && (opcode & 0xf0) == 0x40) {
      setRex(opcode)
      opcode = fetch8()
      if (!isPrefix(opcode)) break
      // A REX that is not last is ignored; look at this byte again as a prefix.
      setRex(0)
    }
    if (!takePrefix(opcode)) break
    if (at - start > 15) break
  }
  settleSizes()
  store<u8>(op, O.EA_REGISTER, O.OP_EA)
  store<u8>(op, DS, O.OP_SEG)
  if (opcode == 0x0f) decode0f(op)
  else decodeByte(op, opcode)
  let length = <u32>(at - start)
  if (length > 15) {
    setAux(op, O.H_UNDEFINED, 1)
    length = 15
    endBlock()
  } else if (lock && !(lockable && load<u8>(op, O.OP_EA) != O.EA_REGISTER)) {
    undefined_(op)
  }
  if (ripRelative) store<i64>(op, load<i64>(op, O.OP_DISP) + <i64>(offset + length), O.OP_DISP)
  store<u8>(op, <u8>length, O.OP_LENGTH)
  store<u16>(op, <u16>offset, O.OP_OFFSET)
  let flags: u32 = load<u8>(op, O.OP_FLAGS)
  if (lock) flags |= O.OPF_LOCK
  if (rep == 0xf2) flags |= O.OPF_REPNE
  else if (rep == 0xf3) flags |= O.OPF_REP
  if (opSize == 1) flags |= O.OPF_O16
  if (rex & 8) flags |= O.OPF_REX_W
  if (addrSize == 4) flags |= O.OPF_A32
  else if (addrSize == 2) flags |= O.OPF_A16
  store<u8>(op, <u8>flags, O.OP_FLAGS)
  return length
}

export function decodeEnds(): bool {
  return ends
}

function isPrefix(byte: u32): bool {
  if (byte == 0x66 || byte == 0x67 || byte == 0xf0 || byte == 0xf2 || byte == 0xf3) return true
  if (byte == 0x26 || byte == 0x2e || byte == 0x36 || byte == 0x3e || byte == 0x64 || byte == 0x65) return true
  return is64 && (byte & 0xf0) == 0x40
}

function takePrefix(byte: u32): bool {
  if (byte == 0x66) setPrefix66()
  else if (byte == 0x67) setPrefix67()
  else if (byte == 0xf0) setLock()
  else if (byte == 0xf2 || byte == 0xf3) setRep(byte)
  else if (byte == 0x64) setSegment(FS)
  else if (byte == 0x65) setSegment(GS)
  else if (byte == 0x26 || byte == 0x2e || byte == 0x36 || byte == 0x3e) {
    // In 64-bit code these are null prefixes: they do not undo FS or GS.
    if (!is64) setSegment(byte == 0x26 ? ES : byte == 0x2e ? CS : byte == 0x36 ? SS : DS)
  } else return false
  return true
}
