/** Two- and three-byte opcodes: 0F, 0F38, 0F3A. */
import { conditional, loadFar, misc, stack, system } from './decode-forms'
import {
  allowLock,
  default64,
  fetch8,
  is64,
  isMemory,
  modByte,
  modrm,
  opSize,
  prefix66,
  reg,
  rep,
  rex,
  rm,
  setAux,
  setDst,
  setHandler,
  setImm,
  setSize,
  setSrc,
  undefined_,
} from './decode-modrm'
import * as O from './ops'
import { FS, GS, SS } from './state'

/** The mandatory prefix as PREFIX_*: F2 and F3 win over 66. */
function mandatory(): u32 {
  return rep == 0xf3 ? O.PREFIX_F3 : rep == 0xf2 ? O.PREFIX_F2 : prefix66 ? O.PREFIX_66 : O.PREFIX_NONE
}

/** An MMX or SSE instruction; ModRM follows, then imm8 when `hasImmediate`. */
function vector(op: usize, map: u32, opcode: u32, hasImmediate: bool): void {
  modrm(op)
  setHandler(op, O.H_VECTOR)
  setSize(op, rex & 8 ? 3 : 2)
  store<u8>(op, <u8>reg, O.OP_DST)
  store<u8>(op, <u8>rm, O.OP_SRC)
  const selector = opcode | (mandatory() << 8) | (map << 10)
  const value: u32 = hasImmediate ? fetch8() : 0
  setImm(op, <i64>((selector << O.SELECTOR_SHIFT) | value))
}

/** rm operand in OP_SRC (register form), reg in OP_DST. */
function operands(op: usize, size: u32): void {
  modrm(op)
  setSize(op, size)
  setDst(op, reg, size)
  if (!isMemory()) setSrc(op, rm, size)
}

function extend(op: usize, registerHandler: u32, memoryHandler: u32, from: u32): void {
  modrm(op)
  setSize(op, opSize)
  setDst(op, reg, opSize)
  if (!isMemory()) setSrc(op, rm, from)
  setHandler(op, isMemory() ? memoryHandler : registerHandler)
}

function group6(op: usize): void {
  modrm(op)
  if (!isMemory()) setSrc(op, rm, opSize)
  switch (reg & 7) {
    case 0:
      misc(op, O.MISC_SLDT)
      return
    case 1:
      misc(op, O.MISC_STR)
      return
    case 2:
      system(op, O.SYS_LLDT)
      return
    case 3:
      system(op, O.SYS_LTR)
      return
    case 4:
      misc(op, O.MISC_VERR)
      return
    case 5:
      misc(op, O.MISC_VERW)
      return
    default:
      undefined_(op)
  }
}

function group7(op: usize): void {
  modrm(op)
  const kind = reg & 7
  if (isMemory()) {
    switch (kind) {
      case 0:
        misc(op, O.MISC_SGDT)
        return
      case 1:
        misc(op, O.MISC_SIDT)
        return
      case 2:
        system(op, O.SYS_LGDT)
        return
      case 3:
        system(op, O.SYS_LIDT)
        return
      case 4:
        misc(op, O.MISC_SMSW)
        return
      case 6:
        system(op, O.SYS_LMSW)
        return
      case 7:
        system(op, O.SYS_INVLPG)
        return
      default:
        undefined_(op)
        return
    }
  }
  if (kind == 4) {
    setSrc(op, rm, opSize)
    misc(op, O.MISC_SMSW)
    return
  }
  if (kind == 6) {
    setSrc(op, rm, 1)
    system(op, O.SYS_LMSW)
    return
  }
  switch (modByte) {
    case 0xc8:
      system(op, O.SYS_MONITOR)
      return
    case 0xc9:
      system(op, O.SYS_MWAIT)
      return
    case 0xd0:
      misc(op, O.MISC_XGETBV)
      return
    case 0xd1:
      system(op, O.SYS_XSETBV)
      return
    case 0xf8:
      if (is64) system(op, O.SYS_SWAPGS)
      else undefined_(op)
      return
    case 0xf9:
      system(op, O.SYS_RDTSCP)
      return
    default:
      undefined_(op)
  }
}

