/**
 * Which pages of a machine's memory differ from its last snapshot.
 *
 * Memory that is mapped from a snapshot needs no log for that: a page that was written is a page of our own, and the
 * kernel knows those (src/host/page-map.ts). So nothing slows a restored guest down until it is saved. The first save
 * turns the logs on, the accelerator's for the guest's writes and ours for the devices', and leaves them on, since
 * memory stays as it is then.
 */
import { setImmediate as nextTurn } from 'node:timers/promises'
import type { VirtualMachine } from '../accel/contract.ts'
import { addressOf } from '../host/libc.ts'
import { ownPages } from '../host/page-map.ts'
import { DirtyLog } from '../memory/dirty-log.ts'
import { RAM_OFFSET } from '../memory/layout.ts'
import { addPages, addRange, emptyPages, type PageBits } from '../memory/page-set.ts'

const PAGE = 4096
/** A vCPU that does not look up for this long is stopped to make it: it is in a long host call. */
const SETTLE_LIMIT_MS = 50

export class ChangedPages {
  readonly pages: number
  readonly #vm: VirtualMachine
  readonly #devices: DirtyLog
  /** Taken from the logs, but not yet in a snapshot that is complete. */
  #owed: PageBits
  #logging = false
  /** What was written before the logs were on is still to be asked for. */
  #unread = false

  constructor(vm: VirtualMachine) {
    this.#vm = vm
    this.pages = vm.memory.size / PAGE
    this.#devices = new DirtyLog(vm.memory)
    this.#owed = emptyPages(this.pages)
  }

  /** From now on writes are logged; once `settled`, ask for `candidates`. */
  begin(): void {
    if (this.#logging) return
    this.#devices.setEnabled(true)
    this.#vm.setDirtyLog(true)
    this.#logging = true
    this.#unread = true
  }

  /** All pages that may differ from the last snapshot or, without one, from zeros. */
  candidates(): PageBits {
    this.take()
    if (this.#unread) {
      const own = ownPages(addressOf(this.#vm.memory.bytes) + RAM_OFFSET, this.pages)
      if (own) addPages(this.#owed, own)
      else this.#owed.fill(0xffff_ffff)
      // A kernel that was mapped from its file is no page of ours either, and in no snapshot yet.
      for (const { offset, length } of this.#vm.memory.loaded) {
        addRange(this.#owed, (offset - RAM_OFFSET) / PAGE, length / PAGE)
      }
      this.#unread = false
    }
    return this.#owed.slice()
  }

  /** Pages written since the last `take`. */
  take(): PageBits {
    const bits = joined(this.#vm.takeDirtyLog(), this.pages)
    addPages(bits, wordsOf(this.#devices.take()))
    addPages(this.#owed, bits)
    return bits
  }

  /**
   * Waits until running vCPUs have given up writing unseen to the pages that `take` gave: copies made from then
   * on are good, or those pages will be in the next `take`. False: one does not look up, and has to be stopped for that.
   */
  async settled(): Promise<boolean> {
    const giveUpAt = Date.now() + SETTLE_LIMIT_MS
    while (!this.#vm.dirtyLogSettled()) {
      if (Date.now() > giveUpAt) return false
      await nextTurn()
    }
    return true
  }

  /** The next snapshot is to stand on none: every page counts as changed. */
  everything(): void {
    this.#owed.fill(0xffff_ffff)
  }

  /** The logs are off, and the next snapshot is the first again. Not for memory that was mapped from one. */
  forget(): void {
    this.#vm.setDirtyLog(false)
    this.#devices.setEnabled(false)
    this.#logging = false
    this.#owed.fill(0)
  }

  /** What was taken so far is in a snapshot, which is what later changes are counted from. */
  saved(): void {
    this.#owed.fill(0)
  }
}

function wordsOf(bytes: Uint8Array): PageBits {
  return new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength >>> 2)
}

/** Regions follow each other in the shared memory, and each is a whole number of MiB. */
function joined(regions: readonly Uint8Array[], pages: number): PageBits {
  const bits = emptyPages(pages)
  const bytes = new Uint8Array(bits.buffer)
  let at = 0
  for (const region of regions) {
    bytes.set(region, at)
    at += region.length
  }
  return bits
}
