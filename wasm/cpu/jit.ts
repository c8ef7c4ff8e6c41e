/**
 * The interpreter's side of tier 1 (src/soft/jit): counting what is hot, entering compiled regions, and what compiled code calls
 * when it leaves its fast paths.
 *
 * A compiled region is a function (blockRip, left, entry) -> left in this module's table; BLK_JIT of a block is its index + 1 and
 * BLK_JIT_STAMP the entry in it. It returns between blocks with S_RIP exact, or with S_FAULT set and S_RIP at the instruction that did not
 * complete, just as the interpreter leaves a block. Or, when the TLB did not serve an access, with S_RESUME set to the record to go on at, S_BLOCK to
 * its block, and S_RIP to the page.
 */
import { jumpKey, jumpSlot } from './blocks'
import { cpu } from './cpu'
import * as X from './exec'
import { raiseGp } from './fault'
import { PAGE_MASK, TLB_ADDEND, TLB_EXEC, TLB_META, tlbSlot } from './memory'
import { ramPage } from './ram'
import { conditionAny, carry, setCarryOverflow } from './flags'
import {
  BLK_APART,
  BLK_HOST,
  BLK_JIT,
  BLK_JIT_STAMP,
  BLK_MISSES,
  BLK_PAGE,
  BLK_PAGE_NEXT,
  BLK_RUNS,
  EA_REGISTER,
  OP_EA,
  OP_HANDLER,
  OP_IMM,
  OP_LENGTH,
  OP_OFFSET,
} from './ops'
import { execVector } from './sse'
import { bumpEpoch, noteCode, TLBM_GLOBAL } from './tlb'
import {
  JIT_QUEUE_LENGTH,
  PROOF_AT,
  PROOF_KEY,
  PROOF_WRITES,
  PROOFS,
  REGION_CACHE_ENTRIES,
  S_ATTENTION,
  S_BLOCK_RIP,
  S_BUDGET,
  S_COUNT_RESUMES,
  S_FAULT,
  S_FAULT_OP,
  S_JIT_ENTRIES,
  S_JIT_QUEUE,
  S_JIT_QUEUE_RIPS,
  S_JIT_QUEUED,
  S_JIT_RETIRED,
  S_PAGE_BLOCKS,
  S_PROOFS,
  S_REGION_CACHE,
  S_RESUME,
  S_RIP,
  S_SMC_STAMP,
  S_STOP,
} from './state'
import { execX87 } from './x87'

/** What jitOp answers. */
const GO_ON: i32 = 0
const FAULTED: i32 = 1
/** The instruction is complete, but code was overwritten or the host wants to stop: leave the region after it. */
const LEAVE: i32 = 2
/** A string instruction paused after (answer - PAUSED) instructions' worth of elements. */
const PAUSED: i32 = 16

/** A block has run often enough to be compiled: tell the host. When the queue is full the block is counted on and asks again. */
export function noteHot(block: usize): void {
  const c = cpu
  const queued = load<u32>(c, S_JIT_QUEUED)
  if (queued >= <u32>JIT_QUEUE_LENGTH) {
    store<u32>(block, load<u32>(block, BLK_RUNS) - 1, BLK_RUNS)
    return
  }
  store<u32>(c + (queued << 2), <u32>block, S_JIT_QUEUE)
  store<u64>(c + (queued << 3), load<u64>(c, S_BLOCK_RIP), S_JIT_QUEUE_RIPS)
  store<u32>(c, queued + 1, S_JIT_QUEUED)
}

/** Misses after which the accesses of a block are looked up one by one. */
const MOST_MISSES: u32 = 2000

/** The interpreter goes on in the middle of `block`, because the TLB did not serve compiled code. */
export function noteMiss(block: usize): void {
  const c = cpu
  store<u64>(c, load<u64>(c, S_COUNT_RESUMES) + 1, S_COUNT_RESUMES)
  const misses = load<u32>(block, BLK_MISSES) + 1
  store<u32>(block, misses, BLK_MISSES)
  if (misses != MOST_MISSES) return
  store<u32>(block, 1, BLK_APART)
  dropRegions(load<u32>(block, BLK_PAGE))
}

@inline
function proofOf(page: u32): usize {
  return <usize>load<u32>(cpu, S_PROOFS) + ((page & (PROOFS - 1)) << 4)
}