function group15(op: usize): void {
  modrm(op)
  const kind = reg & 7
  if (isMemory()) {
    if (prefix66 || rep) {
      // CLFLUSHOPT (66 /7) and CLWB (66 /6) write nothing that we keep back.
      if (prefix66 && kind >= 6) misc(op, O.MISC_CLFLUSH)
      else undefined_(op)
      return
    }
    switch (kind) {
      case 0:
        misc(op, O.MISC_FXSAVE)
        return
      case 1:
        misc(op, O.MISC_FXRSTOR)
        return
      case 2:
        misc(op, O.MISC_LDMXCSR)
        return
      case 3:
        misc(op, O.MISC_STMXCSR)
        return
      case 4:
        misc(op, O.MISC_XSAVE)
        return
      case 5:
        misc(op, O.MISC_XRSTOR)
        return
      case 6:
        misc(op, O.MISC_XSAVEOPT)
        return
      default:
        misc(op, O.MISC_CLFLUSH)
        return
    }
  }
  if (rep == 0xf3) {
    if (kind < 4 && is64) {
      setSrc(op, rm, opSize)
      misc(op, O.MISC_RDFSBASE)
      store<u8>(op, <u8>kind, O.OP_AUX2)
    } else undefined_(op)
    return
  }
  if (kind >= 5 && !prefix66 && !rep) misc(op, O.MISC_FENCE)
  else undefined_(op)
}

function group9(op: usize): void {
  modrm(op)
  const kind = reg & 7
  if (isMemory()) {
    if (kind == 1) {
      allowLock()
      setHandler(op, O.H_CMPXCHG8B)
      setSize(op, rex & 8 ? 3 : 2)
    } else if (kind == 4) misc(op, O.MISC_XSAVEC)
    else undefined_(op)
    return
  }
  if (kind == 6 && !rep) {
    setDst(op, rm, opSize)
    misc(op, O.MISC_RDRAND)
  } else if (kind == 7 && !rep) {
    setDst(op, rm, opSize)
    misc(op, O.MISC_RDRAND)
  } else if (kind == 7 && rep == 0xf3) {
    setDst(op, rm, 3)
    misc(op, O.MISC_RDPID)
  } else undefined_(op)
}

function bitTest(op: usize, kind: u32): void {
  operands(op, opSize)
  if (kind) allowLock()
  setAux(op, O.H_BIT, kind)
}

function doubleShift(op: usize, kind: u32, byCl: bool): void {
  operands(op, opSize)
  if (byCl) store<u8>(op, 1, O.OP_AUX2)
  else setImm(op, fetch8())
  setAux(op, O.H_DSHIFT, kind)
}

function moveControl(op: usize, toControl: bool, debug: bool): void {
  // Always register form: mod is ignored.
  const byte = fetch8()
  const number = ((byte >> 3) & 7) | ((rex & 4) << 1)
  setSrc(op, (byte & 7) | ((rex & 1) << 3), 3)
  if (debug ? number > 7 : !(number == 0 || (number >= 2 && number <= 4) || number == 8)) {
    undefined_(op)
    return
  }
  if (debug) system(op, toControl ? O.SYS_MOV_TO_DR : O.SYS_MOV_FROM_DR)
  else system(op, toControl ? O.SYS_MOV_TO_CR : O.SYS_MOV_FROM_CR)
  setSize(op, is64 ? 3 : 2)
  store<u8>(op, <u8>number, O.OP_AUX2)
}

