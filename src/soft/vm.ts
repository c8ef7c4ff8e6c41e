/** The main thread's side of a machine on the software CPU. */
import * as S from '../../wasm/cpu/state.ts'
import type { DoorbellTicket, InterruptTicket, VcpuTicket, VirtualMachine, VmOptions } from '../accel/contract.ts'
import { createEventFd } from '../host/event-fd.ts'
import { closeFd } from '../host/file.ts'
import type { GuestMemory } from '../memory/guest-memory.ts'
import { wasmModule } from '../wasm/loader.ts'
import { monotonicNow } from './clock.ts'
import { type DoorbellTable, openDoorbells } from './doorbells.ts'
import { SoftError } from './errors.ts'
import { attentionIndex, dirtyMapBase, INBOX_KICK, INBOX_LINES, layOut, vcpuStateBase } from './layout.ts'
import { seedRandom } from './random.ts'
import { adoptCode, saveCode } from './saved-code.ts'
import { packChips, unpackChips } from './state-blob.ts'
import type { SoftVcpuDetail } from './vcpu.ts'

const PAGE = 4096

export class SoftVm implements VirtualMachine {
  readonly accelerator = 'soft'
  readonly memory: GuestMemory
  readonly cpus: number
  readonly #detail: SoftVcpuDetail
  readonly #words: Int32Array
  readonly #doorbells: DoorbellTable
  readonly #bells = new Map<number, DoorbellTicket>()

  constructor(options: VmOptions) {
    if (options.cpus < 1 || options.cpus > S.MAX_VCPUS) {
      throw new SoftError('BAD_SETTING', `the software CPU can be 1 to ${S.MAX_VCPUS} CPUs, not ${options.cpus}`)
    }
    this.memory = options.memory
    this.cpus = options.cpus
    const lockstep = options.soft?.tier === 'lockstep'
    const deterministic = lockstep || (options.soft?.deterministic ?? false)
    if (deterministic && options.cpus > 1) {
      throw new SoftError('BAD_SETTING', 'a deterministic machine has one CPU: threads do not repeat themselves')
    }
    if (lockstep && options.soft?.trace) {
      throw new SoftError('BAD_SETTING', "a machine in lockstep is not traced: trace it with tier 'interpreter'")
    }
    layOut(this.memory, this.cpus, deterministic)
    for (let index = 0; index < this.cpus; index++) seedRandom(this.memory.view, vcpuStateBase(index), deterministic)
    this.#words = new Int32Array(this.memory.wasm.buffer)
    this.#doorbells = openDoorbells(this.memory.view)
    this.#detail = {
      module: wasmModule('cpu'),
      origin: monotonicNow(),
      cpus: this.cpus,
      bare: options.bare ?? false,
      deterministic,
      ...(options.soft?.trace ? { trace: options.soft.trace } : {}),
      tier: options.soft?.tier ?? 'auto',
    }
  }

  vcpuTicket(index: number): VcpuTicket {
    return { accelerator: 'soft', index, wasm: this.memory.wasm, detail: this.#detail }
  }

  get #lockstep(): boolean {
    return this.#detail.tier === 'lockstep'
  }

  kick(index: number): void {
    if (this.#lockstep) {
      Atomics.store(this.#words, INBOX_KICK, 1)
      // Who sleeps there wakes without a line.
      Atomics.notify(this.#words, INBOX_LINES)
      return
    }
    Atomics.or(this.#words, attentionIndex(index), S.ATTN_KICK)
    Atomics.notify(this.#words, attentionIndex(index))
  }

  interruptLine(gsi: number): InterruptTicket {
    return { kind: 'soft', gsi, wasm: this.memory.wasm, held: this.#lockstep }
  }

  doorbell(address: number, match: number): DoorbellTicket {
    if (this.#lockstep) {
      throw new SoftError(
        'BAD_SETTING',
        'a machine in lockstep has no devices: they write to memory at moments that do not repeat',
      )
    }
    const fd = createEventFd()
    this.#doorbells.add(address, match, fd)
    const ticket = { address, match, fd }
    this.#bells.set(fd, ticket)
    return ticket
  }

  removeDoorbell(ticket: DoorbellTicket): void {
    if (!this.#bells.delete(ticket.fd)) return
    this.#doorbells.remove(ticket.address, ticket.match)
    closeFd(ticket.fd)
  }

  #dirtyBytes(): number {
    return Math.ceil(this.memory.size / PAGE / 8)
  }

  setDirtyLog(enabled: boolean): void {
    this.memory.bytes.fill(0, dirtyMapBase, dirtyMapBase + this.#dirtyBytes())
    for (let index = 0; index < this.cpus; index++) {
      Atomics.store(this.#words, (vcpuStateBase(index) + S.S_DIRTY_MAP) >> 2, enabled ? dirtyMapBase : 0)
      this.#forgetWriters(index)
    }
  }

  /** Makes a vCPU give up its write translations, so that the next write to each page is seen. */
  #forgetWriters(index: number): void {
    Atomics.store(this.#words, (vcpuStateBase(index) + S.S_DROP_WRITERS) >> 2, 1)
    Atomics.or(this.#words, attentionIndex(index), S.ATTN_MAILBOX)
    Atomics.notify(this.#words, attentionIndex(index))
  }

  takeDirtyLog(): Uint8Array[] {
    const all = this.memory.bytes.slice(dirtyMapBase, dirtyMapBase + this.#dirtyBytes())
    // Cleared bit by bit with what was read, so that a write in between is not lost.
    const words = new Int32Array(all.buffer, 0, all.length >> 2)
    words.forEach((bits, index) => {
      if (bits) Atomics.and(this.#words, (dirtyMapBase >> 2) + index, ~bits)
    })
    for (let index = 0; index < this.cpus; index++) this.#forgetWriters(index)
    let at = 0
    return this.memory.regions.map(region => {
      const bytes = region.size / PAGE / 8
      at += bytes
      return all.slice(at - bytes, at)
    })
  }

  dirtyLogSettled(): boolean {
    for (let index = 0; index < this.cpus; index++) {
      if (Atomics.load(this.#words, (vcpuStateBase(index) + S.S_DROP_WRITERS) >> 2) !== 0) return false
    }
    return true
  }

  /** As the vCPUs see it: in deterministic mode what the only one of them has retired and skipped (wasm/cpu/time.ts). */
  #now(): number {
    if (!this.#detail.deterministic) return monotonicNow() - this.#detail.origin
    const { view } = this.memory
    const base = vcpuStateBase(0)
    const ran = Number(view.getBigInt64(base + S.S_RETIRED, true)) - view.getInt32(base + S.S_BUDGET, true)
    return ran + view.getFloat64(base + S.S_IDLE_SKIPPED, true)
  }

  save(): Uint8Array {
    return packChips(this.memory, this.#now())
  }

  restore(state: Uint8Array): void {
    unpackChips(this.memory, state, this.#now())
  }

  /** Of one vCPU only: what several have decoded lies apart. */
  saveCode(): Uint8Array | undefined {
    return this.cpus === 1 && !this.#lockstep ? saveCode(this.memory) : undefined
  }

  adoptCode(fd: number, length: number): void {
    if (this.cpus === 1 && !this.#lockstep) adoptCode(this.memory, fd, length)
  }

  close(): void {
    for (const ticket of [...this.#bells.values()]) this.removeDoorbell(ticket)
  }
}
