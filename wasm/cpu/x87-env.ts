/** The x87's control instructions and its state in memory: FLDCW to FRSTOR (SDM volume 1, 8.1.10, figures 8-9 to 8-12). FXSAVE: xsave.ts. */
import { cpu } from './cpu'
import { faulted } from './fault'
import { probeRead, probeWrite, read16, read32, read64, write16, write32, write64 } from './memory'
import {
  FPR_EXPONENT,
  MODE_REAL,
  S_FCS,
  S_FCW,
  S_FDP,
  S_FDS,
  S_FIP,
  S_FOP,
  S_FPR,
  S_FSW,
  S_FTAG,
  S_FTOP,
  S_MODE,
} from './state'
import { fcw, isEmpty, setFsw, setSt, statusWord, stMan, stTop, updateSummary } from './x87-state'

export function fninit(): void {
  const c = cpu
  store<u16>(c, 0x37f, S_FCW)
  store<u16>(c, 0, S_FSW)
  store<u32>(c, 0, S_FTOP)
  store<u32>(c, 0, S_FTAG)
  store<u16>(c, 0, S_FOP)
  store<u64>(c, 0, S_FIP)
  store<u64>(c, 0, S_FDP)
  store<u16>(c, 0, S_FCS)
  store<u16>(c, 0, S_FDS)
}

/** Bits that are not there read as 0, and bit 6 as 1. */
function setFcw(value: u32): void {
  store<u16>(cpu, (value & 0x1f3f) | 0x40, S_FCW)
}

export function fldcw(ea: u64): void {
  const value = read16(ea)
  if (faulted()) return
  setFcw(value)
  updateSummary()
}

export function fnstcw(ea: u64): void {
  write16(ea, fcw())
}

/** The full tag word: 0 valid, 1 zero, 2 special, 3 empty, two bits a physical register. */
function tagWord(): u32 {
  let word: u32 = 0
  for (let i: u32 = 0; i < 8; i++) {
    const at = cpu + (i << 4)
    const man = load<u64>(at, S_FPR)
    const exponent = load<u16>(at, S_FPR + FPR_EXPONENT) & 0x7fff
    let tag: u32
    if (!((load<u32>(cpu, S_FTAG) >> i) & 1)) tag = 3
    else if (exponent == 0 && man == 0) tag = 1
    else if (exponent == 0 || exponent == 0x7fff || !(man >> 63)) tag = 2
    else tag = 0
    word |= tag << (i * 2)
  }
  return word
}

function setTagWord(word: u32): void {
  let tags: u32 = 0
  for (let i: u32 = 0; i < 8; i++) if (((word >> (i * 2)) & 3) != 3) tags |= 1 << i
  store<u32>(cpu, tags, S_FTAG)
}

function inRealMode(): bool {
  return (load<u32>(cpu, S_MODE) & MODE_REAL) != 0
}

function writeEnvironment(ea: u64, o16: bool): void {
  const c = cpu
  const fip = <u32>load<u64>(c, S_FIP),
    fdp = <u32>load<u64>(c, S_FDP)
  const opcode: u32 = load<u16>(c, S_FOP)
  const real = inRealMode()
  if (o16) {
    write16(ea, fcw())
    write16(ea + 2, statusWord())
    write16(ea + 4, tagWord())
    write16(ea + 6, fip & 0xffff)
    write16(ea + 8, real ? ((fip >> 4) & 0xf000) | opcode : load<u16>(c, S_FCS))
    write16(ea + 10, fdp & 0xffff)
    write16(ea + 12, real ? (fdp >> 4) & 0xf000 : load<u16>(c, S_FDS))
    return
  }
  write32(ea, 0xffff0000 | fcw())
  write32(ea + 4, 0xffff0000 | statusWord())
  write32(ea + 8, 0xffff0000 | tagWord())
  write32(ea + 12, real ? 0xffff0000 | (fip & 0xffff) : fip)
  write32(ea + 16, real ? ((fip >> 4) & 0x0ffff000) | opcode : (opcode << 16) | load<u16>(c, S_FCS))
  write32(ea + 20, real ? 0xffff0000 | (fdp & 0xffff) : fdp)
  write32(ea + 24, real ? (fdp >> 4) & 0x0ffff000 : 0xffff0000 | load<u16>(c, S_FDS))
}

/** Loads everything but the registers. The whole of it was found readable before. */
function readEnvironment(ea: u64, o16: bool): void {
  const c = cpu
  const step: u64 = o16 ? 2 : 4
  const real = inRealMode()
  const status = read16(ea + step)
  setFcw(read16(ea))
  setTagWord(read16(ea + 2 * step))
  store<u32>(c, (status >> 11) & 7, S_FTOP)
  setFsw(status & ~0x3800)
  updateSummary()
  let fip: u32 = read16(ea + 3 * step),
    fdp: u32 = read16(ea + 5 * step)
  const fourth = o16 ? read16(ea + 8) : read32(ea + 16)
  const sixth = o16 ? read16(ea + 12) : read32(ea + 24)
  if (real) {
    fip |= (fourth & 0x0ffff000) << 4
    fdp |= (sixth & 0x0ffff000) << 4
    store<u16>(c, fourth & 0x7ff, S_FOP)
  } else {
    if (!o16) {
      fip = read32(ea + 12)
      fdp = read32(ea + 20)
      store<u16>(c, (fourth >> 16) & 0x7ff, S_FOP)
    }
    store<u16>(c, fourth & 0xffff, S_FCS)
    store<u16>(c, sixth & 0xffff, S_FDS)
  }
  store<u64>(c, fip, S_FIP)
  store<u64>(c, fdp, S_FDP)
}

export function fldenv(ea: u64, o16: bool): void {
  if (probeRead(ea, o16 ? 14 : 28)) readEnvironment(ea, o16)
}

/** Afterwards every exception is masked, and none is pending. */
export function fnstenv(ea: u64, o16: bool): void {
  if (!probeWrite(ea, o16 ? 14 : 28)) return
  writeEnvironment(ea, o16)
  setFcw(fcw() | 0x3f)
  updateSummary()
}

export function fnsave(ea: u64, o16: bool): void {
  const head: u32 = o16 ? 14 : 28
  if (!probeWrite(ea, head + 80)) return
  writeEnvironment(ea, o16)
  let at = ea + head
  for (let i: u32 = 0; i < 8; i++) {
    write64(at, stMan(i))
    write16(at + 8, stTop(i))
    at += 10
  }
  fninit()
}

export function frstor(ea: u64, o16: bool): void {
  const head: u32 = o16 ? 14 : 28
  if (!probeRead(ea, head + 80)) return
  readEnvironment(ea, o16)
  const tags = load<u32>(cpu, S_FTAG)
  let at = ea + head
  for (let i: u32 = 0; i < 8; i++) {
    setSt(i, read64(at), read16(at + 8))
    at += 10
  }
  store<u32>(cpu, tags, S_FTAG)
}
