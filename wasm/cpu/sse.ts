/**
 * MMX and SSE: `execVector` takes a predecoded record (ops.ts) and the linear address of its memory operand. This file
 * has the two-byte map (0F xx), moves and shuffles first; arithmetic is in vector-*.ts, the three-byte maps in sse4.ts.
 * Undefined combinations of prefix and opcode raise #UD before anything else (SDM volume 2, appendix A).
 */
import { cpu, gpr, setGpr } from './cpu'
import { faulted, fpuTrapSse, raiseGp, raiseUd } from './fault'
import { probeWrite, read128, read16, read32, read64, write128, write32, write64, write8 } from './memory'
import {
  OP_DST,
  OP_FLAGS,
  OP_IMM,
  OP_SEG,
  OP_SIZE,
  OP_SRC,
  OPF_A32,
  PREFIX_66,
  PREFIX_F2,
  PREFIX_F3,
  PREFIX_NONE,
  SELECTOR_SHIFT,
} from './ops'
import { execFloat } from './sse-float'
import { exec0f38, exec0f3a } from './sse4'
import { S_FTAG, S_SEG, SEG_BASE, SEG_STRIDE, FS } from './state'
import { isPacked, laneMask, packed, packedMmx, shiftAll, shiftLeftBytes, shiftRightBytes, wordMask } from './vector-int'
import {
  commit,
  dst,
  enterMmx,
  isRegister,
  low64,
  mm,
  mmxTrap,
  setMm,
  setXmm,
  setXmm32,
  setXmm64,
  source,
  source32,
  source64,
  sourceMm,
  sourceUnaligned,
  src,
  xmm,
  xmm64,
} from './vector-state'

export function execVector(op: usize, ea: u64): void {
  const selector = load<u16>(op, OP_IMM + 2)
  const opcode: u32 = selector & 0xff
  const prefix: i32 = (selector >> 8) & 3
  const map: u32 = (selector >> 10) & 3
  if (map == 1) return exec0f38(op, ea, opcode, prefix)
  if (map == 2) return exec0f3a(op, ea, opcode, prefix)
  if (prefix <= PREFIX_66 && isPacked(opcode, prefix == PREFIX_NONE)) {
    if (prefix == PREFIX_NONE) return mmxBinary(op, ea, opcode)
    if (fpuTrapSse()) return
    return commit(op, packed(opcode, xmm(dst(op)), source(op, ea)))
  }
  if (opcode < 0x50 && opcode != 0x2a && (opcode < 0x2c || opcode > 0x2f)) return execMove(op, ea, opcode, prefix)
  if (opcode < 0x60 || opcode == 0x7c || opcode == 0x7d || opcode == 0xc2 || opcode == 0xd0 || opcode == 0xe6)
    return execFloat(op, ea, opcode, prefix)
  execOther(op, ea, opcode, prefix)
}

function mmxBinary(op: usize, ea: u64, opcode: u32): void {
  if (mmxTrap()) return
  // Unpacking the low halves reads only 4 bytes of memory.
  const b: u64 = opcode <= 0x62 && !isRegister(op) ? read32(ea) : sourceMm(op, ea)
  if (faulted()) return
  enterMmx()
  const d = dst(op)
  setMm(d, i64x2.extract_lane(packedMmx(opcode, low64(mm(d)), low64(b)), 0))
}

// ---- 0F 10 to 17, 28, 29, 2B: moves

function storeVector(op: usize, ea: u64, aligned: bool): void {
  const value = xmm(dst(op))
  if (isRegister(op)) return setXmm(src(op), value)
  if (aligned && ea & 15) return raiseGp()
  write128(ea, value)
}

