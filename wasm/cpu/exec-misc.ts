/** Instructions that neither transfer control nor change how code is decoded, but are rare. */
import { cpu } from './cpu'
import { cpuid } from './cpuid'
import { sum, effectiveSlow } from './ea'
import { getAt, putAt, readSized } from './exec-integer'
import { writeSized } from './exec-stack'
import { raise, raiseGp, raiseUd, VECTOR_BR, VECTOR_DE, VECTOR_GP } from './fault'
import { adjust, AF, arithmeticFlags, carry, CF, setArithmeticFlags, setShiftFlags, ZF } from './flags'
import { read16, read8, write16, write32, write64 } from './memory'
import { isProtected, isVirtual8086, segmentAt } from './mode'
import * as O from './ops'
import { descriptor, descriptorAttributes, descriptorDpl, descriptorLimit, fetchDescriptor } from './segmentation'
import {
  FS,
  GS,
  LDTR,
  MODE_64,
  MODE_SIZE_MASK,
  S_ATTENTION,
  S_CPL,
  S_CR0,
  S_CR4,
  S_FAULT,
  S_GDT_BASE,
  S_GDT_LIMIT,
  S_IDT_BASE,
  S_IDT_LIMIT,
  S_MODE,
  S_RAX,
  S_RBX,
  S_RCX,
  S_RDRAND,
  S_RDX,
  S_XCR0,
  SEG_BASE,
  SEG_SELECTOR,
  TR,
} from './state'
import { fxrstor, fxsave, loadMxcsr, storeMxcsr, xrstor, xsave } from './xsave'

@inline
function in64(): bool {
  return (load<u32>(cpu, S_MODE) & MODE_SIZE_MASK) == MODE_64
}

function address(op: usize, bytes: u32): u64 {
  return load<u8>(op, O.OP_EA) == 0 ? sum(cpu, op) : effectiveSlow(op, bytes)
}

/** 16-bit rm operand: selectors. */
export function readSelector(op: usize): u32 {
  if (load<u8>(op, O.OP_EA) == O.EA_REGISTER) return load<u16>(cpu + <usize>load<u8>(op, O.OP_SRC))
  return read16(address(op, 2))
}

/** A selector-like value to rm: the whole register, or 16 bits of memory. */
function writeSelector(op: usize, value: u64): void {
  if (load<u8>(op, O.OP_EA) == O.EA_REGISTER)
    putAt(cpu + <usize>load<u8>(op, O.OP_SRC), load<u8>(op, O.OP_SIZE), value)
  else write16(address(op, 2), <u32>value)
}

function source(op: usize): i64 {
  const size = <u32>load<u8>(op, O.OP_SIZE)
  if (load<u8>(op, O.OP_EA) == O.EA_REGISTER) return getAt(cpu + <usize>load<u8>(op, O.OP_SRC), size)
  return readSized(address(op, 1 << size), size)
}

