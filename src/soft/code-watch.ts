/**
 * Devices write guest RAM from their own threads, where no vCPU sees it. When one of them has decoded code in a page that was written, it is
 * told through its mailbox (wasm/cpu/code-pages.ts) to drop that code, before the guest learns that the write is done. On a machine
 * of another accelerator this part of the shared memory is zero: no vCPUs, nothing to tell.
 *
 * A vCPU marks a page before it decodes; a device writes before it looks at the marks: whichever comes first, the other sees it.
 */
import {
  ATTN_MAILBOX,
  MAILBOX_LENGTH,
  MESSAGE_WRITTEN,
  S_CODE_PAGES,
  S_CPUS,
  S_MAILBOX,
  S_MAILBOX_HEAD,
  S_RAM_PAGES,
} from '../../wasm/cpu/state.ts'
import type { IoVector } from '../host/io-vector.ts'
import type { GuestMemory } from '../memory/guest-memory.ts'
import { RAM_OFFSET } from '../memory/layout.ts'
import { attentionIndex, vcpuStateBase } from './layout.ts'

const PAGE_SHIFT = 12
const FIRST = vcpuStateBase(0) >> 2

export class CodeWatch {
  readonly #words: Int32Array

  constructor(memory: GuestMemory) {
    this.#words = new Int32Array(memory.wasm.buffer)
  }

  /** The first `length` bytes of a scatter-gather list were written. */
  noteVector(vector: IoVector, length: number): void {
    if (this.#words[FIRST + (S_CPUS >> 2)] === 0) return
    let left = length
    for (let i = 0; i < vector.count && left > 0; i++) {
      const size = Math.min(vector.lengths[i]!, left)
      this.note(vector.offsets[i]!, size)
      left -= size
    }
  }

  /** `length` bytes at `offset` of the shared memory, within RAM, were written. */
  note(offset: number, length: number): void {
    const words = this.#words
    const cpus = words[FIRST + (S_CPUS >> 2)]!
    if (cpus === 0 || length <= 0) return
    const maps = words[FIRST + (S_CODE_PAGES >> 2)]! >>> 2
    const pages = words[FIRST + (S_RAM_PAGES >> 2)]!
    const first = (offset - RAM_OFFSET) >>> PAGE_SHIFT
    const last = (offset - RAM_OFFSET + length - 1) >>> PAGE_SHIFT
    for (let cpu = 0; cpu < cpus; cpu++) {
      const map = maps + cpu * pages
      for (let page = first; page <= last; page++) if (Atomics.load(words, map + page) !== 0) this.#post(cpu, page)
    }
  }

  /** As post() of wasm/cpu/code-pages.ts: rare, so it may make a BigInt. */
  #post(cpu: number, page: number): void {
    const base = vcpuStateBase(cpu)
    const number = Atomics.add(this.#words, (base + S_MAILBOX_HEAD) >> 2, 1) >>> 0
    const slots = new BigInt64Array(this.#words.buffer, base + S_MAILBOX, MAILBOX_LENGTH)
    const message = (BigInt((number + 1) >>> 0) << 32n) | BigInt((page | MESSAGE_WRITTEN) >>> 0)
    Atomics.store(slots, number % MAILBOX_LENGTH, BigInt.asIntN(64, message))
    Atomics.or(this.#words, attentionIndex(cpu), ATTN_MAILBOX)
  }
}
