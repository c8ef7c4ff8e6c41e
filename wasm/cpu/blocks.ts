/** The cache of decoded blocks: lookup by linear RIP (jump cache), by code address (hash), and decoding. */
import { markCode } from './code-pages'
import { cpu } from './cpu'
import { decodeEnds, decodeOne } from './decode'
import { raiseUd } from './fault'
import { TLB_ADDEND, TLB_EXEC, TLB_META, PAGE_MASK, tlbSlot } from './memory'
import { translate } from './memory-slow'
import {
  BLK_COUNT,
  BLK_HASH_NEXT,
  BLK_HEADER_SIZE,
  BLK_HOST,
  BLK_LENGTH,
  BLK_MAX_OPS,
  BLK_MODE,
  BLK_PAGE,
  BLK_PAGE_NEXT,
  BLK_SECOND,
  BLK_TWIN,
  BLK_VALID,
  H_FALL,
  OP_HANDLER,
  OP_IMM,
  OP_OFFSET,
  OP_RECORD_SIZE,
  OP_SIZE,
} from './ops'
import { ACCESS_EXEC } from './paging'
import { ramPage } from './ram'
import {
  CS,
  MODE_64,
  MODE_SINGLE,
  MODE_SIZE_MASK,
  PROOFS,
  REGION_CACHE_ENTRIES,
  S_ARENA,
  S_ARENA_END,
  S_ARENA_NEXT,
  S_BLOCK_HASH,
  S_CODE_PAGES,
  S_COUNT_BLOCKS_DECODED,
  S_COUNT_CACHE_RESETS,
  S_FAULT,
  S_INDEX,
  S_JIT_QUEUED,
  S_JUMP_CACHE,
  S_JUMP_KEY,
  S_MODE,
  S_PAGE_BLOCKS,
  S_PROOFS,
  S_RAM_PAGES,
  S_REGION_CACHE,
  S_SEG,
  S_TEMP2,
  SEG_BASE,
  SEG_LIMIT,
  SEG_STRIDE,
} from './state'
import { raiseGp } from './fault'
import { noteCode, TLBM_GLOBAL } from './tlb'

/** Where run() may link the block it asks for next: 0 once the arena was emptied under it. */
export let linkAllowed: usize = 0
@inline
export function setLinkAllowed(slot: usize): void {
  linkAllowed = slot
}

export const JUMP_CACHE_ENTRIES: u32 = 4096
export const BLOCK_HASH_BUCKETS: u32 = 65536

@inline
export function jumpSlot(rip: u64): usize {
  return <usize>load<u32>(cpu, S_JUMP_CACHE) + (((<u32>rip ^ (<u32>(rip >> 12) << 2)) & (JUMP_CACHE_ENTRIES - 1)) << 4)
}

/** What the key of a jump-cache entry for `rip` must be to be valid now. */
@inline
export function jumpKey(c: usize, rip: u64): u32 {
  return load<u32>(c + (<usize>(rip >> 63) << 2), S_JUMP_KEY)
}

/** The block at CS-relative `rip`, decoded if need be; 0 when fetching faulted (S_FAULT is set). */
@inline
export function findBlock(rip: u64): usize {
  const slot = jumpSlot(rip)
  if (load<u64>(slot) == rip && load<u32>(slot, 12) == jumpKey(cpu, rip)) {
    const block: usize = load<u32>(slot, 8)
    if (load<u32>(block, BLK_VALID)) return block
  }
  return findBlockSlow(rip)
}

/** Shared-memory address of the code byte at linear `address`, or 0 with the fault raised. */
function codeAddress(address: u64): usize {
  const entry = tlbSlot(address)
  if (load<u64>(entry, TLB_EXEC) == (address & PAGE_MASK)) return load<u32>(entry, TLB_ADDEND) + <u32>address
  const host = translate(address, ACCESS_EXEC)
  // Code outside RAM would read all ones, which is undefined.
  if (!host && !load<u32>(cpu, S_FAULT)) raiseUd()
  return host
}

