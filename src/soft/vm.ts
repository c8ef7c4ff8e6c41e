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
import { attentionIndex, dirtyMapBase, layOut, vcpuStateBase } from './layout.ts'
import { seedRandom } from './random.ts'
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
    const deterministic = options.soft?.deterministic ?? false
    if (deterministic && options.cpus > 1) {
      throw new SoftError('BAD_SETTING', 'a deterministic machine has one CPU: threads do not repeat themselves')
    }
    if (options.soft?.tier === 'lockstep') {
      throw new SoftError('BAD_SETTING', 'lockstep needs two machines side by side: test/soft/lockstep.ts makes them')
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

  kick(index: number): void {
    Atomics.or(this.#words, attentionIndex(index), S.ATTN_KICK)
    Atomics.notify(this.#words, attentionIndex(index))
  }

  interruptLine(gsi: number): InterruptTicket {
    return { kind: 'soft', gsi, wasm: this.memory.wasm }
  }

  doorbell(address: number, match: number): DoorbellTicket {
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

  #now(): number {
    return monotonicNow() - this.#detail.origin
  }

  save(): Uint8Array {
    return packChips(this.memory, this.#now())
  }

  restore(state: Uint8Array): void {
    unpackChips(this.memory, state, this.#now())
  }

  close(): void {
    for (const ticket of [...this.#bells.values()]) this.removeDoorbell(ticket)
  }
}