function decode38(op: usize): void {
  const opcode = fetch8()
  if (opcode == 0xf0 || opcode == 0xf1) {
    if (rep == 0xf2) {
      const size = opcode == 0xf0 ? 0 : opSize
      modrm(op)
      setDst(op, reg, 3)
      if (!isMemory()) setSrc(op, rm, size)
      misc(op, O.MISC_CRC32)
      setSize(op, size)
      return
    }
    modrm(op)
    if (rep || !isMemory()) {
      undefined_(op)
      return
    }
    setDst(op, reg, opSize)
    misc(op, opcode == 0xf0 ? O.MISC_MOVBE_LOAD : O.MISC_MOVBE_STORE)
    return
  }
  if (opcode == 0xf6) {
    modrm(op)
    const size: u32 = rex & 8 ? 3 : 2
    setDst(op, reg, size)
    if (!isMemory()) setSrc(op, rm, size)
    if (rep == 0xf3) misc(op, O.MISC_ADOX)
    else if (prefix66) misc(op, O.MISC_ADCX)
    else undefined_(op)
    setSize(op, size)
    return
  }
  if (opcode == 0x82 && prefix66) {
    modrm(op)
    if (!isMemory()) undefined_(op)
    else {
      setDst(op, reg, 3)
      system(op, O.SYS_INVPCID)
    }
    return
  }
  if (opcode >= 0xf0) {
    modrm(op)
    undefined_(op)
    return
  }
  vector(op, 1, opcode, false)
}

