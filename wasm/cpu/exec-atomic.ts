/**
 * Memory operands that are read, changed and written back, with LOCK or without. With it: a WebAssembly compare-and-exchange loop
 * where the operand is aligned RAM; else (unaligned, 16 bytes, MMIO) under a lock that all vCPUs share.
 */
import { alu2, dec, inc, neg } from './alu'
import { cpu, setFlags } from './cpu'
import { effective, sum, effectiveSlow } from './ea'
import { getAt, loadRegister, putAt, readSized } from './exec-integer'
import { raiseGp } from './fault'
import { setCarryOverflow, overflow, arithmeticFlags, setArithmeticFlags, ZF } from './flags'
import * as O from './ops'
import { beginRmw, endRmw } from './rmw'
import {
  FLAG_ADD,
  FLAG_SUB,
  S_BOUNCE,
  S_BUS_LOCK,
  S_CPUS,
  S_FAULT,
  S_INDEX,
  S_RAX,
  S_RBX,
  S_RCX,
  S_RDX,
  VCPU_STATE_SIZE,
} from './state'
import { probeWrite, read64, write64 } from './memory'

function lockAddress(): usize {
  return cpu - <usize>load<u32>(cpu, S_INDEX) * VCPU_STATE_SIZE + S_BUS_LOCK
}

function lockBus(): void {
  if (load<u32>(cpu, S_CPUS) < 2) return
  const at = lockAddress()
  while (atomic.cmpxchg<u32>(at, 0, 1) != 0) {}
}

function unlockBus(): void {
  if (load<u32>(cpu, S_CPUS) < 2) return
  atomic.store<u32>(lockAddress(), 0)
}

/** Where the operand can be changed, whatever its size; 0 after a fault. */
function pointer(address: u64, size: u32): usize {
  switch (size) {
    case 0:
      return beginRmw<u8>(address)
    case 1:
      return beginRmw<u16>(address)
    case 2:
      return beginRmw<u32>(address)
    default:
      return beginRmw<u64>(address)
  }
}

/** True when the operand at `p` can be changed by one WebAssembly atomic. */
@inline
function isAtomic(p: usize, size: u32): bool {
  return (<u32>p & ((1 << size) - 1)) == 0 && p != cpu + S_BOUNCE
}

function loadAtomic(p: usize, size: u32): i64 {
  switch (size) {
    case 0:
      return <i64>(<i8>atomic.load<u8>(p))
    case 1:
      return <i64>(<i16>atomic.load<u16>(p))
    case 2:
      return <i64>(<i32>atomic.load<u32>(p))
    default:
      return <i64>atomic.load<u64>(p)
  }
}

/** Puts `value` at `p` if it still holds `old`. */
function swapIf(p: usize, size: u32, old: i64, value: i64): bool {
  switch (size) {
    case 0:
      return atomic.cmpxchg<u8>(p, <u8>old, <u8>value) == <u8>old
    case 1:
      return atomic.cmpxchg<u16>(p, <u16>old, <u16>value) == <u16>old
    case 2:
      return atomic.cmpxchg<u32>(p, <u32>old, <u32>value) == <u32>old
    default:
      return atomic.cmpxchg<u64>(p, <u64>old, <u64>value) == <u64>old
  }
}

function storePlain(p: usize, size: u32, value: i64): void {
  switch (size) {
    case 0:
      store<u8>(p, <u8>value)
      return
    case 1:
      store<u16>(p, <u16>value)
      return
    case 2:
      store<u32>(p, <u32>value)
      return
    default:
      store<u64>(p, <u64>value)
  }
}

export function extend(value: i64, size: u32): i64 {
  return size == 3 ? value : size == 2 ? <i64>(<i32>value) : size == 1 ? <i64>(<i16>value) : <i64>(<i8>value)
}

/** One of ALU_ADD .. ALU_XOR on sign-extended values, with flags. */
function aluSized(c: usize, alu: u32, a: i64, b: i64, size: u32): i64 {
  switch (size) {
    case 0:
      return <i64>alu2<i8>(c, alu, <i8>a, <i8>b)
    case 1:
      return <i64>alu2<i16>(c, alu, <i16>a, <i16>b)
    case 2:
      return <i64>alu2<i32>(c, alu, <i32>a, <i32>b)
    default:
      return alu2<i64>(c, alu, a, b)
  }
}

