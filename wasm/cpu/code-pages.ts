/**
 * Self-modifying code. For every RAM page and vCPU a word says which 128-byte pieces of the page have decoded code in them.
 * A page with any bit set is in no write TLB, so every store to it comes through the slow path, which drops the
 * blocks that overlap the bytes written. Maps lie one after the other, a vCPU each; lists of blocks are private.
 */
import { cpu } from './cpu'
import { BLK_COUNT, BLK_HEADER_SIZE, BLK_HOST, BLK_JIT, BLK_LENGTH, BLK_PAGE_NEXT, BLK_TWIN, BLK_VALID, H_STALE, OP_HANDLER, OP_RECORD_SIZE } from './ops'
import { ramPage } from './ram'
import {
  ATTN_MAILBOX,
  MAILBOX_LENGTH,
  MESSAGE_WRITTEN,
  S_ATTENTION,
  S_CODE_PAGES,
  S_COUNT_SMC,
  S_CPUS,
  S_INDEX,
  S_MAILBOX,
  S_MAILBOX_HEAD,
  S_MAILBOX_TAIL,
  S_PAGE_BLOCKS,
  S_RAM_OFFSET,
  S_RAM_PAGES,
  S_SMC_STAMP,
  S_TLB_KERNEL,
  S_TLB_USER,
  VCPU_STATE_SIZE,
} from './state'
import { dropRegions } from './jit'
import { TLB_ADDEND, TLB_BYTES, TLB_WRITE } from './memory'
import { dropWriters, NO_PAGE } from './tlb'

@inline
function pieceMap(vcpu: u32): usize {
  return <usize>load<u32>(cpu, S_CODE_PAGES) + ((vcpu * load<u32>(cpu, S_RAM_PAGES)) << 2)
}

/** The pieces that `bytes` bytes at page offset `offset` touch. */
@inline
function pieces(offset: u32, bytes: u32): u32 {
  const first = offset >> 7
  const last = min<u32>((offset + bytes - 1) >> 7, 31)
  return (<u32>-1 >> (31 - (last - first))) << first
}

/** True when no vCPU has decoded code in the RAM page at `host`: it may be written without looking. */
export function pageIsPlain(host: usize): bool {
  const page = ramPage(host)
  const cpus = load<u32>(cpu, S_CPUS)
  for (let i: u32 = 0; i < cpus; i++) if (atomic.load<u32>(pieceMap(i) + (page << 2))) return false
  return true
}

/** Called before code at `host` (a byte in RAM) is decoded: from now on stores to it are noticed. */
export function markCode(host: usize, bytes: u32): void {
  const page = ramPage(host)
  const own = load<u32>(cpu, S_INDEX)
  const at = pieceMap(own) + (page << 2)
  const before = atomic.load<u32>(at)
  const after = before | pieces(<u32>host & 0xfff, bytes)
  if (after == before) return
  atomic.store<u32>(at, after)
  if (before) return
  dropWriters(host & ~0xfff)
  postOthers(page)
}

/** Called after `bytes` bytes at shared-memory `host` were written, within one page: drops the code that was there. */
@inline
export function markCodeWritten(host: usize, bytes: u32): void {
  const page = ramPage(host)
  const cpus = load<u32>(cpu, S_CPUS)
  const own = load<u32>(cpu, S_INDEX)
  for (let i: u32 = 0; i < cpus; i++) {
    const touched = atomic.load<u32>(pieceMap(i) + (page << 2)) & pieces(<u32>host & 0xfff, bytes)
    if (!touched) continue
    if (i == own) dropBlocks(page, <u32>host & 0xfff, bytes)
    else post(i, page | <u32>MESSAGE_WRITTEN)
  }
}

/** Invalidates this vCPU's blocks that overlap `bytes` bytes at `offset` of RAM page `page`, and renews its pieces. */
export function dropBlocks(page: u32, offset: u32, bytes: u32): void {
  const head: usize = <usize>load<u32>(cpu, S_PAGE_BLOCKS) + (page << 2)
  let kept: u32 = 0
  let link = head
  let block: usize = load<u32>(head)
  let dropped: u32 = 0
  while (block) {
    const next = load<u32>(block, BLK_PAGE_NEXT)
    const start = load<u32>(block, BLK_HOST) & 0xfff
    const length = <u32>load<u16>(block, BLK_LENGTH)
    if (start < offset + bytes && offset < start + length) {
      killBlock(block)
      store<u32>(link, next)
      dropped++
    } else {
      kept |= pieces(start, length)
      link = block + BLK_PAGE_NEXT
    }
    block = next
  }
  atomic.store<u32>(pieceMap(load<u32>(cpu, S_INDEX)) + (page << 2), kept)
  if (dropped) {
    dropRegions(page)
    store<u64>(cpu, load<u64>(cpu, S_COUNT_SMC) + dropped, S_COUNT_SMC)
    store<u32>(cpu, load<u32>(cpu, S_SMC_STAMP) + 1, S_SMC_STAMP)
  }
}