function execMove(op: usize, ea: u64, opcode: u32, prefix: i32): void {
  const register = isRegister(op)
  // Memory-only forms: MOVLPS/MOVHPS stores, MOVLPD, MOVHPD, MOVNTPS.
  if (register && (opcode == 0x13 || opcode == 0x17 || opcode == 0x2b)) return raiseUd()
  if (register && prefix == PREFIX_66 && (opcode == 0x12 || opcode == 0x16)) return raiseUd()
  if (prefix >= PREFIX_F3) {
    const both = opcode == 0x10 || opcode == 0x11 || opcode == 0x12
    if (!both && !(opcode == 0x16 && prefix == PREFIX_F3)) return raiseUd()
  }
  if (fpuTrapSse()) return
  const d = dst(op)
  switch (opcode) {
    case 0x10:
      if (prefix <= PREFIX_66) return commit(op, sourceUnaligned(op, ea))
      if (prefix == PREFIX_F3) {
        const value = source32(op, ea)
        if (faulted()) return
        if (register) setXmm32(d, value)
        else setXmm(d, low64(value))
      } else {
        const value = source64(op, ea)
        if (faulted()) return
        if (register) setXmm64(d, value)
        else setXmm(d, low64(value))
      }
      return
    case 0x11:
      if (prefix <= PREFIX_66) return storeVector(op, ea, false)
      if (prefix == PREFIX_F3) {
        if (register) setXmm32(src(op), <u32>xmm64(d))
        else write32(ea, <u32>xmm64(d))
      } else if (register) setXmm64(src(op), xmm64(d))
      else write64(ea, xmm64(d))
      return
    case 0x12:
      if (prefix == PREFIX_F3) {
        const a = source(op, ea)
        return commit(op, i8x16.shuffle(a, a, 0, 1, 2, 3, 0, 1, 2, 3, 8, 9, 10, 11, 8, 9, 10, 11))
      }
      if (prefix == PREFIX_F2) {
        const value = source64(op, ea)
        return commit(op, i64x2.splat(value))
      } else {
        const value: u64 = register ? i64x2.extract_lane(xmm(src(op)), 1) : read64(ea)
        if (!faulted()) setXmm64(d, value)
      }
      return
    case 0x13:
      return write64(ea, xmm64(d))
    case 0x14:
      return commit(op, packed(prefix == PREFIX_66 ? 0x6c : 0x62, xmm(d), source(op, ea)))
    case 0x15:
      return commit(op, packed(prefix == PREFIX_66 ? 0x6d : 0x6a, xmm(d), source(op, ea)))
    case 0x16:
      if (prefix == PREFIX_F3) {
        const a = source(op, ea)
        return commit(op, i8x16.shuffle(a, a, 4, 5, 6, 7, 4, 5, 6, 7, 12, 13, 14, 15, 12, 13, 14, 15))
      }
      return commit(op, i64x2.replace_lane(xmm(d), 1, source64(op, ea)))
    case 0x17:
      return write64(ea, i64x2.extract_lane(xmm(d), 1))
    case 0x28:
      return commit(op, source(op, ea))
    case 0x29:
    case 0x2b:
      return storeVector(op, ea, true)
    default:
      raiseUd()
  }
}

// ---- the rest of 0F 60 to 0F FF

/** Writes 32 or 64 bits to a general register. */
@inline
export function setGeneral(op: usize, n: u32, value: u64): void {
  setGpr(n, load<u8>(op, OP_SIZE) == 3 ? value : value & 0xffffffff)
}

