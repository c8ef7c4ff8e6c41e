/** String instructions. REP MOVS and STOS go by pages with memory.copy and memory.fill; the rest one element at a time. */
import { cpu, setFlags } from './cpu'
import { segmented } from './ea'
import { extend } from './exec-atomic'
import { putAt, readSized } from './exec-integer'
import { writeSized } from './exec-stack'
import { DF, zero } from './flags'
import { PAGE_MASK, TLB_ADDEND, TLB_READ, TLB_WRITE, tlbSlot } from './memory'
import { probeSlow } from './memory-slow'
import * as O from './ops'
import { portAllowed, readPort, writePort } from './ports'
import {
  ES,
  FLAG_SUB,
  FS,
  MODE_64,
  MODE_SIZE_MASK,
  S_ATTENTION,
  S_FAULT,
  S_MODE,
  S_RAX,
  S_RCX,
  S_RDI,
  S_RDX,
  S_RFLAGS,
  S_RSI,
  S_SEG,
  SEG_BASE,
  SEG_STRIDE,
} from './state'

/** Elements done before a REP looks at S_ATTENTION again, and before it gives up its slice. */
const SLICE: u32 = 4096

let addressMask: u64 = 0
let is64: bool = false

@inline
function linear(segment: u32, offset: u64, bytes: u32): u64 {
  if (is64) return segment >= <u32>FS ? offset + load<u64>(cpu + segment * SEG_STRIDE, S_SEG + SEG_BASE) : offset
  return segmented(segment, <u32>offset, bytes, false)
}

@inline
function putIndex(at: usize, value: u64): void {
  if (addressMask == 0xffff) store<u16>(at, <u16>value)
  else store<u64>(at, value & addressMask)
}

/** 0 when finished; otherwise how many elements were done before pausing, with the registers up to date. */
export function stringOperation(op: usize): i32 {
  const c = cpu
  const flags = <u32>load<u8>(op, O.OP_FLAGS)
  addressMask = flags & O.OPF_A16 ? 0xffff : flags & O.OPF_A32 ? 0xffff_ffff : <u64>-1
  is64 = (load<u32>(c, S_MODE) & MODE_SIZE_MASK) == MODE_64
  const kind = <u32>load<u8>(op, O.OP_AUX)
  const size = <u32>load<u8>(op, O.OP_SIZE)
  const repeated = (flags & (O.OPF_REP | O.OPF_REPNE)) != 0
  if ((kind == O.STR_INS || kind == O.STR_OUTS) && !portAllowed(load<u16>(c, S_RDX), 1 << size)) return 0
  if (!repeated) {
    element(op, kind, size)
    return 0
  }
  let done: u32 = 0
  for (;;) {
    const count = load<u64>(c, S_RCX) & addressMask
    if (count == 0) return 0
    let n: u64 = 0
    if (!(load<u32>(c, S_RFLAGS) & DF)) {
      if (kind == O.STR_STOS) n = fillRun(size, count)
      else if (kind == O.STR_MOVS) n = copyRun(op, size, count)
    }
    if (load<u32>(c, S_FAULT)) return 0
    if (n == 0) {
      element(op, kind, size)
      if (load<u32>(c, S_FAULT)) return 0
      n = 1
    }
    putIndex(c + S_RCX, count - n)
    if (kind == O.STR_CMPS || kind == O.STR_SCAS) {
      // REPE (F3) goes on while equal, REPNE while not.
      if (zero(c) != ((flags & O.OPF_REP) != 0)) return 0
    }
    done += <u32>n
    if (done >= SLICE || atomic.load<u32>(c + S_ATTENTION)) {
      if ((load<u64>(c, S_RCX) & addressMask) == 0) return 0
      return max<i32>(1, <i32>(done >> 4))
    }
  }
  return 0
}

/** Elements of at most `limit` that fit in the page at `address`, going up. */
@inline
function inPage(address: u64, size: u32, limit: u64): u64 {
  return min<u64>(limit, <u64>((4096 - (<u32>address & 0xfff)) >> size))
}

/** Stores up to a page of elements; 0 when the slow way is needed. */
function fillRun(size: u32, count: u64): u64 {
  const c = cpu
  const index = load<u64>(c, S_RDI) & addressMask
  const address = linear(ES, index, 1 << size)
  if (load<u32>(c, S_FAULT)) return 0
  let n = inPage(address, size, count)
  // Outside 64-bit code the limit and the wrap-around of the index are checked an element at a time unless all is well inside.
  if (!is64 && (index + (n << size) > addressMask || addressMask == 0xffff)) return 0
  if (n == 0) return 0
  let entry = tlbSlot(address)
  if (load<u64>(entry, TLB_WRITE) != (address & PAGE_MASK)) {
    if (!probeSlow(address, true)) return 0
    entry = tlbSlot(address)
    if (load<u64>(entry, TLB_WRITE) != (address & PAGE_MASK)) return 0
  }
  if (!is64 && !wholeRun(ES, index, n << size)) return 0
  const host = <usize>load<u32>(entry, TLB_ADDEND) + <usize>address
  const bytes = <usize>(n << size)
  const value = load<u64>(c, S_RAX)
  if (size == 0) memory.fill(host, <u8>value, bytes)
  else if (value == 0) memory.fill(host, 0, bytes)
  else if (size == 3) for (let i: usize = 0; i < bytes; i += 8) store<u64>(host + i, value)
  else if (size == 2) for (let i: usize = 0; i < bytes; i += 4) store<u32>(host + i, <u32>value)
  else for (let i: usize = 0; i < bytes; i += 2) store<u16>(host + i, <u16>value)
  putIndex(c + S_RDI, index + bytes)
  return n
}