function findBlockSlow(rip: u64): usize {
  const c = cpu
  const mode = load<u32>(c, S_MODE)
  let linear = rip
  if ((mode & MODE_SIZE_MASK) != MODE_64) {
    const segment = c + CS * SEG_STRIDE
    if (<u32>rip > load<u32>(segment, S_SEG + SEG_LIMIT)) {
      raiseGp()
      return 0
    }
    linear = (load<u64>(segment, S_SEG + SEG_BASE) + rip) & 0xffff_ffff
  }
  const host = codeAddress(linear)
  if (!host) return 0
  const bucket = bucketOf(host)
  let block: usize = load<u32>(bucket)
  while (block) {
    if (load<u32>(block, BLK_HOST) == <u32>host && load<u32>(block, BLK_MODE) == mode && load<u32>(block, BLK_VALID)) {
      const second = load<u32>(block, BLK_SECOND)
      if (!second) break
      // It counts only where the page that follows is the one it was decoded from.
      const follows = codeAddress((linear & PAGE_MASK) + 4096)
      if (!follows) return 0
      if (second == <u32>follows) {
        noteCode(linear + 4096, (load<u32>(tlbSlot(linear + 4096), TLB_META) & TLBM_GLOBAL) != 0)
        break
      }
    }
    block = load<u32>(block, BLK_HASH_NEXT)
  }
  if (!block) {
    block = decodeBlock(host, linear, mode)
    if (!block) return 0
  }
  const slot = jumpSlot(rip)
  store<u64>(slot, rip)
  store<u32>(slot, <u32>block, 8)
  store<u32>(slot, jumpKey(c, rip), 12)
  noteCode(linear, (load<u32>(tlbSlot(linear), TLB_META) & TLBM_GLOBAL) != 0)
  return block
}

@inline
function bucketOf(host: usize): usize {
  const hash = (<u32>host ^ (<u32>host >> 14)) & (BLOCK_HASH_BUCKETS - 1)
  return <usize>load<u32>(cpu, S_BLOCK_HASH) + (hash << 2)
}

/** Forgets every block. */
export function resetBlocks(): void {
  const c = cpu
  // Where nothing was decoded these are empty, and in a new machine no memory at all so far.
  const hasBlocks = load<u32>(c, S_ARENA_NEXT) != load<u32>(c, S_ARENA)
  if (hasBlocks) memory.fill(load<u32>(c, S_BLOCK_HASH), 0, BLOCK_HASH_BUCKETS * 4)
  memory.fill(load<u32>(c, S_JUMP_CACHE), 0xff, JUMP_CACHE_ENTRIES * 16)
  if (hasBlocks) memory.fill(load<u32>(c, S_REGION_CACHE), 0, REGION_CACHE_ENTRIES * 16)
  if (hasBlocks) memory.fill(load<u32>(c, S_PROOFS), 0, PROOFS * 16)
  const pages = load<u32>(c, S_RAM_PAGES)
  if (hasBlocks) memory.fill(load<u32>(c, S_PAGE_BLOCKS), 0, pages << 2)
  if (hasBlocks) memory.fill(<usize>load<u32>(c, S_CODE_PAGES) + ((load<u32>(c, S_INDEX) * pages) << 2), 0, pages << 2)
  linkAllowed = 0
  store<u32>(c, 0, S_JIT_QUEUED)
  store<u32>(c, load<u32>(c, S_ARENA), S_ARENA_NEXT)
  store<u64>(c, load<u64>(c, S_COUNT_CACHE_RESETS) + 1, S_COUNT_CACHE_RESETS)
}

/** No instruction, however many prefixes it has, makes the decoder look at more bytes before it is refused for its length. */
const LOOKAHEAD: u32 = 32

