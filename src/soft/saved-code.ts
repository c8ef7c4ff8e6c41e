/**
 * What the vCPU has decoded of the guest's code, kept with a snapshot: a machine that goes on from there maps it copy-on-write, and need not decode
 * again what it ran before; clones share it. It is a cache of the guest's memory at that very moment: taken while the machine stands still, and of use only
 * with that memory, on the build that made it.
 *
 *   u32 magic, u32 pages of RAM, u32 where the arena began, u32 where it ended | code-page map | block hash | page lists | blocks
 *
 * Blocks name each other, and the bytes that they were decoded from, by their place in the shared memory, which is the same in every machine of that
 * much memory. What refers to compiled code goes: that is of a process.
 */
import * as O from '../../wasm/cpu/ops.ts'
import * as S from '../../wasm/cpu/state.ts'
import { readAt } from '../host/file.ts'
import { mapPrivateOver } from '../host/mapping.ts'
import type { GuestMemory } from '../memory/guest-memory.ts'
import { CODE_HEAD_BYTES, vcpuStateBase } from './layout.ts'

const MAGIC = 0x56434f44 // "VCOD"
const PAGE = 4096
const BASE = vcpuStateBase(0)

const stateWord = (memory: GuestMemory, offset: number): number => memory.view.getUint32(BASE + offset, true)

/** A copy, whole pages; undefined when there is nothing that can be kept. Only while the vCPU and all devices stand still. */
export function saveCode(memory: GuestMemory): Uint8Array | undefined {
  // A device has written where there is code, and the vCPU has not dropped it yet.
  if (stateWord(memory, S.S_MAILBOX_HEAD) !== stateWord(memory, S.S_MAILBOX_TAIL)) return undefined
  const start = stateWord(memory, S.S_CODE_PAGES) - CODE_HEAD_BYTES
  const [arena, next] = [stateWord(memory, S.S_ARENA), stateWord(memory, S.S_ARENA_NEXT)]
  if (next === arena) return undefined
  const length = Math.ceil((next - start) / PAGE) * PAGE
  const saved = new Uint8Array(length)
  saved.set(memory.bytes.subarray(start, next))
  const view = new DataView(saved.buffer)
  const pages = stateWord(memory, S.S_RAM_PAGES)
  ;[MAGIC, pages, arena, next].forEach((word, index) => {
    view.setUint32(index * 4, word, true)
  })
  const lists = stateWord(memory, S.S_PAGE_BLOCKS) - start
  for (let page = 0; page < pages; page++) {
    let block = view.getUint32(lists + page * 4, true)
    for (; block !== 0; block = view.getUint32(block - start + O.BLK_PAGE_NEXT, true))
      forgetCompiled(view, block - start)
  }
  return saved
}

function forgetCompiled(view: DataView, block: number): void {
  for (const field of [O.BLK_RUNS, O.BLK_JIT, O.BLK_JIT_STAMP, O.BLK_MISSES]) view.setUint32(block + field, 0, true)
}

/** Maps what `saveCode` gave, `length` bytes of a file, into a machine that was just restored. False: it does not fit this one. */
export function adoptCode(memory: GuestMemory, fd: number, length: number): boolean {
  const start = stateWord(memory, S.S_CODE_PAGES) - CODE_HEAD_BYTES
  const [arena, end] = [stateWord(memory, S.S_ARENA), stateWord(memory, S.S_ARENA_END)]
  if (length % PAGE !== 0 || length < arena - start || start + length > end) return false
  const head = new Uint32Array(4)
  const got = readAt(fd, new Uint8Array(head.buffer), 0)
  const [magic, pages, began, next] = head as unknown as [number, number, number, number]
  const fits = magic === MAGIC && pages === stateWord(memory, S.S_RAM_PAGES) && began === arena
  if (got !== head.byteLength || !fits || next <= arena || next > start + length) return false
  mapPrivateOver(memory.bytes, start, length, fd)
  memory.view.setUint32(BASE + S.S_ARENA_NEXT, next, true)
  return true
}