/** ALU forms that are not in line in run.ts: registers and immediates. */
export function aluRegister(op: usize): void {
  const c = cpu
  const id = <u32>load<u16>(op, O.OP_HANDLER) - O.H_ALU
  const size = id & 3
  const alu = (id >> 2) / 5
  const d = c + <usize>load<u8>(op, O.OP_DST)
  const b = (id >> 2) % 5 == O.FORM_RR ? loadRegister(c, op) : load<i64>(op, O.OP_IMM)
  const result = aluSized(c, alu, getAt(d, size), extend(b, size), size)
  if (alu < <u32>O.ALU_CMP) putAt(d, size, <u64>result)
}

/** ALU forms with memory that are not in line in run.ts. */
export function aluMemory(op: usize): void {
  const c = cpu
  const id = <u32>load<u16>(op, O.OP_HANDLER) - O.H_ALU
  const size = id & 3
  const form = (id >> 2) % 5
  const alu = (id >> 2) / 5
  const address = effective(c, op)
  if (form == O.FORM_RM) {
    const b = readSized(address, size)
    if (load<u32>(c, S_FAULT)) return
    const d = c + <usize>load<u8>(op, O.OP_DST)
    const result = aluSized(c, alu, getAt(d, size), b, size)
    if (alu < <u32>O.ALU_CMP) putAt(d, size, <u64>result)
    return
  }
  const b = form == O.FORM_MR ? loadRegister(c, op) : extend(load<i64>(op, O.OP_IMM), size)
  if (alu >= <u32>O.ALU_CMP) {
    const a = readSized(address, size)
    if (!load<u32>(c, S_FAULT)) aluSized(c, alu, a, b, size)
    return
  }
  const p = pointer(address, size)
  if (!p) return
  storePlain(p, size, aluSized(c, alu, getAt(p, size), b, size))
  endRmw(c, p)
}

/** INC, DEC, NOT and NEG of registers that are not in line in run.ts. */
export function unaryRegister(op: usize): void {
  const c = cpu
  const id = <u32>load<u16>(op, O.OP_HANDLER) - O.H_INC_R
  const size = id & 3
  const d = c + <usize>load<u8>(op, O.OP_DST)
  putAt(d, size, <u64>unarySized(c, id >> 2, getAt(d, size), size))
}

export function lockedAlu(op: usize): void {
  const c = cpu
  const size = <u32>load<u8>(op, O.OP_SIZE)
  const p = pointer(effective(c, op), size)
  if (!p) return
  const alu = <u32>load<u8>(op, O.OP_AUX)
  const b = <u32>load<u8>(op, O.OP_AUX2) ? load<i64>(op, O.OP_IMM) : loadRegister(c, op)
  if (!isAtomic(p, size)) {
    lockBus()
    storePlain(p, size, aluSized(c, alu, getAt(p, size), b, size))
    endRmw(c, p)
    unlockBus()
    return
  }
  // ADC and SBB read the carry, which the first attempt overwrites.
  const flags: u32 = alu == O.ALU_ADC || alu == O.ALU_SBB ? arithmeticFlags() : 0
  for (;;) {
    const old = loadAtomic(p, size)
    if (alu == O.ALU_ADC || alu == O.ALU_SBB) setArithmeticFlags(flags)
    if (swapIf(p, size, old, aluSized(c, alu, old, b, size))) return
  }
}

function unarySized(c: usize, kind: u32, a: i64, size: u32): i64 {
  if (kind == 2) return ~a
  switch (size) {
    case 0:
      return <i64>(kind == 0 ? inc<i8>(c, <i8>a) : kind == 1 ? dec<i8>(c, <i8>a) : neg<i8>(c, <i8>a))
    case 1:
      return <i64>(kind == 0 ? inc<i16>(c, <i16>a) : kind == 1 ? dec<i16>(c, <i16>a) : neg<i16>(c, <i16>a))
    case 2:
      return <i64>(kind == 0 ? inc<i32>(c, <i32>a) : kind == 1 ? dec<i32>(c, <i32>a) : neg<i32>(c, <i32>a))
    default:
      return kind == 0 ? inc<i64>(c, a) : kind == 1 ? dec<i64>(c, a) : neg<i64>(c, a)
  }
}

export function unaryMemory(op: usize): void {
  const c = cpu
  const size = <u32>load<u8>(op, O.OP_SIZE)
  const p = pointer(effective(c, op), size)
  if (!p) return
  const kind = <u32>load<u8>(op, O.OP_AUX)
  if (load<u8>(op, O.OP_FLAGS) & O.OPF_LOCK) {
    if (isAtomic(p, size)) {
      // INC and DEC keep the carry, and a failed attempt has kept it too: repeating is safe.
      for (;;) {
        const old = loadAtomic(p, size)
        if (swapIf(p, size, old, unarySized(c, kind, old, size))) return
      }
    }
    lockBus()
    storePlain(p, size, unarySized(c, kind, getAt(p, size), size))
    endRmw(c, p)
    unlockBus()
    return
  }
  storePlain(p, size, unarySized(c, kind, getAt(p, size), size))
  endRmw(c, p)
}