function execOther(op: usize, ea: u64, opcode: u32, prefix: i32): void {
  const register = isRegister(op)
  const wide = load<u8>(op, OP_SIZE) == 3
  const imm: u32 = load<u8>(op, OP_IMM)
  const d = dst(op)
  switch (opcode) {
    case 0x6e: {
      // MOVD, MOVQ from a general register or memory.
      if (prefix >= PREFIX_F3) return raiseUd()
      if (prefix == PREFIX_NONE ? mmxTrap() : fpuTrapSse()) return
      const value: u64 = register ? (wide ? gpr(src(op)) : gpr(src(op)) & 0xffffffff) : wide ? read64(ea) : read32(ea)
      if (faulted()) return
      if (prefix == PREFIX_66) return setXmm(d, low64(value))
      enterMmx()
      return setMm(d, value)
    }
    case 0x7e: {
      if (prefix == PREFIX_F2) return raiseUd()
      if (prefix == PREFIX_NONE ? mmxTrap() : fpuTrapSse()) return
      if (prefix == PREFIX_F3) return commit(op, low64(source64(op, ea)))
      const value = prefix == PREFIX_66 ? xmm64(d) : mm(d)
      if (register) setGeneral(op, src(op), value)
      else if (wide) write64(ea, value)
      else write32(ea, <u32>value)
      if (prefix == PREFIX_NONE && !faulted()) enterMmx()
      return
    }
    case 0x6f: {
      if (prefix == PREFIX_F2) return raiseUd()
      if (prefix == PREFIX_NONE) {
        if (mmxTrap()) return
        const value = sourceMm(op, ea)
        if (faulted()) return
        enterMmx()
        return setMm(d, value)
      }
      if (fpuTrapSse()) return
      return commit(op, prefix == PREFIX_66 ? source(op, ea) : sourceUnaligned(op, ea))
    }
    case 0x7f: {
      if (prefix == PREFIX_F2) return raiseUd()
      if (prefix != PREFIX_NONE) {
        if (!fpuTrapSse()) storeVector(op, ea, prefix == PREFIX_66)
        return
      }
      if (mmxTrap()) return
      if (register) {
        enterMmx()
        setMm(src(op), mm(d))
      } else {
        write64(ea, mm(d))
        if (!faulted()) enterMmx()
      }
      return
    }
    case 0x70: {
      if (prefix == PREFIX_NONE) {
        if (mmxTrap()) return
        const value = sourceMm(op, ea)
        if (faulted()) return
        enterMmx()
        return setMm(d, i64x2.extract_lane(i8x16.swizzle(low64(value), low64(wordMask(imm))), 0))
      }
      if (fpuTrapSse()) return
      const a = source(op, ea)
      if (prefix == PREFIX_66) return commit(op, i8x16.swizzle(a, laneMask(imm)))
      if (prefix == PREFIX_F2) return commit(op, i8x16.swizzle(a, i64x2(wordMask(imm), 0x0f0e0d0c0b0a0908)))
      return commit(op, i8x16.swizzle(a, i64x2(0x0706050403020100, wordMask(imm) + 0x0808080808080808)))
    }
    case 0x71:
    case 0x72:
    case 0x73:
      return shiftImmediate(op, opcode, prefix, imm)
    case 0x77: // EMMS
      if (prefix != PREFIX_NONE) return raiseUd()
      if (mmxTrap()) return
      enterMmx()
      store<u32>(cpu, 0, S_FTAG)
      return
    case 0xc3: // MOVNTI
      if (prefix != PREFIX_NONE || register) return raiseUd()
      if (wide) write64(ea, gpr(d))
      else write32(ea, <u32>gpr(d))
      return
    case 0xc4: {
      // PINSRW
      if (prefix >= PREFIX_F3) return raiseUd()
      if (prefix == PREFIX_NONE ? mmxTrap() : fpuTrapSse()) return
      const value: u64 = register ? gpr(src(op)) & 0xffff : read16(ea)
      if (faulted()) return
      if (prefix == PREFIX_66) {
        store<u16>(cpu + d * 32 + ((imm & 7) << 1), <u16>value, 0x500)
        return
      }
      enterMmx()
      const shift: u64 = (imm & 3) << 4
      return setMm(d, (mm(d) & ~(<u64>0xffff << shift)) | (value << shift))
    }
    case 0xc5: // PEXTRW
      if (prefix >= PREFIX_F3 || !register) return raiseUd()
      if (prefix == PREFIX_NONE) {
        if (mmxTrap()) return
        enterMmx()
        return setGpr(d, (mm(src(op)) >> ((imm & 3) << 4)) & 0xffff)
      }
      if (!fpuTrapSse()) setGpr(d, load<u16>(cpu + src(op) * 32 + ((imm & 7) << 1), 0x500))
      return
    case 0xc6: {
      // SHUFPS, SHUFPD
      if (prefix >= PREFIX_F3) return raiseUd()
      if (fpuTrapSse()) return
      const a = xmm(d),
        b = source(op, ea)
      if (prefix == PREFIX_66)
        return commit(
          op,
          i64x2(
            imm & 1 ? i64x2.extract_lane(a, 1) : i64x2.extract_lane(a, 0),
            imm & 2 ? i64x2.extract_lane(b, 1) : i64x2.extract_lane(b, 0),
          ),
        )
      const mask = laneMask(imm)
      return commit(op, i8x16.shuffle(i8x16.swizzle(a, mask), i8x16.swizzle(b, mask), 0, 1, 2, 3, 4, 5, 6, 7, 24, 25, 26, 27, 28, 29, 30, 31))
    }
    case 0xd6:
      if (prefix == PREFIX_NONE) return raiseUd()
      if (prefix == PREFIX_66) {
        if (fpuTrapSse()) return
        if (register) setXmm(src(op), low64(xmm64(d)))
        else write64(ea, xmm64(d))
        return
      }
      if (!register) return raiseUd()
      if (fpuTrapSse() || mmxTrap()) return
      enterMmx()
      if (prefix == PREFIX_F3) setXmm(d, low64(mm(src(op))))
      else setMm(d, xmm64(src(op)))
      return
    case 0xd7: // PMOVMSKB
      if (prefix >= PREFIX_F3 || !register) return raiseUd()
      if (prefix == PREFIX_66) {
        if (!fpuTrapSse()) setGpr(d, i8x16.bitmask(xmm(src(op))))
        return
      }
      if (mmxTrap()) return
      enterMmx()
      return setGpr(d, i8x16.bitmask(low64(mm(src(op)))))
    case 0xe7: // MOVNTQ, MOVNTDQ
      if (prefix >= PREFIX_F3 || register) return raiseUd()
      if (prefix == PREFIX_66) {
        if (!fpuTrapSse()) storeVector(op, ea, true)
        return
      }
      if (mmxTrap()) return
      write64(ea, mm(d))
      if (!faulted()) enterMmx()
      return
    case 0xf0: // LDDQU
      if (prefix != PREFIX_F2 || register) return raiseUd()
      if (!fpuTrapSse()) commit(op, read128(ea))
      return
    case 0xf7:
      return maskedMove(op, prefix)
    default:
      raiseUd()
  }
}