export function miscellaneous(op: usize): void {
  const c = cpu
  const kind = <u32>load<u8>(op, O.OP_AUX)
  const size = <u32>load<u8>(op, O.OP_SIZE)
  switch (kind) {
    case O.MISC_DAA:
    case O.MISC_DAS:
      decimalAdjust(kind == O.MISC_DAS)
      return
    case O.MISC_AAA:
    case O.MISC_AAS:
      asciiAdjust(kind == O.MISC_AAS)
      return
    case O.MISC_AAM: {
      const base = load<u32>(op, O.OP_IMM)
      if (!base) {
        raise(VECTOR_DE)
        return
      }
      const al = <u32>load<u8>(c, S_RAX)
      store<u16>(c, <u16>(((al / base) << 8) | al % base), S_RAX)
      setShiftFlags(c, <i64>(<i8>(al % base)), 0)
      return
    }
    case O.MISC_AAD: {
      const ax = <u32>load<u16>(c, S_RAX)
      const al = ((ax >> 8) * load<u32>(op, O.OP_IMM) + ax) & 0xff
      store<u16>(c, <u16>al, S_RAX)
      setShiftFlags(c, <i64>(<i8>al), 0)
      return
    }
    case O.MISC_XLAT: {
      // [rBX + AL]: the record carries the segment; add AL to the base by hand.
      store<u8>(op, <u8>S_RBX, O.OP_BASE)
      store<u8>(op, 0x80, O.OP_INDEX)
      store<u64>(op, <u64>load<u8>(c, S_RAX), O.OP_DISP)
      const value = read8(address(op, 1))
      if (!load<u32>(c, S_FAULT)) store<u8>(c, <u8>value, S_RAX)
      return
    }
    case O.MISC_MOVBE_LOAD: {
      const value = <u64>readSized(address(op, 1 << size), size)
      if (load<u32>(c, S_FAULT)) return
      putAt(c + <usize>load<u8>(op, O.OP_DST), size, bswap<u64>(value) >> (64 - (8 << size)))
      return
    }
    case O.MISC_MOVBE_STORE: {
      const value = <u64>getAt(c + <usize>load<u8>(op, O.OP_DST), size)
      writeSized(address(op, 1 << size), size, bswap<u64>(value) >> (64 - (8 << size)))
      return
    }
    case O.MISC_CRC32: {
      const value = source(op)
      if (!load<u32>(c, S_FAULT)) crc32(op, <u64>value, 1 << size)
      return
    }
    case O.MISC_BOUND: {
      const at = address(op, 2 << size)
      const low = readSized(at, size)
      const high = readSized(at + (1 << size), size)
      const index = getAt(c + <usize>load<u8>(op, O.OP_DST), size)
      if (!load<u32>(c, S_FAULT) && (index < low || index > high)) raise(VECTOR_BR)
      return
    }
    case O.MISC_ARPL:
      arpl(op)
      return
    case O.MISC_MOV_FROM_SEG:
      writeSelector(op, load<u32>(segmentAt(load<u8>(op, O.OP_AUX2)), SEG_SELECTOR))
      return
    case O.MISC_SLDT:
    case O.MISC_STR:
      if (!isProtected() || isVirtual8086()) raiseUd()
      else writeSelector(op, load<u32>(segmentAt(kind == O.MISC_STR ? TR : LDTR), SEG_SELECTOR))
      return
    case O.MISC_VERR:
    case O.MISC_VERW:
    case O.MISC_LAR:
    case O.MISC_LSL:
      inspectDescriptor(op, kind)
      return
    case O.MISC_SMSW:
      writeSelector(op, load<u64>(c, S_CR0))
      return
    case O.MISC_SGDT:
    case O.MISC_SIDT:
      storeTable(op, kind == O.MISC_SGDT)
      return
    case O.MISC_RDPMC:
      raiseGp()
      return
    case O.MISC_XGETBV:
      if (!(load<u64>(c, S_CR4) & (1 << 18))) raiseUd()
      else if (load<u32>(c, S_RCX) != 0) raiseGp()
      else {
        store<u64>(c, load<u64>(c, S_XCR0) & 0xffff_ffff, S_RAX)
        store<u64>(c, 0, S_RDX)
      }
      return
    case O.MISC_RDPID:
      // Not advertised.
      raiseUd()
      return
    case O.MISC_FXSAVE:
      fxsave(address(op, 512), (load<u8>(op, O.OP_FLAGS) & O.OPF_REX_W) != 0)
      return
    case O.MISC_FXRSTOR:
      fxrstor(address(op, 512))
      return
    case O.MISC_LDMXCSR:
      loadMxcsr(address(op, 4))
      return
    case O.MISC_STMXCSR:
      storeMxcsr(address(op, 4))
      return
    case O.MISC_XSAVE:
    case O.MISC_XSAVEOPT:
      xsave(address(op, 576), (load<u8>(op, O.OP_FLAGS) & O.OPF_REX_W) != 0, false)
      return
    case O.MISC_XSAVEC:
      xsave(address(op, 576), (load<u8>(op, O.OP_FLAGS) & O.OPF_REX_W) != 0, true)
      return
    case O.MISC_XRSTOR:
      xrstor(address(op, 576))
      return
    case O.MISC_CLFLUSH:
      // No caches; the address must be readable.
      read8(address(op, 1))
      return
    case O.MISC_FENCE:
      // A locked operation is a full fence.
      atomic.add<u32>(c + S_ATTENTION, 0)
      return
    case O.MISC_RDRAND: {
      // xorshift64*, seeded by the host: random enough for a guest that mixes it with other sources.
      let x = load<u64>(c, S_RDRAND)
      if (!x) x = 0x9e37_79b9_7f4a_7c15
      x ^= x >> 12
      x ^= x << 25
      x ^= x >> 27
      store<u64>(c, x, S_RDRAND)
      putAt(c + <usize>load<u8>(op, O.OP_DST), size, x * 0x2545_f491_4f6c_dd1d)
      setArithmeticFlags(CF)
      return
    }
    case O.MISC_RDFSBASE:
      fsgsBase(op)
      return
    case O.MISC_ADCX:
    case O.MISC_ADOX:
      // Not advertised (no ADX).
      raiseUd()
      return
    case O.MISC_CPUID:
      cpuid()
      return
    default:
      raiseUd()
  }
}

function decimalAdjust(subtract: bool): void {
  const c = cpu
  const old = <u32>load<u8>(c, S_RAX)
  const hadCarry = carry()
  let al = old
  let flags: u32 = 0
  if ((old & 15) > 9 || adjust()) {
    flags |= AF
    if (subtract) {
      if (hadCarry || old < 6) flags |= CF
      al -= 6
    } else {
      if (hadCarry || old > 0xf9) flags |= CF
      al += 6
    }
  }
  if (old > 0x99 || hadCarry) {
    al = subtract ? al - 0x60 : al + 0x60
    flags |= CF
  }
  store<u8>(c, <u8>al, S_RAX)
  setShiftFlags(c, <i64>(<i8>al), flags)
}