export function decode0f(op: usize): void {
  const opcode = fetch8()
  switch (opcode >> 4) {
    case 4:
      operands(op, opSize)
      setAux(op, isMemory() ? O.H_CMOV_M : O.H_CMOV_R, opcode & 15)
      return
    case 5:
    case 6:
    case 0xd:
    case 0xe:
      vector(op, 0, opcode, false)
      return
    case 7:
      if (opcode == 0x77) {
        setHandler(op, O.H_VECTOR)
        setImm(op, 0x77 << O.SELECTOR_SHIFT)
      } else if (opcode == 0x78 || opcode == 0x79) undefined_(op)
      else vector(op, 0, opcode, opcode < 0x74)
      return
    case 8:
      conditional(op, opcode & 15, opSize == 1 && !is64 ? 1 : 2)
      return
    case 9:
      modrm(op)
      setSize(op, 0)
      if (!isMemory()) setDst(op, rm, 0)
      setAux(op, isMemory() ? O.H_SETCC_M : O.H_SETCC_R, opcode & 15)
      return
    case 0xf:
      if (opcode == 0xff) {
        modrm(op)
        undefined_(op)
      } else vector(op, 0, opcode, false)
      return
  }
  switch (opcode) {
    case 0x00:
      group6(op)
      return
    case 0x01:
      group7(op)
      return
    case 0x02:
    case 0x03:
      operands(op, opSize)
      misc(op, opcode == 2 ? O.MISC_LAR : O.MISC_LSL)
      return
    case 0x05:
      system(op, O.SYS_SYSCALL)
      return
    case 0x06:
      system(op, O.SYS_CLTS)
      return
    case 0x07:
      system(op, O.SYS_SYSRET)
      return
    case 0x08:
    case 0x09:
      system(op, O.SYS_WBINVD)
      return
    case 0x0d:
    case 0x18:
    case 0x19:
    case 0x1a:
    case 0x1b:
    case 0x1c:
    case 0x1d:
    case 0x1e:
    case 0x1f:
      modrm(op)
      setHandler(op, O.H_NOP)
      return
    case 0x10:
    case 0x11:
    case 0x12:
    case 0x13:
    case 0x14:
    case 0x15:
    case 0x16:
    case 0x17:
    case 0x28:
    case 0x29:
    case 0x2a:
    case 0x2b:
    case 0x2c:
    case 0x2d:
    case 0x2e:
    case 0x2f:
      vector(op, 0, opcode, false)
      return
    case 0x20:
      moveControl(op, false, false)
      return
    case 0x21:
      moveControl(op, false, true)
      return
    case 0x22:
      moveControl(op, true, false)
      return
    case 0x23:
      moveControl(op, true, true)
      return
    case 0x30:
      system(op, O.SYS_WRMSR)
      return
    case 0x31:
      system(op, O.SYS_RDTSC)
      return
    case 0x32:
      system(op, O.SYS_RDMSR)
      return
    case 0x33:
      misc(op, O.MISC_RDPMC)
      return
    case 0x34:
      system(op, O.SYS_SYSENTER)
      return
    case 0x35:
      system(op, O.SYS_SYSEXIT)
      return
    case 0x38:
      decode38(op)
      return
    case 0x3a:
      vector(op, 2, fetch8(), true)
      return
    case 0xa0:
    case 0xa8:
      default64()
      stack(op, O.STACK_PUSH_SEG)
      store<u8>(op, opcode == 0xa0 ? FS : GS, O.OP_AUX2)
      return
    case 0xa1:
    case 0xa9:
      default64()
      system(op, O.SYS_POP_SEG)
      store<u8>(op, opcode == 0xa1 ? FS : GS, O.OP_AUX2)
      return
    case 0xa2:
      misc(op, O.MISC_CPUID)
      return
    case 0xa3:
      bitTest(op, 0)
      return
    case 0xab:
      bitTest(op, 1)
      return
    case 0xb3:
      bitTest(op, 2)
      return
    case 0xbb:
      bitTest(op, 3)
      return
    case 0xa4:
    case 0xa5:
      doubleShift(op, 0, opcode == 0xa5)
      return
    case 0xac:
    case 0xad:
      doubleShift(op, 1, opcode == 0xad)
      return
    case 0xae:
      group15(op)
      return
    case 0xaf:
      operands(op, opSize)
      setAux(op, isMemory() ? O.H_IMUL_M : O.H_IMUL_R, 0)
      return
    case 0xb0:
    case 0xb1:
      operands(op, opcode & 1 ? opSize : 0)
      allowLock()
      setHandler(op, O.H_CMPXCHG)
      return
    case 0xb2:
      loadFar(op, SS)
      return
    case 0xb4:
      loadFar(op, FS)
      return
    case 0xb5:
      loadFar(op, GS)
      return
    case 0xb6:
      extend(op, O.H_MOVZX_R8, O.H_MOVZX_M8, 0)
      return
    case 0xb7:
      extend(op, O.H_MOVZX_R16, O.H_MOVZX_M16, 1)
      return
    case 0xbe:
      extend(op, O.H_MOVSX_R8, O.H_MOVSX_M8, 0)
      return
    case 0xbf:
      extend(op, O.H_MOVSX_R16, O.H_MOVSX_M16, 1)
      return
    case 0xb8:
      operands(op, opSize)
      if (rep == 0xf3) setAux(op, O.H_SCAN, 4)
      else undefined_(op)
      return
    case 0xb9:
      modrm(op)
      undefined_(op)
      return
    case 0xba: {
      modrm(op)
      const kind = reg & 7
      if (kind < 4) {
        undefined_(op)
        return
      }
      setSize(op, opSize)
      if (!isMemory()) setSrc(op, rm, opSize)
      if (kind > 4) allowLock()
      setImm(op, fetch8())
      store<u8>(op, 1, O.OP_AUX2)
      setAux(op, O.H_BIT, kind - 4)
      return
    }
    case 0xbc:
    case 0xbd:
      // TZCNT and LZCNT are not advertised (no BMI1, no ABM), so F3 is ignored here.
      operands(op, opSize)
      setAux(op, O.H_SCAN, opcode - 0xbc)
      return
    case 0xc0:
    case 0xc1:
      operands(op, opcode & 1 ? opSize : 0)
      allowLock()
      setHandler(op, O.H_XADD)
      return
    case 0xc2:
    case 0xc4:
    case 0xc5:
    case 0xc6:
      vector(op, 0, opcode, true)
      return
    case 0xc3:
      modrm(op)
      if (!isMemory() || prefix66 || rep) {
        undefined_(op)
        return
      }
      setSize(op, opSize)
      setSrc(op, reg, opSize)
      setHandler(op, O.H_MOV + O.FORM_MR * 4 + opSize)
      return
    case 0xc7:
      group9(op)
      return
    case 0xc8:
    case 0xc9:
    case 0xca:
    case 0xcb:
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf:
      setSize(op, opSize)
      setDst(op, (opcode & 7) | ((rex & 1) << 3), opSize)
      setHandler(op, O.H_BSWAP)
      return
    default:
      undefined_(op)
  }
}