/** True when a whole run is inside the segment (else the element-wise path finds the faulting one). */
function wholeRun(segment: u32, offset: u64, bytes: u64): bool {
  const before = load<u32>(cpu, S_FAULT)
  segmented(segment, <u32>offset, <u32>bytes, false)
  const ok = !load<u32>(cpu, S_FAULT)
  store<u32>(cpu, before, S_FAULT)
  return ok
}

/** Copies up to the nearer page end; 0 when the slow way is needed (overlap that must propagate, MMIO, code). */
function copyRun(op: usize, size: u32, count: u64): u64 {
  const c = cpu
  const from = load<u64>(c, S_RSI) & addressMask
  const to = load<u64>(c, S_RDI) & addressMask
  const segment = <u32>load<u8>(op, O.OP_SEG)
  const source = linear(segment, from, 1 << size)
  const target = linear(ES, to, 1 << size)
  if (load<u32>(c, S_FAULT)) return 0
  const n = inPage(target, size, inPage(source, size, count))
  if (n == 0) return 0
  const bytes = n << size
  if (!is64) {
    if (addressMask == 0xffff || from + bytes > addressMask || to + bytes > addressMask) return 0
    if (!wholeRun(segment, from, bytes) || !wholeRun(ES, to, bytes)) return 0
  }
  let read = tlbSlot(source)
  if (load<u64>(read, TLB_READ) != (source & PAGE_MASK)) {
    if (!probeSlow(source, false)) return 0
    read = tlbSlot(source)
    if (load<u64>(read, TLB_READ) != (source & PAGE_MASK)) return 0
  }
  const host = <usize>load<u32>(read, TLB_ADDEND) + <usize>source
  let write = tlbSlot(target)
  if (load<u64>(write, TLB_WRITE) != (target & PAGE_MASK)) {
    if (!probeSlow(target, true)) return 0
    write = tlbSlot(target)
    if (load<u64>(write, TLB_WRITE) != (target & PAGE_MASK)) return 0
  }
  const destination = <usize>load<u32>(write, TLB_ADDEND) + <usize>target
  // A destination just above the source repeats a pattern, element by element.
  if (destination > host && destination < host + <usize>bytes) return 0
  memory.copy(destination, host, <usize>bytes)
  putIndex(c + S_RSI, from + bytes)
  putIndex(c + S_RDI, to + bytes)
  return n
}

/** One element. Registers move only if nothing faulted. */
function element(op: usize, kind: u32, size: u32): void {
  const c = cpu
  const bytes: u32 = 1 << size
  const step: u64 = load<u32>(c, S_RFLAGS) & DF ? <u64>(-(<i64>bytes)) : <u64>bytes
  const from = load<u64>(c, S_RSI) & addressMask
  const to = load<u64>(c, S_RDI) & addressMask
  const segment = <u32>load<u8>(op, O.OP_SEG)
  switch (kind) {
    case O.STR_MOVS: {
      const value = readSized(linear(segment, from, bytes), size)
      if (load<u32>(c, S_FAULT)) return
      writeSized(linear(ES, to, bytes), size, <u64>value)
      if (load<u32>(c, S_FAULT)) return
      putIndex(c + S_RSI, from + step)
      putIndex(c + S_RDI, to + step)
      return
    }
    case O.STR_STOS:
      writeSized(linear(ES, to, bytes), size, load<u64>(c, S_RAX))
      if (load<u32>(c, S_FAULT)) return
      putIndex(c + S_RDI, to + step)
      return
    case O.STR_LODS: {
      const value = readSized(linear(segment, from, bytes), size)
      if (load<u32>(c, S_FAULT)) return
      putAt(c + S_RAX, size, <u64>value)
      putIndex(c + S_RSI, from + step)
      return
    }
    case O.STR_CMPS: {
      // When both fault, some processors report the destination and some the source.
      const b = readSized(linear(ES, to, bytes), size)
      if (load<u32>(c, S_FAULT)) return
      const a = readSized(linear(segment, from, bytes), size)
      if (load<u32>(c, S_FAULT)) return
      setFlags(c, FLAG_SUB, extend(a - b, size), a, b)
      putIndex(c + S_RSI, from + step)
      putIndex(c + S_RDI, to + step)
      return
    }
    case O.STR_SCAS: {
      const b = readSized(linear(ES, to, bytes), size)
      if (load<u32>(c, S_FAULT)) return
      const a = extend(load<i64>(c, S_RAX), size)
      setFlags(c, FLAG_SUB, extend(a - b, size), a, b)
      putIndex(c + S_RDI, to + step)
      return
    }
    case O.STR_INS: {
      const address = linear(ES, to, bytes)
      if (!probeSlow(address, true)) return
      const value = readPort(load<u16>(c, S_RDX), bytes)
      writeSized(address, size, <u64>value)
      if (load<u32>(c, S_FAULT)) return
      putIndex(c + S_RDI, to + step)
      return
    }
    default: {
      const value = readSized(linear(segment, from, bytes), size)
      if (load<u32>(c, S_FAULT)) return
      writePort(load<u16>(c, S_RDX), bytes, <u32>value)
      putIndex(c + S_RSI, from + step)
    }
  }
}