function asciiAdjust(subtract: bool): void {
  const c = cpu
  const ax = <u32>load<u16>(c, S_RAX)
  let flags: u32 = 0
  let result = ax
  if ((ax & 15) > 9 || adjust()) {
    result = subtract ? ax - 0x106 : ax + 0x106
    flags = AF | CF
  }
  store<u16>(c, <u16>(result & 0xff0f), S_RAX)
  setShiftFlags(c, <i64>(<i8>(result & 0xf)), flags)
}

/** CRC-32C of `bytes` bytes of `value` (SSE4.2). */
function crc32(op: usize, value: u64, bytes: u32): void {
  const d = cpu + <usize>load<u8>(op, O.OP_DST)
  let crc = load<u32>(d)
  for (let i: u32 = 0; i < bytes; i++) {
    crc ^= <u32>(value >> (<u64>i << 3)) & 0xff
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >> 1) ^ 0x82f6_3b78 : crc >> 1
  }
  store<u64>(d, <u64>crc)
}

function arpl(op: usize): void {
  const c = cpu
  if (!isProtected() || isVirtual8086()) {
    raiseUd()
    return
  }
  const selector = readSelector(op)
  const wanted = <u32>load<u16>(c + <usize>load<u8>(op, O.OP_DST)) & 3
  if (load<u32>(c, S_FAULT)) return
  const lower = (selector & 3) < wanted
  if (lower) {
    const value = (selector & 0xfffc) | wanted
    if (load<u8>(op, O.OP_EA) == O.EA_REGISTER) store<u16>(c + <usize>load<u8>(op, O.OP_SRC), <u16>value)
    else write16(address(op, 2), value)
    if (load<u32>(c, S_FAULT)) return
  }
  setArithmeticFlags((arithmeticFlags() & ~ZF) | (lower ? ZF : 0))
}

/** VERR VERW LAR LSL: ZF tells whether the descriptor could be used; no fault for a bad selector. */
function inspectDescriptor(op: usize, kind: u32): void {
  const c = cpu
  if (!isProtected() || isVirtual8086()) {
    raiseUd()
    return
  }
  const selector = readSelector(op)
  if (load<u32>(c, S_FAULT)) return
  const flags = arithmeticFlags() & ~ZF
  let ok = (selector & 0xfffc) != 0
  if (ok && !fetchDescriptor(selector, VECTOR_GP)) {
    // A selector outside the table is an answer, a page fault is a fault.
    if (load<u32>(c, S_FAULT) && load<u32>(c, S_FAULT + 4) != VECTOR_GP) return
    store<u32>(c, 0, S_FAULT)
    ok = false
  }
  if (ok) {
    const attributes = descriptorAttributes()
    const type = attributes & 15
    const segment = (attributes & 0x10) != 0
    const conforming = segment && (type & 12) == 12
    const dpl = descriptorDpl()
    const visible = conforming || (load<u32>(c, S_CPL) <= dpl && (selector & 3) <= dpl)
    if (kind == O.MISC_VERR) ok = segment && visible && (!(type & 8) || (type & 2) != 0)
    else if (kind == O.MISC_VERW) ok = segment && visible && (type & 10) == 2
    else {
      ok = visible
      // System types that LAR and LSL know: LDT, TSS, and for LAR gates.
      if (!segment) {
        const long = (load<u64>(c, 0x228) & 0x400) != 0
        const forLsl = type == 2 || type == 9 || type == 11 || (!long && (type == 1 || type == 3))
        const gates = type == 12 || (!long && (type == 4 || type == 5))
        ok = ok && (forLsl || (kind == O.MISC_LAR && gates))
      }
      if (ok) {
        const value: u64 = kind == O.MISC_LSL ? descriptorLimit() : <u64>(<u32>(descriptor >> 32) & 0x00f0_ff00)
        putAt(c + <usize>load<u8>(op, O.OP_DST), load<u8>(op, O.OP_SIZE), value)
      }
    }
  }
  setArithmeticFlags(flags | (ok ? ZF : 0))
}

function storeTable(op: usize, global: bool): void {
  const c = cpu
  const at = address(op, 6)
  const base = load<u64>(c + (global ? S_GDT_BASE : S_IDT_BASE))
  write16(at, global ? load<u32>(c, S_GDT_LIMIT) : load<u32>(c, S_IDT_LIMIT))
  if (in64()) write64(at + 2, base)
  else write32(at + 2, <u32>base)
}

function fsgsBase(op: usize): void {
  const c = cpu
  if (!(load<u64>(c, S_CR4) & (1 << 16))) {
    raiseUd()
    return
  }
  const kind = <u32>load<u8>(op, O.OP_AUX2)
  const segment = segmentAt(kind & 1 ? GS : FS)
  const register = c + <usize>load<u8>(op, O.OP_SRC)
  const size = <u32>load<u8>(op, O.OP_SIZE)
  if (kind < 2) {
    putAt(register, size, load<u64>(segment, SEG_BASE))
    return
  }
  const value = size == 3 ? load<u64>(register) : <u64>load<u32>(register)
  if (<u64>((<i64>(value << 16)) >> 16) != value) raiseGp()
  else store<u64>(segment, value, SEG_BASE)
}