/**
 * Compiled code leaves its region to go on at `rip`, in another page, because there is no proof that this is RAM page `page` and its code what it was when
 * `writes` was read. Gives the proof for the next time, if it is to be had where findBlock looks first. What follows from the TLB goes into the filter of
 * code as what is in the jump cache does, so that the key changes when the page is mapped anew.
 */
export function jitCross(rip: u64, page: u32, writes: u32, head: u32): void {
  const c = cpu
  const proof = proofOf(page)
  if (load<u32>(proof, PROOF_WRITES) != writes) {
    // There is a branch in it that cannot be taken any more: what is still hot is compiled again.
    voidRegions(load<u32>(<usize>head, BLK_PAGE))
    return
  }
  const key = jumpKey(c, rip)
  const slot = jumpSlot(rip)
  let host: usize = 0
  if (load<u64>(slot) == rip && load<u32>(slot, 12) == key) host = load<u32>(<usize>load<u32>(slot, 8), BLK_HOST)
  else {
    const entry = tlbSlot(rip)
    if (load<u64>(entry, TLB_EXEC) != (rip & PAGE_MASK)) return
    host = load<u32>(entry, TLB_ADDEND) + <u32>rip
    noteCode(rip, (load<u32>(entry, TLB_META) & TLBM_GLOBAL) != 0)
  }
  if (ramPage(host) != page) return
  store<u64>(proof, (rip & PAGE_MASK) | <u64>(page / <u32>PROOFS), PROOF_AT)
  store<u32>(proof, key, PROOF_KEY)
}

/** Where `block` is in compiled code: slot in the table << 8, number of the entry. */
@inline
function codeOf(block: usize): u32 {
  return ((load<u32>(block, BLK_JIT) - 1) << 8) | load<u32>(block, BLK_JIT_STAMP)
}

@inline
function regionEntry(cache: usize, rip: u64): usize {
  return cache + (((<u32>rip ^ (<u32>(rip >> 12) << 2)) & (REGION_CACHE_ENTRIES - 1)) << 4)
}

@inline
function remember(cache: usize, rip: u64, code: u32, key: u32): void {
  const entry = regionEntry(cache, rip)
  store<u64>(entry, rip)
  store<u32>(entry, code, 8)
  store<u32>(entry, key, 12)
}

/**
 * Runs the region that `block` is an entry of, and those that follow as long as they are found at once and nothing else is to be done.
 * S_RIP is where to go on.
 */
export function runRegions(first: usize, from: u64, budget: i32): i32 {
  const c = cpu
  const cache: usize = load<u32>(c, S_REGION_CACHE)
  let rip = from
  let left = budget
  let entries: u32 = 0
  let code = codeOf(first)
  remember(cache, rip, code, jumpKey(c, rip))
  for (;;) {
    left = call_indirect<i32>(code >> 8, rip, left, code & 255)
    entries++
    if (left <= 0 || load<u32>(c, S_ATTENTION) | load<u32>(c, S_FAULT) | load<u32>(c, S_STOP) | load<u32>(c, S_RESUME)) break
    rip = load<u64>(c, S_RIP)
    const key = jumpKey(c, rip)
    const entry = regionEntry(cache, rip)
    if (load<u64>(entry) == rip && load<u32>(entry, 12) == key) {
      code = load<u32>(entry, 8)
      continue
    }
    const slot = jumpSlot(rip)
    if (load<u64>(slot) != rip || load<u32>(slot, 12) != key) break
    const block: usize = load<u32>(slot, 8)
    // An overwritten block lost BLK_JIT as well.
    if (!load<u32>(block, BLK_JIT)) break
    code = codeOf(block)
    remember(cache, rip, code, key)
  }
  store<u64>(c, load<u64>(c, S_JIT_ENTRIES) + <u64>entries, S_JIT_ENTRIES)
  store<u64>(c, load<u64>(c, S_JIT_RETIRED) + <u64>(budget - left), S_JIT_RETIRED)
  return left
}

/** Code in RAM page `page` was overwritten: regions that begin there are void, and those that reach into it do so no more. */
export function dropRegions(page: u32): void {
  const proof = proofOf(page)
  store<u32>(proof, load<u32>(proof, PROOF_WRITES) + 1, PROOF_WRITES)
  voidRegions(page)
}

/** No region is entered in RAM page `page` any more. */
function voidRegions(page: u32): void {
  let block: usize = load<u32>(<usize>load<u32>(cpu, S_PAGE_BLOCKS) + (page << 2))
  // The region cache may have entries of them.
  bumpEpoch()
  while (block) {
    store<u32>(block, 0, BLK_JIT)
    store<u32>(block, 0, BLK_RUNS)
    block = load<u32>(block, BLK_PAGE_NEXT)
  }
}