export function exchangeRegisters(op: usize): void {
  const c = cpu
  const a = c + <usize>load<u8>(op, O.OP_DST)
  const b = c + <usize>load<u8>(op, O.OP_SRC)
  const size = <u32>load<u8>(op, O.OP_SIZE)
  const x = getAt(a, size)
  const y = getAt(b, size)
  putAt(a, size, <u64>y)
  putAt(b, size, <u64>x)
}

export function exchangeMemory(op: usize): void {
  const c = cpu
  const size = <u32>load<u8>(op, O.OP_SIZE)
  const p = pointer(effective(c, op), size)
  if (!p) return
  const d = c + <usize>load<u8>(op, O.OP_DST)
  const value = getAt(d, size)
  let old: i64
  if (isAtomic(p, size)) {
    switch (size) {
      case 0:
        old = <i64>atomic.xchg<u8>(p, <u8>value)
        break
      case 1:
        old = <i64>atomic.xchg<u16>(p, <u16>value)
        break
      case 2:
        old = <i64>atomic.xchg<u32>(p, <u32>value)
        break
      default:
        old = <i64>atomic.xchg<u64>(p, <u64>value)
    }
  } else {
    lockBus()
    old = getAt(p, size)
    storePlain(p, size, value)
    endRmw(c, p)
    unlockBus()
  }
  putAt(d, size, <u64>old)
}

/** BT BTS BTR BTC. */
export function bitOperation(op: usize): void {
  const c = cpu
  const size = <u32>load<u8>(op, O.OP_SIZE)
  const bits: u32 = 8 << size
  const kind = <u32>load<u8>(op, O.OP_AUX)
  const immediate = <u32>load<u8>(op, O.OP_AUX2) != 0
  const index: i64 = immediate ? load<i64>(op, O.OP_IMM) : getAt(c + <usize>load<u8>(op, O.OP_DST), size)
  const bit: i64 = <i64>1 << (index & <i64>(bits - 1))
  if (load<u8>(op, O.OP_EA) == O.EA_REGISTER) {
    const at = c + <usize>load<u8>(op, O.OP_SRC)
    const value = getAt(at, size)
    if (kind) putAt(at, size, <u64>changeBit(value, bit, kind))
    setCarryOverflow(c, (value & bit) != 0, overflow())
    return
  }
  // A register index reaches beyond the operand: whole words of the operand size are stepped over.
  let address = effective(c, op)
  if (!immediate) address = bitAddress(c, op, address, index, size)
  if (!kind) {
    const value = readSized(address, size)
    if (load<u32>(c, S_FAULT)) return
    setCarryOverflow(c, (value & bit) != 0, overflow())
    return
  }
  const p = pointer(address, size)
  if (!p) return
  let old: i64
  if (load<u8>(op, O.OP_FLAGS) & O.OPF_LOCK) {
    if (isAtomic(p, size)) {
      for (;;) {
        old = loadAtomic(p, size)
        if (swapIf(p, size, old, changeBit(old, bit, kind))) break
      }
    } else {
      lockBus()
      old = getAt(p, size)
      storePlain(p, size, changeBit(old, bit, kind))
      endRmw(c, p)
      unlockBus()
    }
  } else {
    old = getAt(p, size)
    storePlain(p, size, changeBit(old, bit, kind))
    endRmw(c, p)
  }
  setCarryOverflow(c, (old & bit) != 0, overflow())
}

/** Adds the words that a bit index steps over, in the operand's address size. */
function bitAddress(c: usize, op: usize, plain: u64, index: i64, size: u32): u64 {
  const step = (index >> (3 + <i64>size)) << <i64>size
  if (load<u8>(op, O.OP_EA) == 0) return plain + <u64>step
  // Segmented or truncated: form the address again with the displacement moved.
  const displacement = load<i64>(op, O.OP_DISP)
  store<i64>(op, displacement + step, O.OP_DISP)
  // The plain address may have raised a limit fault that the real one does not.
  const address = effectiveSlow(op, 1 << size)
  store<i64>(op, displacement, O.OP_DISP)
  return address
}

@inline
function changeBit(value: i64, bit: i64, kind: u32): i64 {
  return kind == 1 ? value | bit : kind == 2 ? value & ~bit : value ^ bit
}