function decodeBlock(host: usize, linear: u64, mode: u32): usize {
  const c = cpu
  let block: usize = load<u32>(c, S_ARENA_NEXT)
  if (block + BLK_HEADER_SIZE + (BLK_MAX_OPS + 1) * OP_RECORD_SIZE > <usize>load<u32>(c, S_ARENA_END)) {
    resetBlocks()
    block = load<u32>(c, S_ARENA_NEXT)
  }
  const available: u32 = 4096 - (<u32>host & 0xfff)
  // From here on stores to these bytes are noticed: mark first, read after.
  markCode(host, min<u32>(available, 256))
  let offset: u32 = 0
  let count: u32 = 0
  let op = block + BLK_HEADER_SIZE
  const most: u32 = mode & MODE_SINGLE ? 1 : BLK_MAX_OPS
  let fall = true
  while (count < most && offset < 240) {
    const left = available - offset
    if (left == 0) break
    let length: u32
    if (left >= LOOKAHEAD) length = decodeOne(op, host + offset, mode, offset)
    else {
      // Near the page's end: decode a copy, so that nothing beyond the page is looked at before it is needed.
      const copy = c + S_TEMP2
      memory.fill(copy, 0, 48)
      memory.copy(copy, host + offset, left)
      length = decodeOne(op, copy, mode, offset)
      if (length > left) {
        if (count) break
        return decodeCrossing(block, host, left, linear, mode)
      }
    }
    op += OP_RECORD_SIZE
    count++
    offset += length
    if (decodeEnds()) {
      fall = false
      break
    }
  }
  if (fall) {
    endWithFall(op, offset)
    op += OP_RECORD_SIZE
  }
  finish(block, host, mode, count, offset)
  store<u32>(c, <u32>op, S_ARENA_NEXT)
  enterHash(block, host)
  enterPage(block, host)
  return block
}

function enterHash(block: usize, host: usize): void {
  const bucket = bucketOf(host)
  store<u32>(block, load<u32>(bucket), BLK_HASH_NEXT)
  store<u32>(bucket, <u32>block)
}

function enterPage(block: usize, host: usize): void {
  const page = ramPage(host)
  const head: usize = <usize>load<u32>(cpu, S_PAGE_BLOCKS) + (page << 2)
  store<u32>(block, page, BLK_PAGE)
  store<u32>(block, load<u32>(head), BLK_PAGE_NEXT)
  store<u32>(head, <u32>block)
}

function endWithFall(op: usize, offset: u32): void {
  memory.fill(op, 0, OP_RECORD_SIZE)
  store<u16>(op, H_FALL, OP_HANDLER)
  store<u16>(op, <u16>offset, OP_OFFSET)
  store<u8>(op, 3, OP_SIZE)
  store<i64>(op, offset, OP_IMM)
}

function finish(block: usize, host: usize, mode: u32, count: u32, length: u32): void {
  memory.fill(block, 0, BLK_HEADER_SIZE)
  store<u32>(block, <u32>host, BLK_HOST)
  store<u32>(block, mode, BLK_MODE)
  store<u16>(block, <u16>count, BLK_COUNT)
  store<u16>(block, <u16>length, BLK_LENGTH)
  store<u32>(block, 1, BLK_VALID)
  store<u64>(cpu, load<u64>(cpu, S_COUNT_BLOCKS_DECODED) + 1, S_COUNT_BLOCKS_DECODED)
}

/**
 * A block of the one instruction at `host` that runs into the next linear page. A header in that page's list stands for its second part, so
 * that stores there drop it.
 */
function decodeCrossing(block: usize, host: usize, left: u32, linear: u64, mode: u32): usize {
  const c = cpu
  const second = codeAddress(linear + left)
  if (!second) return 0
  markCode(second, 16)
  const copy = c + S_TEMP2
  memory.copy(copy, host, left)
  memory.copy(copy + left, second, 16)
  let op = block + BLK_HEADER_SIZE
  const length = decodeOne(op, copy, mode, 0)
  op += OP_RECORD_SIZE
  if (!decodeEnds()) {
    endWithFall(op, length)
    op += OP_RECORD_SIZE
  }
  finish(block, host, mode, 1, length)
  store<u32>(block, <u32>second, BLK_SECOND)
  finish(op, second, mode, 0, max<i32>(<i32>length - <i32>left, 1))
  store<u32>(op, <u32>block, BLK_TWIN)
  store<u32>(c, <u32>op + BLK_HEADER_SIZE, S_ARENA_NEXT)
  enterHash(block, host)
  enterPage(block, host)
  enterPage(op, second)
  noteCode(linear + left, (load<u32>(tlbSlot(linear + left), TLB_META) & TLBM_GLOBAL) != 0)
  return block
}
