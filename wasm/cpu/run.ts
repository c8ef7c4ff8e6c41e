/**
 * Tier 0: the interpreter over predecoded blocks. One loop, one switch: what runs often is in line, the rest is a call.
 *
 * Inside a case: `continue` goes to the next record (`op` was advanced), `break` leaves the block, either because S_FAULT is
 * set or because `rip` (and, for a direct branch, `slot`, where the successor may be linked) has been set.
 */
import { alu2, dec, inc, putReg } from './alu'
import { attend } from './attend'
import { findBlock, linkAllowed, setLinkAllowed } from './blocks'
import { cpu } from './cpu'
import { effective, offsetOnly } from './ea'
import * as X from './exec'
import { conditionAny, conditionOf, setCarryOverflow, setShiftFlags } from './flags'
import { noteHot, noteMiss, runRegions } from './jit'
import { deliverFault } from './interrupts'
import { PAGE_MASK, read64, TLB_ADDEND, TLB_READ, TLB_WRITE, tlbSlotIn, write64, write8 } from './memory'
import { readSlow, writeSlow } from './memory-slow'
import {
  BLK_COUNT,
  BLK_HEADER_SIZE,
  BLK_HOST,
  BLK_JIT,
  BLK_LINK_NEXT,
  BLK_LINK_TAKEN,
  BLK_RUNS,
  BLK_SECOND,
  BLK_VALID,
  OP_AUX,
  OP_DST,
  OP_HANDLER,
  OP_IMM,
  OP_LENGTH,
  OP_OFFSET,
  OP_RECORD_SIZE,
  OP_SIZE,
  OP_SRC,
  EA_REGISTER,
  OP_EA,
} from './ops'
import { beginRmw, endRmw } from './rmw'
import { execVector } from './sse'
import {
  EXIT_BUDGET,
  EXIT_STOPPED,
  FAULT_EXIT,
  FLAG_LITERAL,
  FLAG_SUB,
  S_ATTENTION,
  S_BLOCK,
  S_BLOCK_RIP,
  S_BUDGET,
  S_COUNT_EXCEPTIONS,
  S_EXIT,
  S_FAULT,
  S_FAULT_OP,
  S_FLAG_A,
  S_FLAG_B,
  S_FLAG_KIND,
  S_FLAG_RES,
  S_JIT_THRESHOLD,
  S_MOST_EXCEPTIONS,
  S_RESUME,
  S_RETIRED,
  S_RIP,
  S_RSP,
  S_RBP,
  S_STOP,
  S_RAX,
  S_RDX,
} from './state'
import { execX87 } from './x87'
import { raiseGp } from './fault'

@inline
function shlBits32(x: u32, r: u32, n: u32): u32 {
  const out = (x >> (32 - n)) & 1
  return out | ((out ^ (r >> 31)) << 11)
}

@inline
function shlBits64(x: u64, r: u64, n: u64): u32 {
  const out = <u32>(x >> (64 - n)) & 1
  return out | ((out ^ <u32>(r >> 63)) << 11)
}

/** Near transfers wrap at their operand size outside 64-bit code. */
@inline
function wrapRip(op: usize, rip: u64): u64 {
  const size = load<u8>(op, OP_SIZE)
  return size == 3 ? rip : size == 2 ? rip & 0xffff_ffff : rip & 0xffff
}

/** A RIP that would not be canonical is a #GP in the instruction that would load it. */
@inline
function canonical(address: u64): bool {
  return <u64>((<i64>(address << 16)) >> 16) == address
}

