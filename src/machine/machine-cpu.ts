/**
 * A vCPU of a machine that does not run (created or paused), for debuggers and teaching: its registers, its memory as it sees it,
 * its page tables, and single steps.
 */
import type { CpuRegisters, StepExit, SystemRegisters } from '../accel/contract.ts'
import type { GuestMemory } from '../memory/guest-memory.ts'
import { MachineError } from './errors.ts'
import { type Translation, walkPageTables } from './page-tables.ts'
import type { VcpuHandle } from './vcpu-handle.ts'

/** Longer ones could not be interrupted for seconds. */
const MOST_STEPS = 1_000_000

/** All registers of a CPU that stands still. */
export interface CpuState {
  readonly registers: CpuRegisters
  readonly system: SystemRegisters
}

/** What a machine lets its vCPUs' faces do. */
export interface CpuOwner {
  readonly memory: GuestMemory
  /** Throws unless the vCPUs stand still. */
  requireStill(what: string): void
  memoryChanged(): Promise<void>
  stepped(index: number, exit: StepExit): void
}

/** One CPU of a machine, to look at and to change while it stands still. */
export class MachineCpu {
  readonly index: number
  readonly #thread: VcpuHandle
  readonly #owner: CpuOwner

  constructor(index: number, thread: VcpuHandle, owner: CpuOwner) {
    this.index = index
    this.#thread = thread
    this.#owner = owner
  }

  async state(): Promise<CpuState> {
    this.#owner.requireStill('looked into')
    return this.#thread.call(api => api.registers())
  }

  /** Changes what is given: RIP, flags, all general registers or some of the system's. */
  async change({
    registers,
    system,
  }: {
    registers?: Partial<CpuRegisters>
    system?: Partial<SystemRegisters>
  }): Promise<void> {
    const now = await this.state()
    if (registers?.general && registers.general.length !== now.registers.general.length) {
      throw new MachineError('BAD_SETTING', `a CPU has 16 general registers, not ${registers.general.length}`)
    }
    if (system) await this.#thread.call(api => api.setSystemRegisters({ ...now.system, ...system }))
    if (registers) await this.#thread.call(api => api.setRegisters({ ...now.registers, ...registers }))
  }

  /**
   * Runs `count` instructions of this vCPU alone. Its accesses to devices are made; what a paused device answers comes when the
   * machine goes on. A step that ends the guest ends the machine.
   */
  async step(count = 1): Promise<StepExit> {
    this.#owner.requireStill('stepped')
    if (!Number.isInteger(count) || count < 1 || count > MOST_STEPS) {
      throw new MachineError('BAD_SETTING', `${count} steps are not possible: give 1 to ${MOST_STEPS}`)
    }
    const exit = await this.#thread.call(api => api.step(count) as Promise<StepExit | undefined>)
    if (exit === undefined) {
      throw new MachineError('BAD_SETTING', "only the software CPU can be stepped: make the machine with accel: 'soft'")
    }
    this.#owner.stepped(this.index, exit)
    return exit
  }

  /** How the guest's page tables translate an address now, entry by entry. */
  async translate(linear: bigint): Promise<Translation> {
    const { system } = await this.state()
    return walkPageTables(this.#owner.memory, system, linear)
  }

  /** Bytes at a linear address; fewer when a page on the way is mapped nowhere. */
  async read(linear: bigint, length: number): Promise<Uint8Array> {
    const { system } = await this.state()
    const bytes = new Uint8Array(length)
    let done = 0
    for (const { physical, size } of pieces(this.#owner.memory, system, linear, length)) {
      bytes.set(this.#owner.memory.slice(physical, size), done)
      done += size
    }
    return bytes.subarray(0, done)
  }

  /** Writes there whatever the rights of the page, as a debugger does; nothing when not all of it is mapped. */
  async write(linear: bigint, bytes: Uint8Array): Promise<void> {
    const { system } = await this.state()
    const places = [...pieces(this.#owner.memory, system, linear, bytes.length)]
    if (places.reduce((total, { size }) => total + size, 0) < bytes.length) {
      throw new MachineError(
        'BAD_SETTING',
        `${bytes.length} bytes at 0x${linear.toString(16)} cannot be written: not all of that is mapped to RAM`,
      )
    }
    let done = 0
    for (const { physical, size } of places) {
      this.#owner.memory.write(physical, bytes.subarray(done, done + size))
      done += size
    }
    await this.#owner.memoryChanged()
  }
}

/** The pieces of RAM behind a linear range, page by page, up to the first that is none. */
function* pieces(
  memory: GuestMemory,
  system: SystemRegisters,
  linear: bigint,
  length: number,
): Generator<{ physical: number; size: number }> {
  for (let done = 0; done < length; ) {
    const at = BigInt.asUintN(64, linear + BigInt(done))
    const { physical } = walkPageTables(memory, system, at)
    const size = Math.min(length - done, 4096 - Number(at & 4095n))
    if (physical === undefined || memory.offsetOf(physical, size) < 0) return
    yield { physical, size }
    done += size
  }
}