/** 0F 71 to 73: shifts by an immediate; the operation is in ModRM.reg, the register in ModRM.rm. */
function shiftImmediate(op: usize, opcode: u32, prefix: i32, imm: u32): void {
  const kind = dst(op) & 7
  const bytes = opcode == 0x73 && (kind == 3 || kind == 7)
  if (prefix >= PREFIX_F3 || !isRegister(op)) return raiseUd()
  if (bytes ? prefix == PREFIX_NONE : kind != 2 && kind != 6 && (kind != 4 || opcode == 0x73)) return raiseUd()
  const n = src(op)
  if (bytes) {
    if (!fpuTrapSse()) setXmm(n, kind == 3 ? shiftRightBytes(xmm(n), imm) : shiftLeftBytes(xmm(n), imm))
    return
  }
  const shift: u32 = (kind == 2 ? 0xd0 : kind == 4 ? 0xe0 : 0xf0) + (opcode & 3)
  if (prefix == PREFIX_66) {
    if (!fpuTrapSse()) setXmm(n, shiftAll(shift, xmm(n), imm))
    return
  }
  if (mmxTrap()) return
  enterMmx()
  setMm(n, i64x2.extract_lane(shiftAll(shift, low64(mm(n)), imm), 0))
}

/** MASKMOVQ, MASKMOVDQU: bytes of the first operand whose mask has the top bit, to DS:rDI. */
function maskedMove(op: usize, prefix: i32): void {
  if (prefix >= PREFIX_F3 || !isRegister(op)) return raiseUd()
  if (prefix == PREFIX_66 ? fpuTrapSse() : mmxTrap()) return
  let address = gpr(7)
  if (load<u8>(op, OP_FLAGS) & OPF_A32) address &= 0xffffffff
  const segment: i32 = load<u8>(op, OP_SEG)
  if (segment >= FS) address += load<u64>(cpu + segment * SEG_STRIDE, S_SEG + SEG_BASE)
  const value = prefix == PREFIX_66 ? xmm(dst(op)) : low64(mm(dst(op)))
  const mask: u32 = i8x16.bitmask(prefix == PREFIX_66 ? xmm(src(op)) : low64(mm(src(op))))
  const size: u32 = prefix == PREFIX_66 ? 16 : 8
  if (prefix != PREFIX_66) enterMmx()
  // The whole operand is checked, whatever the mask, as AMD's processors do.
  if (!probeWrite(address, size)) return
  for (let i: u32 = 0; i < size; i++) {
    if (!((mask >> i) & 1)) continue
    const half: u64 = i < 8 ? i64x2.extract_lane(value, 0) : i64x2.extract_lane(value, 1)
    write8(address + i, <u32>(half >> ((i & 7) << 3)) & 0xff)
  }
}