/** Runs about `budget` instructions; the reason for stopping is in S_EXIT. */
export function run(budget: i32): void {
  const c = cpu
  let left = budget
  let rip = load<u64>(c, S_RIP)
  let blockRip: u64 = rip
  let slot: usize = 0
  let taken: bool = false
  let link: usize = 0
  let op: usize = 0
  let resume: usize = 0
  store<u64>(c, load<u64>(c, S_RETIRED) + <u64>budget, S_RETIRED)
  store<u64>(c, load<u64>(c, S_COUNT_EXCEPTIONS) + <u64>budget + 16, S_MOST_EXCEPTIONS)
  for (;;) {
    // ---- between blocks: `rip` is exact ----
    if (load<u32>(c, S_FAULT)) {
      store<u64>(c, rip, S_RIP)
      store<i32>(c, left, S_BUDGET)
      if (load<u32>(c, S_FAULT) == FAULT_EXIT) {
        store<u32>(c, 0, S_FAULT)
        break
      }
      if (!deliverFault()) break
      // A handler that faults at once retires nothing: without an end to that, timers would never be looked at.
      if (load<u64>(c, S_COUNT_EXCEPTIONS) >= load<u64>(c, S_MOST_EXCEPTIONS)) {
        store<u32>(c, EXIT_BUDGET, S_EXIT)
        break
      }
      rip = load<u64>(c, S_RIP)
      link = 0
    }
    if (left <= 0 || atomic.load<u32>(c + S_ATTENTION)) {
      store<u64>(c, rip, S_RIP)
      store<i32>(c, left, S_BUDGET)
      if (left <= 0) {
        store<u32>(c, EXIT_BUDGET, S_EXIT)
        break
      }
      if (!attend()) break
      rip = load<u64>(c, S_RIP)
      link = 0
    }
    setLinkAllowed(link)
    let block = findBlock(rip)
    link = 0
    if (!block) {
      op = 0
      continue
    }
    // Links are followed without looking at the page that an instruction runs into.
    if (linkAllowed && !load<u32>(block, BLK_SECOND)) store<u32>(linkAllowed, <u32>block)
    if (load<u32>(block, BLK_JIT)) {
      left = runRegions(block, rip, left)
      rip = load<u64>(c, S_RIP)
      resume = load<u32>(c, S_RESUME)
      if (!resume) {
        if (load<u32>(c, S_FAULT)) X.blameStack(load<u32>(c, S_FAULT_OP))
        else if (load<u32>(c, S_STOP)) {
          store<u32>(c, 0, S_STOP)
          store<u32>(c, EXIT_STOPPED, S_EXIT)
          break
        }
        continue
      }
      block = load<u32>(c, S_BLOCK)
      rip += <u64>(load<u32>(block, BLK_HOST) & 0xfff)
    }
    // ---- blocks that follow each other by direct branches in a page ----
    for (;;) {
      blockRip = rip
      store<u64>(c, rip, S_BLOCK_RIP)
      if (resume) {
        op = resume
        resume = 0
        store<u32>(c, 0, S_RESUME)
        noteMiss(block)
      } else {
        left -= <i32>load<u16>(block, BLK_COUNT)
        // A guest that rests is not counted: blocks that it shares with others stay unwritten.
        const threshold = load<u32>(c, S_JIT_THRESHOLD)
        if (threshold) {
          const runs = load<u32>(block, BLK_RUNS) + 1
          store<u32>(block, runs, BLK_RUNS)
          if (runs == threshold) noteHot(block)
        }
        op = block + BLK_HEADER_SIZE
      }
      slot = 0
      for (;;) {
        switch (<u32>load<u16>(op, OP_HANDLER)) {
        case 0: { // fall
          slot = block + BLK_LINK_NEXT
          rip = blockRip + load<u64>(op, OP_IMM)
          break
        }
        case 1: // unused
        case 2: // unused
        case 3: // unused
          break
        case 5: { // add RR 16
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i16>(d, alu2<i16>(c, 0, load<i16>(d), load<i16>(c + <usize>load<u8>(op, OP_SRC))))
          op += OP_RECORD_SIZE
          continue
        }
        case 6: { // add RR 32
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i32>(d, alu2<i32>(c, 0, load<i32>(d), load<i32>(c + <usize>load<u8>(op, OP_SRC))))
          op += OP_RECORD_SIZE
          continue
        }
        case 7: { // add RR 64
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i64>(d, alu2<i64>(c, 0, load<i64>(d), load<i64>(c + <usize>load<u8>(op, OP_SRC))))
          op += OP_RECORD_SIZE
          continue
        }
        case 10: { // add RI 32
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i32>(d, alu2<i32>(c, 0, load<i32>(d), load<i32>(op, OP_IMM)))
          op += OP_RECORD_SIZE
          continue
        }
        case 11: { // add RI 64
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i64>(d, alu2<i64>(c, 0, load<i64>(d), load<i64>(op, OP_IMM)))
          op += OP_RECORD_SIZE
          continue
        }
        case 14: { // add RM 32
          const d = c + <usize>load<u8>(op, OP_DST)
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let b: u32
          if (load<u64>(e, TLB_READ) == ((ea + 3) & PAGE_MASK)) b = load<u32>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            b = <u32>readSlow(ea, 2)
            if (load<u32>(c, S_FAULT)) break
          }
          putReg<i32>(d, alu2<i32>(c, 0, load<i32>(d), <i32>b))
          op += OP_RECORD_SIZE
          continue
        }
        case 15: { // add RM 64
          const d = c + <usize>load<u8>(op, OP_DST)
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let b: u64
          if (load<u64>(e, TLB_READ) == ((ea + 7) & PAGE_MASK)) b = load<u64>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            b = <u64>readSlow(ea, 3)
            if (load<u32>(c, S_FAULT)) break
          }
          putReg<i64>(d, alu2<i64>(c, 0, load<i64>(d), <i64>b))
          op += OP_RECORD_SIZE
          continue
        }
        case 18: { // add MR 32
          const p = beginRmw<i32>(effective(c, op))
          if (!p) break
          store<i32>(p, alu2<i32>(c, 0, load<i32>(p), load<i32>(c + <usize>load<u8>(op, OP_SRC))))
          endRmw(c, p)
          op += OP_RECORD_SIZE
          continue
        }
        case 19: { // add MR 64
          const p = beginRmw<i64>(effective(c, op))
          if (!p) break
          store<i64>(p, alu2<i64>(c, 0, load<i64>(p), load<i64>(c + <usize>load<u8>(op, OP_SRC))))
          endRmw(c, p)
          op += OP_RECORD_SIZE
          continue
        }
        case 22: { // add MI 32
          const p = beginRmw<i32>(effective(c, op))
          if (!p) break
          store<i32>(p, alu2<i32>(c, 0, load<i32>(p), load<i32>(op, OP_IMM)))
          endRmw(c, p)
          op += OP_RECORD_SIZE
          continue
        }
        case 23: { // add MI 64
          const p = beginRmw<i64>(effective(c, op))
          if (!p) break
          store<i64>(p, alu2<i64>(c, 0, load<i64>(p), load<i64>(op, OP_IMM)))
          endRmw(c, p)
          op += OP_RECORD_SIZE
          continue
        }
        case 26: { // or RR 32
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i32>(d, alu2<i32>(c, 1, load<i32>(d), load<i32>(c + <usize>load<u8>(op, OP_SRC))))
          op += OP_RECORD_SIZE
          continue
        }
        case 27: { // or RR 64
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i64>(d, alu2<i64>(c, 1, load<i64>(d), load<i64>(c + <usize>load<u8>(op, OP_SRC))))
          op += OP_RECORD_SIZE
          continue
        }
        case 30: { // or RI 32
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i32>(d, alu2<i32>(c, 1, load<i32>(d), load<i32>(op, OP_IMM)))
          op += OP_RECORD_SIZE
          continue
        }
        case 31: { // or RI 64
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i64>(d, alu2<i64>(c, 1, load<i64>(d), load<i64>(op, OP_IMM)))
          op += OP_RECORD_SIZE
          continue
        }
        case 34: { // or RM 32
          const d = c + <usize>load<u8>(op, OP_DST)
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let b: u32
          if (load<u64>(e, TLB_READ) == ((ea + 3) & PAGE_MASK)) b = load<u32>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            b = <u32>readSlow(ea, 2)
            if (load<u32>(c, S_FAULT)) break
          }
          putReg<i32>(d, alu2<i32>(c, 1, load<i32>(d), <i32>b))
          op += OP_RECORD_SIZE
          continue
        }
        case 35: { // or RM 64
          const d = c + <usize>load<u8>(op, OP_DST)
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let b: u64
          if (load<u64>(e, TLB_READ) == ((ea + 7) & PAGE_MASK)) b = load<u64>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            b = <u64>readSlow(ea, 3)
            if (load<u32>(c, S_FAULT)) break
          }
          putReg<i64>(d, alu2<i64>(c, 1, load<i64>(d), <i64>b))
          op += OP_RECORD_SIZE
          continue
        }
        case 46: { // adc RR 32
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i32>(d, alu2<i32>(c, 2, load<i32>(d), load<i32>(c + <usize>load<u8>(op, OP_SRC))))
          op += OP_RECORD_SIZE
          continue
        }
        case 47: { // adc RR 64
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i64>(d, alu2<i64>(c, 2, load<i64>(d), load<i64>(c + <usize>load<u8>(op, OP_SRC))))
          op += OP_RECORD_SIZE
          continue
        }
        case 66: { // sbb RR 32
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i32>(d, alu2<i32>(c, 3, load<i32>(d), load<i32>(c + <usize>load<u8>(op, OP_SRC))))
          op += OP_RECORD_SIZE
          continue
        }
        case 67: { // sbb RR 64
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i64>(d, alu2<i64>(c, 3, load<i64>(d), load<i64>(c + <usize>load<u8>(op, OP_SRC))))
          op += OP_RECORD_SIZE
          continue
        }
        case 86: { // and RR 32
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i32>(d, alu2<i32>(c, 4, load<i32>(d), load<i32>(c + <usize>load<u8>(op, OP_SRC))))
          op += OP_RECORD_SIZE
          continue
        }
        case 87: { // and RR 64
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i64>(d, alu2<i64>(c, 4, load<i64>(d), load<i64>(c + <usize>load<u8>(op, OP_SRC))))
          op += OP_RECORD_SIZE
          continue
        }
        case 88: { // and RI 8
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i8>(d, alu2<i8>(c, 4, load<i8>(d), load<i8>(op, OP_IMM)))
          op += OP_RECORD_SIZE
          continue
        }
        case 90: { // and RI 32
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i32>(d, alu2<i32>(c, 4, load<i32>(d), load<i32>(op, OP_IMM)))
          op += OP_RECORD_SIZE
          continue
        }
        case 91: { // and RI 64
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i64>(d, alu2<i64>(c, 4, load<i64>(d), load<i64>(op, OP_IMM)))
          op += OP_RECORD_SIZE
          continue
        }
        case 94: { // and RM 32
          const d = c + <usize>load<u8>(op, OP_DST)
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let b: u32
          if (load<u64>(e, TLB_READ) == ((ea + 3) & PAGE_MASK)) b = load<u32>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            b = <u32>readSlow(ea, 2)
            if (load<u32>(c, S_FAULT)) break
          }
          putReg<i32>(d, alu2<i32>(c, 4, load<i32>(d), <i32>b))
          op += OP_RECORD_SIZE
          continue
        }
        case 95: { // and RM 64
          const d = c + <usize>load<u8>(op, OP_DST)
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let b: u64
          if (load<u64>(e, TLB_READ) == ((ea + 7) & PAGE_MASK)) b = load<u64>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            b = <u64>readSlow(ea, 3)
            if (load<u32>(c, S_FAULT)) break
          }
          putReg<i64>(d, alu2<i64>(c, 4, load<i64>(d), <i64>b))
          op += OP_RECORD_SIZE
          continue
        }
        case 106: { // sub RR 32
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i32>(d, alu2<i32>(c, 5, load<i32>(d), load<i32>(c + <usize>load<u8>(op, OP_SRC))))
          op += OP_RECORD_SIZE
          continue
        }
        case 107: { // sub RR 64
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i64>(d, alu2<i64>(c, 5, load<i64>(d), load<i64>(c + <usize>load<u8>(op, OP_SRC))))
          op += OP_RECORD_SIZE
          continue
        }
        case 110: { // sub RI 32
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i32>(d, alu2<i32>(c, 5, load<i32>(d), load<i32>(op, OP_IMM)))
          op += OP_RECORD_SIZE
          continue
        }
        case 111: { // sub RI 64
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i64>(d, alu2<i64>(c, 5, load<i64>(d), load<i64>(op, OP_IMM)))
          op += OP_RECORD_SIZE
          continue
        }
        case 114: { // sub RM 32
          const d = c + <usize>load<u8>(op, OP_DST)
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let b: u32
          if (load<u64>(e, TLB_READ) == ((ea + 3) & PAGE_MASK)) b = load<u32>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            b = <u32>readSlow(ea, 2)
            if (load<u32>(c, S_FAULT)) break
          }
          putReg<i32>(d, alu2<i32>(c, 5, load<i32>(d), <i32>b))
          op += OP_RECORD_SIZE
          continue
        }
        case 115: { // sub RM 64
          const d = c + <usize>load<u8>(op, OP_DST)
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let b: u64
          if (load<u64>(e, TLB_READ) == ((ea + 7) & PAGE_MASK)) b = load<u64>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            b = <u64>readSlow(ea, 3)
            if (load<u32>(c, S_FAULT)) break
          }
          putReg<i64>(d, alu2<i64>(c, 5, load<i64>(d), <i64>b))
          op += OP_RECORD_SIZE
          continue
        }
        case 126: { // xor RR 32
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i32>(d, alu2<i32>(c, 6, load<i32>(d), load<i32>(c + <usize>load<u8>(op, OP_SRC))))
          op += OP_RECORD_SIZE
          continue
        }
        case 127: { // xor RR 64
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i64>(d, alu2<i64>(c, 6, load<i64>(d), load<i64>(c + <usize>load<u8>(op, OP_SRC))))
          op += OP_RECORD_SIZE
          continue
        }
        case 130: { // xor RI 32
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i32>(d, alu2<i32>(c, 6, load<i32>(d), load<i32>(op, OP_IMM)))
          op += OP_RECORD_SIZE
          continue
        }
        case 131: { // xor RI 64
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i64>(d, alu2<i64>(c, 6, load<i64>(d), load<i64>(op, OP_IMM)))
          op += OP_RECORD_SIZE
          continue
        }
        case 134: { // xor RM 32
          const d = c + <usize>load<u8>(op, OP_DST)
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let b: u32
          if (load<u64>(e, TLB_READ) == ((ea + 3) & PAGE_MASK)) b = load<u32>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            b = <u32>readSlow(ea, 2)
            if (load<u32>(c, S_FAULT)) break
          }
          putReg<i32>(d, alu2<i32>(c, 6, load<i32>(d), <i32>b))
          op += OP_RECORD_SIZE
          continue
        }
        case 135: { // xor RM 64
          const d = c + <usize>load<u8>(op, OP_DST)
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let b: u64
          if (load<u64>(e, TLB_READ) == ((ea + 7) & PAGE_MASK)) b = load<u64>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            b = <u64>readSlow(ea, 3)
            if (load<u32>(c, S_FAULT)) break
          }
          putReg<i64>(d, alu2<i64>(c, 6, load<i64>(d), <i64>b))
          op += OP_RECORD_SIZE
          continue
        }
        case 144: { // cmp RR 8
          const d = c + <usize>load<u8>(op, OP_DST)
          alu2<i8>(c, 7, load<i8>(d), load<i8>(c + <usize>load<u8>(op, OP_SRC)))
          op += OP_RECORD_SIZE
          continue
        }
        case 145: { // cmp RR 16
          const d = c + <usize>load<u8>(op, OP_DST)
          alu2<i16>(c, 7, load<i16>(d), load<i16>(c + <usize>load<u8>(op, OP_SRC)))
          op += OP_RECORD_SIZE
          continue
        }
        case 146: { // cmp RR 32
          const d = c + <usize>load<u8>(op, OP_DST)
          alu2<i32>(c, 7, load<i32>(d), load<i32>(c + <usize>load<u8>(op, OP_SRC)))
          op += OP_RECORD_SIZE
          continue
        }
        case 147: { // cmp RR 64
          const d = c + <usize>load<u8>(op, OP_DST)
          alu2<i64>(c, 7, load<i64>(d), load<i64>(c + <usize>load<u8>(op, OP_SRC)))
          op += OP_RECORD_SIZE
          continue
        }
        case 148: { // cmp RI 8
          const d = c + <usize>load<u8>(op, OP_DST)
          alu2<i8>(c, 7, load<i8>(d), load<i8>(op, OP_IMM))
          op += OP_RECORD_SIZE
          continue
        }
        case 150: { // cmp RI 32
          const d = c + <usize>load<u8>(op, OP_DST)
          alu2<i32>(c, 7, load<i32>(d), load<i32>(op, OP_IMM))
          op += OP_RECORD_SIZE
          continue
        }
        case 151: { // cmp RI 64
          const d = c + <usize>load<u8>(op, OP_DST)
          alu2<i64>(c, 7, load<i64>(d), load<i64>(op, OP_IMM))
          op += OP_RECORD_SIZE
          continue
        }
        case 152: { // cmp RM 8
          const d = c + <usize>load<u8>(op, OP_DST)
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let b: u32
          if (load<u64>(e, TLB_READ) == (ea & PAGE_MASK)) b = load<u8>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            b = <u32>readSlow(ea, 0)
            if (load<u32>(c, S_FAULT)) break
          }
          alu2<i8>(c, 7, load<i8>(d), <i8>b)
          op += OP_RECORD_SIZE
          continue
        }
        case 154: { // cmp RM 32
          const d = c + <usize>load<u8>(op, OP_DST)
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let b: u32
          if (load<u64>(e, TLB_READ) == ((ea + 3) & PAGE_MASK)) b = load<u32>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            b = <u32>readSlow(ea, 2)
            if (load<u32>(c, S_FAULT)) break
          }
          alu2<i32>(c, 7, load<i32>(d), <i32>b)
          op += OP_RECORD_SIZE
          continue
        }
        case 155: { // cmp RM 64
          const d = c + <usize>load<u8>(op, OP_DST)
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let b: u64
          if (load<u64>(e, TLB_READ) == ((ea + 7) & PAGE_MASK)) b = load<u64>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            b = <u64>readSlow(ea, 3)
            if (load<u32>(c, S_FAULT)) break
          }
          alu2<i64>(c, 7, load<i64>(d), <i64>b)
          op += OP_RECORD_SIZE
          continue
        }
        case 158: { // cmp MR 32
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let a: u32
          if (load<u64>(e, TLB_READ) == ((ea + 3) & PAGE_MASK)) a = load<u32>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            a = <u32>readSlow(ea, 2)
            if (load<u32>(c, S_FAULT)) break
          }
          alu2<i32>(c, 7, <i32>a, load<i32>(c + <usize>load<u8>(op, OP_SRC)))
          op += OP_RECORD_SIZE
          continue
        }
        case 159: { // cmp MR 64
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let a: u64
          if (load<u64>(e, TLB_READ) == ((ea + 7) & PAGE_MASK)) a = load<u64>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            a = <u64>readSlow(ea, 3)
            if (load<u32>(c, S_FAULT)) break
          }
          alu2<i64>(c, 7, <i64>a, load<i64>(c + <usize>load<u8>(op, OP_SRC)))
          op += OP_RECORD_SIZE
          continue
        }
        case 160: { // cmp MI 8
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let a: u32
          if (load<u64>(e, TLB_READ) == (ea & PAGE_MASK)) a = load<u8>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            a = <u32>readSlow(ea, 0)
            if (load<u32>(c, S_FAULT)) break
          }
          alu2<i8>(c, 7, <i8>a, load<i8>(op, OP_IMM))
          op += OP_RECORD_SIZE
          continue
        }
        case 162: { // cmp MI 32
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let a: u32
          if (load<u64>(e, TLB_READ) == ((ea + 3) & PAGE_MASK)) a = load<u32>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            a = <u32>readSlow(ea, 2)
            if (load<u32>(c, S_FAULT)) break
          }
          alu2<i32>(c, 7, <i32>a, load<i32>(op, OP_IMM))
          op += OP_RECORD_SIZE
          continue
        }
        case 163: { // cmp MI 64
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let a: u64
          if (load<u64>(e, TLB_READ) == ((ea + 7) & PAGE_MASK)) a = load<u64>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            a = <u64>readSlow(ea, 3)
            if (load<u32>(c, S_FAULT)) break
          }
          alu2<i64>(c, 7, <i64>a, load<i64>(op, OP_IMM))
          op += OP_RECORD_SIZE
          continue
        }
        case 164: { // test RR 8
          const d = c + <usize>load<u8>(op, OP_DST)
          alu2<i8>(c, 8, load<i8>(d), load<i8>(c + <usize>load<u8>(op, OP_SRC)))
          op += OP_RECORD_SIZE
          continue
        }
        case 166: { // test RR 32
          const d = c + <usize>load<u8>(op, OP_DST)
          alu2<i32>(c, 8, load<i32>(d), load<i32>(c + <usize>load<u8>(op, OP_SRC)))
          op += OP_RECORD_SIZE
          continue
        }
        case 167: { // test RR 64
          const d = c + <usize>load<u8>(op, OP_DST)
          alu2<i64>(c, 8, load<i64>(d), load<i64>(c + <usize>load<u8>(op, OP_SRC)))
          op += OP_RECORD_SIZE
          continue
        }
        case 168: { // test RI 8
          const d = c + <usize>load<u8>(op, OP_DST)
          alu2<i8>(c, 8, load<i8>(d), load<i8>(op, OP_IMM))
          op += OP_RECORD_SIZE
          continue
        }
        case 170: { // test RI 32
          const d = c + <usize>load<u8>(op, OP_DST)
          alu2<i32>(c, 8, load<i32>(d), load<i32>(op, OP_IMM))
          op += OP_RECORD_SIZE
          continue
        }
        case 171: { // test RI 64
          const d = c + <usize>load<u8>(op, OP_DST)
          alu2<i64>(c, 8, load<i64>(d), load<i64>(op, OP_IMM))
          op += OP_RECORD_SIZE
          continue
        }
        case 178: { // test MR 32
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let a: u32
          if (load<u64>(e, TLB_READ) == ((ea + 3) & PAGE_MASK)) a = load<u32>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            a = <u32>readSlow(ea, 2)
            if (load<u32>(c, S_FAULT)) break
          }
          alu2<i32>(c, 8, <i32>a, load<i32>(c + <usize>load<u8>(op, OP_SRC)))
          op += OP_RECORD_SIZE
          continue
        }
        case 179: { // test MR 64
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let a: u64
          if (load<u64>(e, TLB_READ) == ((ea + 7) & PAGE_MASK)) a = load<u64>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            a = <u64>readSlow(ea, 3)
            if (load<u32>(c, S_FAULT)) break
          }
          alu2<i64>(c, 8, <i64>a, load<i64>(c + <usize>load<u8>(op, OP_SRC)))
          op += OP_RECORD_SIZE
          continue
        }
        case 180: { // test MI 8
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let a: u32
          if (load<u64>(e, TLB_READ) == (ea & PAGE_MASK)) a = load<u8>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            a = <u32>readSlow(ea, 0)
            if (load<u32>(c, S_FAULT)) break
          }
          alu2<i8>(c, 8, <i8>a, load<i8>(op, OP_IMM))
          op += OP_RECORD_SIZE
          continue
        }
        case 182: { // test MI 32
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let a: u32
          if (load<u64>(e, TLB_READ) == ((ea + 3) & PAGE_MASK)) a = load<u32>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            a = <u32>readSlow(ea, 2)
            if (load<u32>(c, S_FAULT)) break
          }
          alu2<i32>(c, 8, <i32>a, load<i32>(op, OP_IMM))
          op += OP_RECORD_SIZE
          continue
        }
        case 4:
        case 8:
        case 9:
        case 24:
        case 25:
        case 28:
        case 29:
        case 44:
        case 45:
        case 48:
        case 49:
        case 50:
        case 51:
        case 64:
        case 65:
        case 68:
        case 69:
        case 70:
        case 71:
        case 84:
        case 85:
        case 89:
        case 104:
        case 105:
        case 108:
        case 109:
        case 124:
        case 125:
        case 128:
        case 129:
        case 149:
        case 165:
        case 169: { // arithmetic on registers, the rarer forms
          X.aluRegister(op)
          op += OP_RECORD_SIZE
          continue
        }
        case 12:
        case 13:
        case 16:
        case 17:
        case 20:
        case 21:
        case 32:
        case 33:
        case 36:
        case 37:
        case 38:
        case 39:
        case 40:
        case 41:
        case 42:
        case 43:
        case 52:
        case 53:
        case 54:
        case 55:
        case 56:
        case 57:
        case 58:
        case 59:
        case 60:
        case 61:
        case 62:
        case 63:
        case 72:
        case 73:
        case 74:
        case 75:
        case 76:
        case 77:
        case 78:
        case 79:
        case 80:
        case 81:
        case 82:
        case 83:
        case 92:
        case 93:
        case 96:
        case 97:
        case 98:
        case 99:
        case 100:
        case 101:
        case 102:
        case 103:
        case 112:
        case 113:
        case 116:
        case 117:
        case 118:
        case 119:
        case 120:
        case 121:
        case 122:
        case 123:
        case 132:
        case 133:
        case 136:
        case 137:
        case 138:
        case 139:
        case 140:
        case 141:
        case 142:
        case 143:
        case 153:
        case 156:
        case 157:
        case 161:
        case 172:
        case 173:
        case 174:
        case 175:
        case 176:
        case 177:
        case 181:
        case 183: { // arithmetic with memory, the rarer forms
          X.aluMemory(op)
          if (load<u32>(c, S_FAULT)) break
          op += OP_RECORD_SIZE
          continue
        }
        case 184: { // mov RR 8
          putReg<i8>(c + <usize>load<u8>(op, OP_DST), load<i8>(c + <usize>load<u8>(op, OP_SRC)))
          op += OP_RECORD_SIZE
          continue
        }
        case 185: { // mov RR 16
          putReg<i16>(c + <usize>load<u8>(op, OP_DST), load<i16>(c + <usize>load<u8>(op, OP_SRC)))
          op += OP_RECORD_SIZE
          continue
        }
        case 186: { // mov RR 32
          putReg<i32>(c + <usize>load<u8>(op, OP_DST), load<i32>(c + <usize>load<u8>(op, OP_SRC)))
          op += OP_RECORD_SIZE
          continue
        }
        case 187: { // mov RR 64
          putReg<i64>(c + <usize>load<u8>(op, OP_DST), load<i64>(c + <usize>load<u8>(op, OP_SRC)))
          op += OP_RECORD_SIZE
          continue
        }
        case 188: { // mov RI 8
          putReg<i8>(c + <usize>load<u8>(op, OP_DST), load<i8>(op, OP_IMM))
          op += OP_RECORD_SIZE
          continue
        }
        case 189: { // mov RI 16
          putReg<i16>(c + <usize>load<u8>(op, OP_DST), load<i16>(op, OP_IMM))
          op += OP_RECORD_SIZE
          continue
        }
        case 190: { // mov RI 32
          putReg<i32>(c + <usize>load<u8>(op, OP_DST), load<i32>(op, OP_IMM))
          op += OP_RECORD_SIZE
          continue
        }
        case 191: { // mov RI 64
          putReg<i64>(c + <usize>load<u8>(op, OP_DST), load<i64>(op, OP_IMM))
          op += OP_RECORD_SIZE
          continue
        }
        case 192: { // mov RM 8
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let v: u32
          if (load<u64>(e, TLB_READ) == (ea & PAGE_MASK)) v = load<u8>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            v = <u32>readSlow(ea, 0)
            if (load<u32>(c, S_FAULT)) break
          }
          putReg<i8>(c + <usize>load<u8>(op, OP_DST), <i8>v)
          op += OP_RECORD_SIZE
          continue
        }
        case 193: { // mov RM 16
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let v: u32
          if (load<u64>(e, TLB_READ) == ((ea + 1) & PAGE_MASK)) v = load<u16>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            v = <u32>readSlow(ea, 1)
            if (load<u32>(c, S_FAULT)) break
          }
          putReg<i16>(c + <usize>load<u8>(op, OP_DST), <i16>v)
          op += OP_RECORD_SIZE
          continue
        }
        case 194: { // mov RM 32
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let v: u32
          if (load<u64>(e, TLB_READ) == ((ea + 3) & PAGE_MASK)) v = load<u32>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            v = <u32>readSlow(ea, 2)
            if (load<u32>(c, S_FAULT)) break
          }
          putReg<i32>(c + <usize>load<u8>(op, OP_DST), <i32>v)
          op += OP_RECORD_SIZE
          continue
        }
        case 195: { // mov RM 64
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          let v: u64
          if (load<u64>(e, TLB_READ) == ((ea + 7) & PAGE_MASK)) v = load<u64>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            v = <u64>readSlow(ea, 3)
            if (load<u32>(c, S_FAULT)) break
          }
          putReg<i64>(c + <usize>load<u8>(op, OP_DST), <i64>v)
          op += OP_RECORD_SIZE
          continue
        }
        case 196: { // mov MR 8
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          if (load<u64>(e, TLB_WRITE) == (ea & PAGE_MASK)) store<u8>(load<u32>(e, TLB_ADDEND) + <u32>ea, load<u8>(c + <usize>load<u8>(op, OP_SRC)))
          else {
            writeSlow(ea, <u64>(load<u8>(c + <usize>load<u8>(op, OP_SRC))), 0)
            if (load<u32>(c, S_FAULT)) break
          }
          op += OP_RECORD_SIZE
          continue
        }
        case 197: { // mov MR 16
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          if (load<u64>(e, TLB_WRITE) == ((ea + 1) & PAGE_MASK)) store<u16>(load<u32>(e, TLB_ADDEND) + <u32>ea, load<u16>(c + <usize>load<u8>(op, OP_SRC)))
          else {
            writeSlow(ea, <u64>(load<u16>(c + <usize>load<u8>(op, OP_SRC))), 1)
            if (load<u32>(c, S_FAULT)) break
          }
          op += OP_RECORD_SIZE
          continue
        }
        case 198: { // mov MR 32
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          if (load<u64>(e, TLB_WRITE) == ((ea + 3) & PAGE_MASK)) store<u32>(load<u32>(e, TLB_ADDEND) + <u32>ea, load<u32>(c + <usize>load<u8>(op, OP_SRC)))
          else {
            writeSlow(ea, <u64>(load<u32>(c + <usize>load<u8>(op, OP_SRC))), 2)
            if (load<u32>(c, S_FAULT)) break
          }
          op += OP_RECORD_SIZE
          continue
        }
        case 199: { // mov MR 64
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          if (load<u64>(e, TLB_WRITE) == ((ea + 7) & PAGE_MASK)) store<u64>(load<u32>(e, TLB_ADDEND) + <u32>ea, load<u64>(c + <usize>load<u8>(op, OP_SRC)))
          else {
            writeSlow(ea, <u64>(load<u64>(c + <usize>load<u8>(op, OP_SRC))), 3)
            if (load<u32>(c, S_FAULT)) break
          }
          op += OP_RECORD_SIZE
          continue
        }
        case 200: { // mov MI 8
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          if (load<u64>(e, TLB_WRITE) == (ea & PAGE_MASK)) store<u8>(load<u32>(e, TLB_ADDEND) + <u32>ea, load<u8>(op, OP_IMM))
          else {
            writeSlow(ea, <u64>(load<u8>(op, OP_IMM)), 0)
            if (load<u32>(c, S_FAULT)) break
          }
          op += OP_RECORD_SIZE
          continue
        }
        case 201: { // mov MI 16
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          if (load<u64>(e, TLB_WRITE) == ((ea + 1) & PAGE_MASK)) store<u16>(load<u32>(e, TLB_ADDEND) + <u32>ea, load<u16>(op, OP_IMM))
          else {
            writeSlow(ea, <u64>(load<u16>(op, OP_IMM)), 1)
            if (load<u32>(c, S_FAULT)) break
          }
          op += OP_RECORD_SIZE
          continue
        }
        case 202: { // mov MI 32
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          if (load<u64>(e, TLB_WRITE) == ((ea + 3) & PAGE_MASK)) store<u32>(load<u32>(e, TLB_ADDEND) + <u32>ea, load<u32>(op, OP_IMM))
          else {
            writeSlow(ea, <u64>(load<u32>(op, OP_IMM)), 2)
            if (load<u32>(c, S_FAULT)) break
          }
          op += OP_RECORD_SIZE
          continue
        }
        case 203: { // mov MI 64
          const ea = effective(c, op)
          const e = tlbSlotIn(c, ea)
          if (load<u64>(e, TLB_WRITE) == ((ea + 7) & PAGE_MASK)) store<u64>(load<u32>(e, TLB_ADDEND) + <u32>ea, load<u64>(op, OP_IMM))
          else {
            writeSlow(ea, <u64>(load<u64>(op, OP_IMM)), 3)
            if (load<u32>(c, S_FAULT)) break
          }
          op += OP_RECORD_SIZE
          continue
        }
        case 236: { // inc 32
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i32>(d, inc<i32>(c, load<i32>(d)))
          op += OP_RECORD_SIZE
          continue
        }
        case 237: { // inc 64
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i64>(d, inc<i64>(c, load<i64>(d)))
          op += OP_RECORD_SIZE
          continue
        }
        case 240: { // dec 32
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i32>(d, dec<i32>(c, load<i32>(d)))
          op += OP_RECORD_SIZE
          continue
        }
        case 241: { // dec 64
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i64>(d, dec<i64>(c, load<i64>(d)))
          op += OP_RECORD_SIZE
          continue
        }
        case 244: { // not 32
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i32>(d, <i32>~load<i32>(d))
          op += OP_RECORD_SIZE
          continue
        }
        case 245: { // not 64
          const d = c + <usize>load<u8>(op, OP_DST)
          putReg<i64>(d, <i64>~load<i64>(d))
          op += OP_RECORD_SIZE
          continue
        }
        case 234:
        case 235:
        case 238:
        case 239:
        case 242:
        case 243:
        case 246:
        case 247:
        case 248:
        case 249: { // other forms of inc, dec, not, neg
          X.unaryRegister(op)
          op += OP_RECORD_SIZE
          continue
        }
        case 255: { // shl 32 by immediate
          const d = c + <usize>load<u8>(op, OP_DST)
          const n = load<u32>(op, OP_IMM)
          const x = load<u32>(d)
          const r = x << n
          setShiftFlags(c, <i64>(<i32>r), shlBits32(x, r, n))
          store<u64>(d, <u64>r)
          op += OP_RECORD_SIZE
          continue
        }
        case 256: { // shl 64 by immediate
          const d = c + <usize>load<u8>(op, OP_DST)
          const n = load<u64>(op, OP_IMM)
          const x = load<u64>(d)
          const r = x << n
          setShiftFlags(c, <i64>(<i64>r), shlBits64(x, r, n))
          store<u64>(d, <u64>r)
          op += OP_RECORD_SIZE
          continue
        }
        case 257: { // shr 32 by immediate
          const d = c + <usize>load<u8>(op, OP_DST)
          const n = load<u32>(op, OP_IMM)
          const x = load<u32>(d)
          const r = x >> n
          setShiftFlags(c, <i64>(<i32>r), (<u32>(x >> (n - 1)) & 1) | (n == 1 ? <u32>(x >> 31) << 11 : 0))
          store<u64>(d, <u64>r)
          op += OP_RECORD_SIZE
          continue
        }
        case 258: { // shr 64 by immediate
          const d = c + <usize>load<u8>(op, OP_DST)
          const n = load<u64>(op, OP_IMM)
          const x = load<u64>(d)
          const r = x >> n
          setShiftFlags(c, <i64>(<i64>r), (<u32>(x >> (n - 1)) & 1) | (n == 1 ? <u32>(x >> 63) << 11 : 0))
          store<u64>(d, <u64>r)
          op += OP_RECORD_SIZE
          continue
        }
        case 259: { // sar 32 by immediate
          const d = c + <usize>load<u8>(op, OP_DST)
          const n = load<u32>(op, OP_IMM)
          const x = load<u32>(d)
          const r = <u32>(<i32>x >> <i32>n)
          setShiftFlags(c, <i64>(<i32>r), <u32>(<i32>x >> <i32>(n - 1)) & 1)
          store<u64>(d, <u64>r)
          op += OP_RECORD_SIZE
          continue
        }
        case 260: { // sar 64 by immediate
          const d = c + <usize>load<u8>(op, OP_DST)
          const n = load<u64>(op, OP_IMM)
          const x = load<u64>(d)
          const r = <u64>(<i64>x >> <i64>n)
          setShiftFlags(c, <i64>(<i64>r), <u32>(<i64>x >> <i64>(n - 1)) & 1)
          store<u64>(d, <u64>r)
          op += OP_RECORD_SIZE
          continue
        }
        case 261: { // rol 32 by immediate
          const d = c + <usize>load<u8>(op, OP_DST)
          const n = load<u32>(op, OP_IMM)
          const x = load<u32>(d)
          const r = rotl<u32>(x, n)
          setCarryOverflow(c, (r & 1) != 0, <bool>((<u32>(r >> 31) ^ <u32>r) & 1))
          store<u64>(d, <u64>r)
          op += OP_RECORD_SIZE
          continue
        }
        case 262: { // rol 64 by immediate
          const d = c + <usize>load<u8>(op, OP_DST)
          const n = load<u64>(op, OP_IMM)
          const x = load<u64>(d)
          const r = rotl<u64>(x, n)
          setCarryOverflow(c, (r & 1) != 0, <bool>((<u32>(r >> 63) ^ <u32>r) & 1))
          store<u64>(d, <u64>r)
          op += OP_RECORD_SIZE
          continue
        }
        case 263: { // ror 32 by immediate
          const d = c + <usize>load<u8>(op, OP_DST)
          const n = load<u32>(op, OP_IMM)
          const x = load<u32>(d)
          const r = rotr<u32>(x, n)
          setCarryOverflow(c, <i32>r < 0, <bool>(<u32>((r >> 31) ^ (r >> 30)) & 1))
          store<u64>(d, <u64>r)
          op += OP_RECORD_SIZE
          continue
        }
        case 264: { // ror 64 by immediate
          const d = c + <usize>load<u8>(op, OP_DST)
          const n = load<u64>(op, OP_IMM)
          const x = load<u64>(d)
          const r = rotr<u64>(x, n)
          setCarryOverflow(c, <i64>r < 0, <bool>(<u32>((r >> 63) ^ (r >> 62)) & 1))
          store<u64>(d, <u64>r)
          op += OP_RECORD_SIZE
          continue
        }
        case 292: { // jo
          taken = conditionAny(0)
          if (taken) {
            slot = block + BLK_LINK_TAKEN
            rip = blockRip + load<u64>(op, OP_IMM)
          } else {
            slot = block + BLK_LINK_NEXT
            rip = blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH)
          }
          if (load<u8>(op, OP_SIZE) != 3) rip = wrapRip(op, rip)
          break
        }
        case 293: { // jno
          taken = conditionAny(1)
          if (taken) {
            slot = block + BLK_LINK_TAKEN
            rip = blockRip + load<u64>(op, OP_IMM)
          } else {
            slot = block + BLK_LINK_NEXT
            rip = blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH)
          }
          if (load<u8>(op, OP_SIZE) != 3) rip = wrapRip(op, rip)
          break
        }
        case 294: { // jb
          taken = load<u32>(c, S_FLAG_KIND) == FLAG_SUB ? load<u64>(c, S_FLAG_A) < load<u64>(c, S_FLAG_B) : conditionAny(2)
          if (taken) {
            slot = block + BLK_LINK_TAKEN
            rip = blockRip + load<u64>(op, OP_IMM)
          } else {
            slot = block + BLK_LINK_NEXT
            rip = blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH)
          }
          if (load<u8>(op, OP_SIZE) != 3) rip = wrapRip(op, rip)
          break
        }
        case 295: { // jae
          taken = load<u32>(c, S_FLAG_KIND) == FLAG_SUB ? load<u64>(c, S_FLAG_A) >= load<u64>(c, S_FLAG_B) : conditionAny(3)
          if (taken) {
            slot = block + BLK_LINK_TAKEN
            rip = blockRip + load<u64>(op, OP_IMM)
          } else {
            slot = block + BLK_LINK_NEXT
            rip = blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH)
          }
          if (load<u8>(op, OP_SIZE) != 3) rip = wrapRip(op, rip)
          break
        }
        case 296: { // je
          taken = load<u32>(c, S_FLAG_KIND) != FLAG_LITERAL ? load<i64>(c, S_FLAG_RES) == 0 : conditionAny(4)
          if (taken) {
            slot = block + BLK_LINK_TAKEN
            rip = blockRip + load<u64>(op, OP_IMM)
          } else {
            slot = block + BLK_LINK_NEXT
            rip = blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH)
          }
          if (load<u8>(op, OP_SIZE) != 3) rip = wrapRip(op, rip)
          break
        }
        case 297: { // jne
          taken = load<u32>(c, S_FLAG_KIND) != FLAG_LITERAL ? load<i64>(c, S_FLAG_RES) != 0 : conditionAny(5)
          if (taken) {
            slot = block + BLK_LINK_TAKEN
            rip = blockRip + load<u64>(op, OP_IMM)
          } else {
            slot = block + BLK_LINK_NEXT
            rip = blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH)
          }
          if (load<u8>(op, OP_SIZE) != 3) rip = wrapRip(op, rip)
          break
        }
        case 298: { // jbe
          taken = load<u32>(c, S_FLAG_KIND) == FLAG_SUB ? load<u64>(c, S_FLAG_A) <= load<u64>(c, S_FLAG_B) : conditionAny(6)
          if (taken) {
            slot = block + BLK_LINK_TAKEN
            rip = blockRip + load<u64>(op, OP_IMM)
          } else {
            slot = block + BLK_LINK_NEXT
            rip = blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH)
          }
          if (load<u8>(op, OP_SIZE) != 3) rip = wrapRip(op, rip)
          break
        }
        case 299: { // ja
          taken = load<u32>(c, S_FLAG_KIND) == FLAG_SUB ? load<u64>(c, S_FLAG_A) > load<u64>(c, S_FLAG_B) : conditionAny(7)
          if (taken) {
            slot = block + BLK_LINK_TAKEN
            rip = blockRip + load<u64>(op, OP_IMM)
          } else {
            slot = block + BLK_LINK_NEXT
            rip = blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH)
          }
          if (load<u8>(op, OP_SIZE) != 3) rip = wrapRip(op, rip)
          break
        }
        case 300: { // js
          taken = load<u32>(c, S_FLAG_KIND) != FLAG_LITERAL ? load<i64>(c, S_FLAG_RES) < 0 : conditionAny(8)
          if (taken) {
            slot = block + BLK_LINK_TAKEN
            rip = blockRip + load<u64>(op, OP_IMM)
          } else {
            slot = block + BLK_LINK_NEXT
            rip = blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH)
          }
          if (load<u8>(op, OP_SIZE) != 3) rip = wrapRip(op, rip)
          break
        }
        case 301: { // jns
          taken = load<u32>(c, S_FLAG_KIND) != FLAG_LITERAL ? load<i64>(c, S_FLAG_RES) >= 0 : conditionAny(9)
          if (taken) {
            slot = block + BLK_LINK_TAKEN
            rip = blockRip + load<u64>(op, OP_IMM)
          } else {
            slot = block + BLK_LINK_NEXT
            rip = blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH)
          }
          if (load<u8>(op, OP_SIZE) != 3) rip = wrapRip(op, rip)
          break
        }
        case 302: { // jp
          taken = conditionAny(10)
          if (taken) {
            slot = block + BLK_LINK_TAKEN
            rip = blockRip + load<u64>(op, OP_IMM)
          } else {
            slot = block + BLK_LINK_NEXT
            rip = blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH)
          }
          if (load<u8>(op, OP_SIZE) != 3) rip = wrapRip(op, rip)
          break
        }
        case 303: { // jnp
          taken = conditionAny(11)
          if (taken) {
            slot = block + BLK_LINK_TAKEN
            rip = blockRip + load<u64>(op, OP_IMM)
          } else {
            slot = block + BLK_LINK_NEXT
            rip = blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH)
          }
          if (load<u8>(op, OP_SIZE) != 3) rip = wrapRip(op, rip)
          break
        }
        case 304: { // jl
          taken = load<u32>(c, S_FLAG_KIND) == FLAG_SUB ? load<i64>(c, S_FLAG_A) < load<i64>(c, S_FLAG_B) : conditionAny(12)
          if (taken) {
            slot = block + BLK_LINK_TAKEN
            rip = blockRip + load<u64>(op, OP_IMM)
          } else {
            slot = block + BLK_LINK_NEXT
            rip = blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH)
          }
          if (load<u8>(op, OP_SIZE) != 3) rip = wrapRip(op, rip)
          break
        }
        case 305: { // jge
          taken = load<u32>(c, S_FLAG_KIND) == FLAG_SUB ? load<i64>(c, S_FLAG_A) >= load<i64>(c, S_FLAG_B) : conditionAny(13)
          if (taken) {
            slot = block + BLK_LINK_TAKEN
            rip = blockRip + load<u64>(op, OP_IMM)
          } else {
            slot = block + BLK_LINK_NEXT
            rip = blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH)
          }
          if (load<u8>(op, OP_SIZE) != 3) rip = wrapRip(op, rip)
          break
        }
        case 306: { // jle
          taken = load<u32>(c, S_FLAG_KIND) == FLAG_SUB ? load<i64>(c, S_FLAG_A) <= load<i64>(c, S_FLAG_B) : conditionAny(14)
          if (taken) {
            slot = block + BLK_LINK_TAKEN
            rip = blockRip + load<u64>(op, OP_IMM)
          } else {
            slot = block + BLK_LINK_NEXT
            rip = blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH)
          }
          if (load<u8>(op, OP_SIZE) != 3) rip = wrapRip(op, rip)
          break
        }
        case 307: { // jg
          taken = load<u32>(c, S_FLAG_KIND) == FLAG_SUB ? load<i64>(c, S_FLAG_A) > load<i64>(c, S_FLAG_B) : conditionAny(15)
          if (taken) {
            slot = block + BLK_LINK_TAKEN
            rip = blockRip + load<u64>(op, OP_IMM)
          } else {
            slot = block + BLK_LINK_NEXT
            rip = blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH)
          }
          if (load<u8>(op, OP_SIZE) != 3) rip = wrapRip(op, rip)
          break
        }
        case 204: // lea 8: unused
        case 205: {
          store<u16>(c + <usize>load<u8>(op, OP_DST), <u16>offsetOnly(op))
          op += OP_RECORD_SIZE
          continue
        }
        case 206: {
          store<u64>(c + <usize>load<u8>(op, OP_DST), offsetOnly(op) & 0xffff_ffff)
          op += OP_RECORD_SIZE
          continue
        }
        case 207: {
          store<u64>(c + <usize>load<u8>(op, OP_DST), offsetOnly(op))
          op += OP_RECORD_SIZE
          continue
        }
        case 208: {
          const v = <u64>load<u8>(c + <usize>load<u8>(op, OP_SRC))
          if (load<u8>(op, OP_SIZE) == 1) store<u16>(c + <usize>load<u8>(op, OP_DST), <u16>v)
          else store<u64>(c + <usize>load<u8>(op, OP_DST), v)
          op += OP_RECORD_SIZE
          continue
        }
        case 209: {
          const v = <u64>load<u16>(c + <usize>load<u8>(op, OP_SRC))
          if (load<u8>(op, OP_SIZE) == 1) store<u16>(c + <usize>load<u8>(op, OP_DST), <u16>v)
          else store<u64>(c + <usize>load<u8>(op, OP_DST), v)
          op += OP_RECORD_SIZE
          continue
        }
        case 210: {
          const ea = X.effectiveSized(c, op, 1)
          const e = tlbSlotIn(c, ea)
          let r: u32
          if (load<u64>(e, TLB_READ) == (ea & PAGE_MASK)) r = load<u8>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            r = <u32>readSlow(ea, 0)
            if (load<u32>(c, S_FAULT)) break
          }
          const v = <u64>r
          if (load<u8>(op, OP_SIZE) == 1) store<u16>(c + <usize>load<u8>(op, OP_DST), <u16>v)
          else store<u64>(c + <usize>load<u8>(op, OP_DST), v)
          op += OP_RECORD_SIZE
          continue
        }
        case 211: {
          const ea = X.effectiveSized(c, op, 2)
          const e = tlbSlotIn(c, ea)
          let r: u32
          if (load<u64>(e, TLB_READ) == ((ea + 1) & PAGE_MASK)) r = load<u16>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            r = <u32>readSlow(ea, 1)
            if (load<u32>(c, S_FAULT)) break
          }
          const v = <u64>r
          if (load<u8>(op, OP_SIZE) == 1) store<u16>(c + <usize>load<u8>(op, OP_DST), <u16>v)
          else store<u64>(c + <usize>load<u8>(op, OP_DST), v)
          op += OP_RECORD_SIZE
          continue
        }
        case 212: {
          X.putSized(c, op, <i64>load<i8>(c + <usize>load<u8>(op, OP_SRC)))
          op += OP_RECORD_SIZE
          continue
        }
        case 213: {
          X.putSized(c, op, <i64>load<i16>(c + <usize>load<u8>(op, OP_SRC)))
          op += OP_RECORD_SIZE
          continue
        }
        case 214: {
          store<i64>(c + <usize>load<u8>(op, OP_DST), <i64>load<i32>(c + <usize>load<u8>(op, OP_SRC)))
          op += OP_RECORD_SIZE
          continue
        }
        case 215: {
          const ea = X.effectiveSized(c, op, 1)
          const e = tlbSlotIn(c, ea)
          let r: u32
          if (load<u64>(e, TLB_READ) == (ea & PAGE_MASK)) r = load<u8>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            r = <u32>readSlow(ea, 0)
            if (load<u32>(c, S_FAULT)) break
          }
          const v = <i64>(<i8>r)
          X.putSized(c, op, v)
          op += OP_RECORD_SIZE
          continue
        }
        case 216: {
          const ea = X.effectiveSized(c, op, 2)
          const e = tlbSlotIn(c, ea)
          let r: u32
          if (load<u64>(e, TLB_READ) == ((ea + 1) & PAGE_MASK)) r = load<u16>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            r = <u32>readSlow(ea, 1)
            if (load<u32>(c, S_FAULT)) break
          }
          const v = <i64>(<i16>r)
          X.putSized(c, op, v)
          op += OP_RECORD_SIZE
          continue
        }
        case 217: {
          const ea = X.effectiveSized(c, op, 4)
          const e = tlbSlotIn(c, ea)
          let r: u32
          if (load<u64>(e, TLB_READ) == ((ea + 3) & PAGE_MASK)) r = load<u32>(load<u32>(e, TLB_ADDEND) + <u32>ea)
          else {
            r = <u32>readSlow(ea, 2)
            if (load<u32>(c, S_FAULT)) break
          }
          const v = <i64>(<i32>r)
          store<i64>(c + <usize>load<u8>(op, OP_DST), v)
          op += OP_RECORD_SIZE
          continue
        }
        case 218: { // push
          const sp = load<u64>(c, S_RSP) - 8
          const e = tlbSlotIn(c, sp)
          if (load<u64>(e, TLB_WRITE) == ((sp + 7) & PAGE_MASK)) store<u64>(load<u32>(e, TLB_ADDEND) + <u32>sp, load<u64>(c + <usize>load<u8>(op, OP_SRC)))
          else {
            writeSlow(sp, <u64>(load<u64>(c + <usize>load<u8>(op, OP_SRC))), 3)
            if (load<u32>(c, S_FAULT)) break
          }
          store<u64>(c, sp, S_RSP)
          op += OP_RECORD_SIZE
          continue
        }
        case 219: { // pop
          const sp = load<u64>(c, S_RSP)
          const e = tlbSlotIn(c, sp)
          let v: u64
          if (load<u64>(e, TLB_READ) == ((sp + 7) & PAGE_MASK)) v = load<u64>(load<u32>(e, TLB_ADDEND) + <u32>sp)
          else {
            v = <u64>readSlow(sp, 3)
            if (load<u32>(c, S_FAULT)) break
          }
          store<u64>(c, sp + 8, S_RSP)
          store<u64>(c + <usize>load<u8>(op, OP_DST), v)
          op += OP_RECORD_SIZE
          continue
        }
        case 220: { // push imm
          const sp = load<u64>(c, S_RSP) - 8
          const e = tlbSlotIn(c, sp)
          if (load<u64>(e, TLB_WRITE) == ((sp + 7) & PAGE_MASK)) store<u64>(load<u32>(e, TLB_ADDEND) + <u32>sp, load<u64>(op, OP_IMM))
          else {
            writeSlow(sp, <u64>(load<u64>(op, OP_IMM)), 3)
            if (load<u32>(c, S_FAULT)) break
          }
          store<u64>(c, sp, S_RSP)
          op += OP_RECORD_SIZE
          continue
        }
        case 221: // unused
          break
        case 222: { // jmp
          slot = block + BLK_LINK_TAKEN
          rip = wrapRip(op, blockRip + load<u64>(op, OP_IMM))
          break
        }
        case 223: { // call
          const sp = load<u64>(c, S_RSP) - 8
          const e = tlbSlotIn(c, sp)
          if (load<u64>(e, TLB_WRITE) == ((sp + 7) & PAGE_MASK)) store<u64>(load<u32>(e, TLB_ADDEND) + <u32>sp, blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH))
          else {
            writeSlow(sp, <u64>(blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH)), 3)
            if (load<u32>(c, S_FAULT)) break
          }
          store<u64>(c, sp, S_RSP)
          slot = block + BLK_LINK_TAKEN
          rip = blockRip + load<u64>(op, OP_IMM)
          break
        }
        case 224: { // ret
          const sp = load<u64>(c, S_RSP)
          const e = tlbSlotIn(c, sp)
          let target: u64
          if (load<u64>(e, TLB_READ) == ((sp + 7) & PAGE_MASK)) target = load<u64>(load<u32>(e, TLB_ADDEND) + <u32>sp)
          else {
            target = <u64>readSlow(sp, 3)
            if (load<u32>(c, S_FAULT)) break
          }
          if (!canonical(target)) {
            raiseGp()
            break
          }
          store<u64>(c, sp + 8, S_RSP)
          rip = target
          break
        }
        case 225: { // ret imm16
          const sp = load<u64>(c, S_RSP)
          const target = read64(sp)
          if (!canonical(target)) raiseGp()
          if (load<u32>(c, S_FAULT)) break
          store<u64>(c, sp + 8 + load<u64>(op, OP_IMM), S_RSP)
          rip = target
          break
        }
        case 226: { // jmp reg
          const target = load<u64>(c + <usize>load<u8>(op, OP_SRC))
          if (!canonical(target)) raiseGp()
          else rip = target
          break
        }
        case 227: { // jmp mem
          const target = read64(effective(c, op))
          if (!canonical(target)) raiseGp()
          if (load<u32>(c, S_FAULT)) break
          rip = target
          break
        }
        case 228: { // call reg
          const target = load<u64>(c + <usize>load<u8>(op, OP_SRC))
          const sp = load<u64>(c, S_RSP) - 8
          if (!canonical(target)) raiseGp()
          else write64(sp, blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH))
          if (load<u32>(c, S_FAULT)) break
          store<u64>(c, sp, S_RSP)
          rip = target
          break
        }
        case 229: { // call mem
          const target = read64(effective(c, op))
          if (!canonical(target)) raiseGp()
          if (load<u32>(c, S_FAULT)) break
          const sp = load<u64>(c, S_RSP) - 8
          write64(sp, blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH))
          if (load<u32>(c, S_FAULT)) break
          store<u64>(c, sp, S_RSP)
          rip = target
          break
        }
        case 230: { // setcc reg
          store<u8>(c + <usize>load<u8>(op, OP_DST), conditionOf(load<u8>(op, OP_AUX)) ? 1 : 0)
          op += OP_RECORD_SIZE
          continue
        }
        case 231: { // setcc mem
          write8(effective(c, op), conditionOf(load<u8>(op, OP_AUX)) ? 1 : 0)
          if (load<u32>(c, S_FAULT)) break
          op += OP_RECORD_SIZE
          continue
        }
        case 232: { // cmov reg
          const d = c + <usize>load<u8>(op, OP_DST)
          const size = load<u8>(op, OP_SIZE)
          if (conditionOf(load<u8>(op, OP_AUX))) {
            const s = c + <usize>load<u8>(op, OP_SRC)
            if (size == 3) store<u64>(d, load<u64>(s))
            else if (size == 2) store<u64>(d, <u64>load<u32>(s))
            else store<u16>(d, load<u16>(s))
          } else if (size == 2) store<u64>(d, <u64>load<u32>(d))
          op += OP_RECORD_SIZE
          continue
        }
        case 233: { // cmov mem
          X.cmovMemory(op)
          if (load<u32>(c, S_FAULT)) break
          op += OP_RECORD_SIZE
          continue
        }
        case 250: {
          X.unaryMemory(op)
          if (load<u32>(c, S_FAULT)) break
          op += OP_RECORD_SIZE
          continue
        }
        case 251: {
          X.shiftRegister(op, load<u32>(op, OP_IMM))
          op += OP_RECORD_SIZE
          continue
        }
        case 252: {
          X.shiftRegister(op, X.countInCl(op))
          op += OP_RECORD_SIZE
          continue
        }
        case 253: {
          X.shiftMemory(op, load<u32>(op, OP_IMM))
          if (load<u32>(c, S_FAULT)) break
          op += OP_RECORD_SIZE
          continue
        }
        case 254: {
          X.shiftMemory(op, X.countInCl(op))
          if (load<u32>(c, S_FAULT)) break
          op += OP_RECORD_SIZE
          continue
        }
        case 265: { // imul reg
          X.imul(op, X.loadRegister(c, op))
          op += OP_RECORD_SIZE
          continue
        }
        case 266: {
          const v = X.readOperand(op)
          if (load<u32>(c, S_FAULT)) break
          X.imul(op, v)
          op += OP_RECORD_SIZE
          continue
        }
        case 267: { // nop
          op += OP_RECORD_SIZE
          continue
        }
        case 268: {
          X.exchangeRegisters(op)
          op += OP_RECORD_SIZE
          continue
        }
        case 269: {
          X.exchangeMemory(op)
          if (load<u32>(c, S_FAULT)) break
          op += OP_RECORD_SIZE
          continue
        }
        case 270: { // cbw, cwde, cdqe
          const size = load<u8>(op, OP_SIZE)
          if (size == 3) store<i64>(c, <i64>load<i32>(c, S_RAX), S_RAX)
          else if (size == 2) store<u64>(c, <u64>load<i16>(c, S_RAX) & 0xffff_ffff, S_RAX)
          else store<i16>(c, <i16>load<i8>(c, S_RAX), S_RAX)
          op += OP_RECORD_SIZE
          continue
        }
        case 271: { // cwd, cdq, cqo
          const size = load<u8>(op, OP_SIZE)
          if (size == 3) store<i64>(c, load<i64>(c, S_RAX) >> 63, S_RDX)
          else if (size == 2) store<u64>(c, <u64>(<u32>(load<i32>(c, S_RAX) >> 31)), S_RDX)
          else store<i16>(c, <i16>(load<i16>(c, S_RAX) >> 15), S_RDX)
          op += OP_RECORD_SIZE
          continue
        }
        case 272: {
          const d = c + <usize>load<u8>(op, OP_DST)
          const size = load<u8>(op, OP_SIZE)
          if (size == 3) store<u64>(d, bswap<u64>(load<u64>(d)))
          else if (size == 2) store<u64>(d, <u64>bswap<u32>(load<u32>(d)))
          else store<u16>(d, 0)
          op += OP_RECORD_SIZE
          continue
        }
        case 273: {
          X.mulDiv(op)
          if (load<u32>(c, S_FAULT)) break
          op += OP_RECORD_SIZE
          continue
        }
        case 274: {
          X.doubleShift(op)
          if (load<u32>(c, S_FAULT)) break
          op += OP_RECORD_SIZE
          continue
        }
        case 275: {
          X.bitOperation(op)
          if (load<u32>(c, S_FAULT)) break
          op += OP_RECORD_SIZE
          continue
        }
        case 276: {
          X.bitScan(op)
          if (load<u32>(c, S_FAULT)) break
          op += OP_RECORD_SIZE
          continue
        }
        case 277: {
          X.compareExchange(op)
          if (load<u32>(c, S_FAULT)) break
          op += OP_RECORD_SIZE
          continue
        }
        case 278: {
          X.compareExchangeWide(op)
          if (load<u32>(c, S_FAULT)) break
          op += OP_RECORD_SIZE
          continue
        }
        case 279: {
          X.exchangeAdd(op)
          if (load<u32>(c, S_FAULT)) break
          op += OP_RECORD_SIZE
          continue
        }
        case 280: {
          X.stackOperation(op)
          if (load<u32>(c, S_FAULT)) break
          op += OP_RECORD_SIZE
          continue
        }
        case 281: { // leave
          const frame = load<u64>(c, S_RBP)
          const e = tlbSlotIn(c, frame)
          let v: u64
          if (load<u64>(e, TLB_READ) == ((frame + 7) & PAGE_MASK)) v = load<u64>(load<u32>(e, TLB_ADDEND) + <u32>frame)
          else {
            v = <u64>readSlow(frame, 3)
            if (load<u32>(c, S_FAULT)) break
          }
          store<u64>(c, frame + 8, S_RSP)
          store<u64>(c, v, S_RBP)
          op += OP_RECORD_SIZE
          continue
        }
        case 282: { // string
          const again = X.stringOperation(op)
          if (load<u32>(c, S_FAULT)) break
          if (again) {
            // A long REP lets interrupts in between its pieces: come back to the same instruction.
            rip = blockRip + <u64>load<u16>(op, OP_OFFSET)
            left += <i32>load<u16>(block, BLK_COUNT) - <i32>((op - block - BLK_HEADER_SIZE) / OP_RECORD_SIZE) - again
            break
          }
          op += OP_RECORD_SIZE
          continue
        }
        case 283: {
          store<u64>(c, rip, S_RIP)
          X.nearBranch(op)
          if (load<u32>(c, S_FAULT)) break
          rip = load<u64>(c, S_RIP)
          break
        }
        case 284: {
          X.flagOperation(op)
          op += OP_RECORD_SIZE
          continue
        }
        case 285: {
          store<i32>(c, left, S_BUDGET)
          X.miscellaneous(op)
          if (load<u32>(c, S_FAULT)) break
          op += OP_RECORD_SIZE
          continue
        }
        case 286: { // system
          store<i32>(c, left, S_BUDGET)
          store<u64>(c, blockRip + <u64>load<u16>(op, OP_OFFSET) + <u64>load<u8>(op, OP_LENGTH), S_RIP)
          X.systemOperation(op)
          if (load<u32>(c, S_FAULT)) break
          left = load<i32>(c, S_BUDGET)
          rip = load<u64>(c, S_RIP)
          break
        }
        case 287: {
          execX87(op, load<u8>(op, OP_EA) == EA_REGISTER ? 0 : X.effectiveSized(c, op, 1))
          if (load<u32>(c, S_FAULT)) break
          op += OP_RECORD_SIZE
          continue
        }
        case 288: {
          execVector(op, load<u8>(op, OP_EA) == EA_REGISTER ? 0 : X.effectiveSized(c, op, 1))
          if (load<u32>(c, S_FAULT)) break
          op += OP_RECORD_SIZE
          continue
        }
        case 289: {
          X.undefinedOperation(op)
          break
        }
        case 290: {
          X.lockedAlu(op)
          if (load<u32>(c, S_FAULT)) break
          op += OP_RECORD_SIZE
          continue
        }
        case 291: { // stale: the block was overwritten
          rip = blockRip + <u64>load<u16>(op, OP_OFFSET)
          left += <i32>load<u16>(block, BLK_COUNT) - <i32>((op - block - BLK_HEADER_SIZE) / OP_RECORD_SIZE)
          break
        }
        default:
          X.undefinedOperation(op)
          break
        }
        break
      }
      if (slot) {
        const next: usize = load<u32>(slot)
        if (next) {
          if (load<u32>(next, BLK_VALID) && left > 0 && !load<u32>(c, S_ATTENTION) && !load<u32>(next, BLK_JIT)) {
            block = next
            continue
          }
        } else if (X.samePage(blockRip, rip)) link = slot
      }
      break
    }
    if (load<u32>(c, S_FAULT)) {
      // The instruction at `op` did not complete: nothing from it on counts.
      X.blameStack(op)
      rip = blockRip + <u64>load<u16>(op, OP_OFFSET)
      left += <i32>load<u16>(block, BLK_COUNT) - <i32>((op - block - BLK_HEADER_SIZE) / OP_RECORD_SIZE)
    } else if (load<u32>(c, S_STOP)) {
      store<u32>(c, 0, S_STOP)
      store<u32>(c, EXIT_STOPPED, S_EXIT)
      store<u64>(c, rip, S_RIP)
      break
    }
  }
  store<u64>(c, load<u64>(c, S_RETIRED) - <u64>(<i64>left), S_RETIRED)
  store<i32>(c, 0, S_BUDGET)
}