@inline
function after(c: usize, stamp: u32): i32 {
  if (load<u32>(c, S_FAULT)) return FAULTED
  return load<u32>(c, S_SMC_STAMP) != stamp || load<u32>(c, S_STOP) ? LEAVE : GO_ON
}

export function jitCarry(): i32 {
  return carry() ? 1 : 0
}

export function jitCondition(code: u32): i32 {
  return conditionAny(code) ? 1 : 0
}

/** CF and OF of a rotate: bits 0 and 11 of `bits`. */
export function jitRotateFlags(bits: u32): void {
  setCarryOverflow(cpu, (bits & 1) != 0, (bits & 0x800) != 0)
}

/** Executes one record that ends no block. Registers and flags are in the state, S_BLOCK_RIP too. */
export function jitOp(op: usize, left: i32): i32 {
  const c = cpu
  const stamp = load<u32>(c, S_SMC_STAMP)
  store<u32>(c, <u32>op, S_FAULT_OP)
  switch (<i32>load<u16>(op, OP_HANDLER) - 250) {
    case 0:
      X.unaryMemory(op)
      break
    case 1:
      X.shiftRegister(op, load<u32>(op, OP_IMM))
      break
    case 2:
      X.shiftRegister(op, X.countInCl(op))
      break
    case 3:
      X.shiftMemory(op, load<u32>(op, OP_IMM))
      break
    case 4:
      X.shiftMemory(op, X.countInCl(op))
      break
    case 15: // imul
      X.imul(op, X.loadRegister(c, op))
      break
    case 16: {
      const v = X.readOperand(op)
      if (!load<u32>(c, S_FAULT)) X.imul(op, v)
      break
    }
    case 18:
      X.exchangeRegisters(op)
      break
    case 19:
      X.exchangeMemory(op)
      break
    case 23:
      X.mulDiv(op)
      break
    case 24:
      X.doubleShift(op)
      break
    case 25:
      X.bitOperation(op)
      break
    case 26:
      X.bitScan(op)
      break
    case 27:
      X.compareExchange(op)
      break
    case 28:
      X.compareExchangeWide(op)
      break
    case 29:
      X.exchangeAdd(op)
      break
    case 30:
      X.stackOperation(op)
      break
    case 32: {
      const again = X.stringOperation(op)
      if (again && !load<u32>(c, S_FAULT)) return again + PAUSED
      break
    }
    case 34:
      X.flagOperation(op)
      break
    case 35:
      store<i32>(c, left, S_BUDGET)
      X.miscellaneous(op)
      break
    case 37:
      execX87(op, load<u8>(op, OP_EA) == EA_REGISTER ? 0 : X.effectiveSized(c, op, 1))
      break
    case 38:
      execVector(op, load<u8>(op, OP_EA) == EA_REGISTER ? 0 : X.effectiveSized(c, op, 1))
      break
    case 40:
      X.lockedAlu(op)
      break
    case -17: // cmov from memory
      X.cmovMemory(op)
      break
    default:
      X.undefinedOperation(op)
      break
  }
  return after(c, stamp)
}

/** Executes a record that ends its block (system instructions, rare branches, undefined ones). Returns what is left of the budget. */
export function jitEnd(op: usize, left: i32): i32 {
  const c = cpu
  const rip = load<u64>(c, S_BLOCK_RIP) + <u64>load<u16>(op, OP_OFFSET)
  store<u32>(c, <u32>op, S_FAULT_OP)
  switch (<u32>load<u16>(op, OP_HANDLER)) {
    case 283:
      X.nearBranch(op)
      break
    case 286:
      store<i32>(c, left, S_BUDGET)
      store<u64>(c, rip + <u64>load<u8>(op, OP_LENGTH), S_RIP)
      X.systemOperation(op)
      if (!load<u32>(c, S_FAULT)) left = load<i32>(c, S_BUDGET)
      break
    case 224:
    case 225:
    case 226:
    case 227:
    case 228:
    case 229: // near transfers come here only when their target is not canonical
      raiseGp()
      break
    default:
      X.undefinedOperation(op)
      break
  }
  if (load<u32>(c, S_FAULT)) {
    store<u64>(c, rip, S_RIP)
    return left + 1
  }
  return left
}