export function compareExchange(op: usize): void {
  const c = cpu
  const size = <u32>load<u8>(op, O.OP_SIZE)
  const expected = getAt(c + S_RAX, size)
  const value = getAt(c + <usize>load<u8>(op, O.OP_DST), size)
  let old: i64
  if (load<u8>(op, O.OP_EA) == O.EA_REGISTER) {
    const at = c + <usize>load<u8>(op, O.OP_SRC)
    old = getAt(at, size)
    // A register that is not equal keeps its upper half, too.
    if (old == expected) putAt(at, size, <u64>value)
  } else {
    const p = pointer(effective(c, op), size)
    if (!p) return
    if (load<u8>(op, O.OP_FLAGS) & O.OPF_LOCK && isAtomic(p, size)) {
      for (;;) {
        old = loadAtomic(p, size)
        if (old != expected || swapIf(p, size, old, value)) break
      }
    } else {
      const locked = (load<u8>(op, O.OP_FLAGS) & O.OPF_LOCK) != 0
      if (locked) lockBus()
      old = getAt(p, size)
      if (old == expected) storePlain(p, size, value)
      endRmw(c, p)
      if (locked) unlockBus()
    }
  }
  const difference = extend(expected - old, size)
  setFlags(c, FLAG_SUB, difference, expected, old)
  if (old != expected) putAt(c + S_RAX, size, <u64>old)
}

export function exchangeAdd(op: usize): void {
  const c = cpu
  const size = <u32>load<u8>(op, O.OP_SIZE)
  const d = c + <usize>load<u8>(op, O.OP_DST)
  const addend = getAt(d, size)
  let old: i64
  if (load<u8>(op, O.OP_EA) == O.EA_REGISTER) {
    const at = c + <usize>load<u8>(op, O.OP_SRC)
    old = getAt(at, size)
    const total = extend(old + addend, size)
    putAt(d, size, <u64>old)
    putAt(at, size, <u64>total)
    setFlags(c, FLAG_ADD, total, old, addend)
    return
  }
  const p = pointer(effective(c, op), size)
  if (!p) return
  if (load<u8>(op, O.OP_FLAGS) & O.OPF_LOCK && isAtomic(p, size)) {
    for (;;) {
      old = loadAtomic(p, size)
      if (swapIf(p, size, old, old + addend)) break
    }
  } else {
    const locked = (load<u8>(op, O.OP_FLAGS) & O.OPF_LOCK) != 0
    if (locked) lockBus()
    old = getAt(p, size)
    storePlain(p, size, old + addend)
    endRmw(c, p)
    if (locked) unlockBus()
  }
  setFlags(c, FLAG_ADD, extend(old + addend, size), old, addend)
  putAt(d, size, <u64>old)
}

/** CMPXCHG8B, CMPXCHG16B. Only ZF changes. */
export function compareExchangeWide(op: usize): void {
  const c = cpu
  const flags = arithmeticFlags()
  if (load<u8>(op, O.OP_SIZE) == 2) {
    const address = <u32>load<u8>(op, O.OP_EA) == 0 ? sum(c, op) : effectiveSlow(op, 8)
    const p = beginRmw<u64>(address)
    if (!p) return
    const expected = (<u64>load<u32>(c, S_RDX) << 32) | load<u32>(c, S_RAX)
    const value = (<u64>load<u32>(c, S_RCX) << 32) | load<u32>(c, S_RBX)
    let old: u64
    if (isAtomic(p, 3)) {
      old = atomic.cmpxchg<u64>(p, expected, value)
    } else {
      lockBus()
      old = load<u64>(p)
      if (old == expected) store<u64>(p, value)
      endRmw(c, p)
      unlockBus()
    }
    if (old != expected) {
      store<u64>(c, old & 0xffff_ffff, S_RAX)
      store<u64>(c, old >> 32, S_RDX)
    }
    setArithmeticFlags((flags & ~ZF) | (old == expected ? ZF : 0))
    return
  }
  const address = effective(c, op)
  if (address & 15) {
    raiseGp()
    return
  }
  if (!probeWrite(address, 16)) return
  lockBus()
  const low = read64(address)
  const high = read64(address + 8)
  const same = low == load<u64>(c, S_RAX) && high == load<u64>(c, S_RDX)
  if (same) {
    write64(address, load<u64>(c, S_RBX))
    write64(address + 8, load<u64>(c, S_RCX))
  }
  unlockBus()
  if (!same) {
    store<u64>(c, low, S_RAX)
    store<u64>(c, high, S_RDX)
  }
  setArithmeticFlags((flags & ~ZF) | (same ? ZF : 0))
}