/** Marks a block invalid; should it be running, its next record leaves it. */
export function killBlock(block: usize): void {
  store<u32>(block, 0, BLK_VALID)
  store<u32>(block, 0, BLK_JIT)
  let op = block + BLK_HEADER_SIZE
  const end = op + <u32>load<u16>(block, BLK_COUNT) * OP_RECORD_SIZE
  for (; op < end; op += OP_RECORD_SIZE) store<u16>(op, H_STALE, OP_HANDLER)
  const twin: usize = load<u32>(block, BLK_TWIN)
  if (twin) killBlock(twin)
}

const NO_MESSAGE: u32 = 0xffff_ffff

/** Looks at a slot that its sender has taken and not filled yet, before the message counts as lost. */
const MOST_LOOKS: u32 = 1000

@inline
function stateOf(vcpu: u32): usize {
  return cpu - <usize>load<u32>(cpu, S_INDEX) * VCPU_STATE_SIZE + <usize>vcpu * VCPU_STATE_SIZE
}

/**
 * Puts a message in another vCPU's mailbox, a ring: its number (+ 1) in the upper half says whether it is the one that is expected. A sender never waits; it
 * may overwrite what was not read yet.
 */
function post(vcpu: u32, message: u32): void {
  const other = stateOf(vcpu)
  const number = atomic.add<u32>(other + S_MAILBOX_HEAD, 1)
  atomic.store<u64>(other + S_MAILBOX + ((number % MAILBOX_LENGTH) << 3), (<u64>(number + 1) << 32) | <u64>message)
  atomic.or<u32>(other + S_ATTENTION, ATTN_MAILBOX)
}

/** Message `number` of this vCPU's mailbox, or NO_MESSAGE when it was overwritten or its sender does not get on with it. */
function messageOf(number: u32): u32 {
  const at = cpu + S_MAILBOX + ((number % MAILBOX_LENGTH) << 3)
  for (let looks: u32 = 0; looks < MOST_LOOKS; looks++) {
    const entry = atomic.load<u64>(at)
    if (<u32>(entry >> 32) == number + 1) return <u32>entry
  }
  return NO_MESSAGE
}

/** Serves this vCPU's mailbox. Returns true when the whole block cache must go. */
export function serveMailbox(): bool {
  const c = cpu
  const head = atomic.load<u32>(c + S_MAILBOX_HEAD)
  let tail = load<u32>(c, S_MAILBOX_TAIL)
  let lost = head - tail > <u32>MAILBOX_LENGTH
  for (; tail != head && !lost; tail++) {
    const message = messageOf(tail)
    if (message == NO_MESSAGE) {
      lost = true
      break
    }
    const page = message & 0x7fff_ffff
    const wrote = dropWriters(<usize>load<u32>(c, S_RAM_OFFSET) + (page << 12))
    if (message & <u32>MESSAGE_WRITTEN) dropBlocks(page, 0, 4096)
    // We could write there unseen until now, so what the others decoded may be old: once, since we no longer can.
    else if (wrote) postOthers(page | <u32>MESSAGE_WRITTEN)
  }
  store<u32>(c, head, S_MAILBOX_TAIL)
  if (lost) {
    // It may have been about any page: look at all that we could write to unseen.
    dropWritersOfCode(load<u32>(c, S_TLB_KERNEL))
    dropWritersOfCode(load<u32>(c, S_TLB_USER))
  }
  return lost
}

function dropWritersOfCode(tlb: usize): void {
  for (let entry = tlb; entry < tlb + TLB_BYTES; entry += 32) {
    const tag = load<u64>(entry, TLB_WRITE)
    if (tag == NO_PAGE) continue
    const host: usize = <u32>tag + load<u32>(entry, TLB_ADDEND)
    if (pageIsPlain(host)) continue
    store<u64>(entry, NO_PAGE, TLB_WRITE)
    postOthers(ramPage(host) | <u32>MESSAGE_WRITTEN)
  }
}

function postOthers(message: u32): void {
  const own = load<u32>(cpu, S_INDEX)
  const cpus = load<u32>(cpu, S_CPUS)
  for (let i: u32 = 0; i < cpus; i++) if (i != own) post(i, message)
}
