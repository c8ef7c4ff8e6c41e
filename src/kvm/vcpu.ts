/** A vCPU on its own thread: enters the guest and serves its accesses. The descriptors belong to the VM object. */
import type { CpuRegisters, IoHandler, SystemRegisters, Vcpu, VcpuExit, VcpuTicket } from '../accel/contract.ts'
import { EAGAIN, EINTR, HostError } from '../host/errors.ts'
import { lastErrno, sys } from '../host/libc.ts'
import { threadId } from '../host/thread.ts'
import { GuestMemory } from '../memory/guest-memory.ts'
import { decodeCpuid, encodeCpuid, normaliseCpuid, setCpuid } from './cpuid.ts'
import { dumpShutdown, dumpVcpu } from './dump.ts'
import { KvmError } from './errors.ts'
import { describeFailedEntry, describeInternalError, describeSystemEvent } from './exit-message.ts'
import { ioctl } from './ioctl.ts'
import { EXIT, IOCTL, KVM } from './ioctls.ts'
import { setBootLocalApic } from './local-apic.ts'
import { BOOT_MSRS, setMsrs } from './msrs.ts'
import { getRegisters, getSystemRegisters, setRegisters, setSystemRegisters } from './registers.ts'
import { RUN_SIZE, runOffset, threadWord } from './run-area.ts'
import { FPU, MP_STATE, REGS, RUN, SREGS } from './structs.ts'
import { restoreVcpu, saveVcpu, type VcpuStateShape } from './vcpu-state.ts'

/** `VcpuTicket.detail`: what survives a message to the vCPU's worker. */
export interface KvmVcpuDetail {
  /** The vCPU's descriptor, which is the VM object's to close. */
  readonly fd: number
  readonly cpus: number
  /** `kvm_cpuid_entry2` records that KVM supports. */
  readonly supportedCpuid: Uint8Array
  readonly shape: VcpuStateShape
}

// Members of kvm_run as plain numbers: the run loop reads them straight from the shared memory.
const IMMEDIATE_EXIT = RUN.members.immediate_exit.offset
const EXIT_REASON = RUN.members.exit_reason.offset
const IO_DIRECTION = RUN.members['io.direction'].offset
const IO_SIZE = RUN.members['io.size'].offset
const IO_PORT = RUN.members['io.port'].offset
const IO_COUNT = RUN.members['io.count'].offset
const IO_DATA_OFFSET = RUN.members['io.data_offset'].offset
const MMIO_ADDRESS = RUN.members['mmio.phys_addr'].offset
const MMIO_DATA = RUN.members['mmio.data'].offset
const MMIO_LENGTH = RUN.members['mmio.len'].offset
const MMIO_IS_WRITE = RUN.members['mmio.is_write'].offset

const KICKED: VcpuExit = { reason: 'kicked' }
const STOPPED: VcpuExit = { reason: 'stopped' }
const HALTED: VcpuExit = { reason: 'halted' }

export class KvmVcpu implements Vcpu {
  readonly index: number
  readonly #fd: number
  readonly #detail: KvmVcpuDetail
  readonly #memory: GuestMemory
  /** kvm_run and the page of port data after it. */
  readonly #run: DataView
  readonly #runBytes: Uint8Array
  readonly #mmioData: DataView
  readonly #words: Int32Array
  readonly #threadWord: number
  #ports = 0
  #mmios = 0
  #interruptions = 0
  #entries = 0

  constructor(ticket: VcpuTicket) {
    const detail = ticket.detail as KvmVcpuDetail
    const offset = runOffset(ticket.index)
    this.index = ticket.index
    this.#fd = detail.fd
    this.#detail = detail
    this.#memory = GuestMemory.attach(ticket.wasm)
    this.#run = new DataView(ticket.wasm.buffer, offset, RUN_SIZE)
    this.#runBytes = new Uint8Array(ticket.wasm.buffer, offset, RUN_SIZE)
    this.#mmioData = new DataView(ticket.wasm.buffer, offset + MMIO_DATA, 8)
    this.#words = new Int32Array(ticket.wasm.buffer)
    this.#threadWord = threadWord(ticket.index)
  }

  /**
   * Allocates nothing per exit. It ends only by way of an interrupted entry or an exit with no access pending, so that
   * no port or MMIO access is left half done: KVM completes one on the next entry, also on one that returns at once.
   */
  run(io: IoHandler): VcpuExit {
    const run = this.#run
    const bytes = this.#runBytes
    let stopping = false
    Atomics.store(this.#words, this.#threadWord, threadId())
    try {
      for (;;) {
        this.#entries++
        // Safe: the descriptor is a vCPU's, and kvm_run stays mapped until the VM is closed, after this thread has ended.
        if (sys.ioctlValue(this.#fd, IOCTL.KVM_RUN, 0) < 0) {
          const errno = lastErrno()
          // EAGAIN: a CPU that waits for its start-up interrupt was woken; it is entered again.
          if (errno !== EINTR && errno !== EAGAIN) return this.#refused(errno)
          this.#interruptions++
          if (Atomics.load(bytes, IMMEDIATE_EXIT) !== 0) return stopping ? STOPPED : KICKED
          continue
        }
        switch (run.getUint32(EXIT_REASON, true)) {
          case EXIT.KVM_EXIT_IO:
            this.#ports++
            this.#servePort(io)
            break
          case EXIT.KVM_EXIT_MMIO:
            this.#mmios++
            this.#serveMmio(io)
            break
          case EXIT.KVM_EXIT_HLT:
            return HALTED
          case EXIT.KVM_EXIT_INTR:
          case EXIT.KVM_EXIT_IRQ_WINDOW_OPEN:
            break
          case EXIT.KVM_EXIT_SHUTDOWN:
            return { reason: 'shutdown', dump: dumpShutdown(this.#fd, this.#memory) }
          default:
            return this.#failed()
        }
        if (io.stopRequested) {
          stopping = true
          Atomics.store(bytes, IMMEDIATE_EXIT, 1)
        }
      }
    } finally {
      Atomics.store(this.#words, this.#threadWord, 0)
      // Whatever made it return, a kick has had what it wanted.
      Atomics.store(bytes, IMMEDIATE_EXIT, 0)
    }
  }

  /** One access, or the repeated accesses of INS or OUTS, whose data lie one after the other. */
  #servePort(io: IoHandler): void {
    const run = this.#run
    const size = run.getUint8(IO_SIZE)
    const port = run.getUint16(IO_PORT, true)
    const count = run.getUint32(IO_COUNT, true)
    let at = run.getUint32(IO_DATA_OFFSET, true)
    if (run.getUint8(IO_DIRECTION) === KVM.KVM_EXIT_IO_OUT) {
      for (let i = 0; i < count; i++, at += size) {
        const value = size === 1 ? run.getUint8(at) : size === 2 ? run.getUint16(at, true) : run.getUint32(at, true)
        io.portWrite(port, size, value)
      }
      return
    }
    for (let i = 0; i < count; i++, at += size) {
      const value = io.portRead(port, size)
      if (size === 1) run.setUint8(at, value)
      else if (size === 2) run.setUint16(at, value, true)
      else run.setUint32(at, value, true)
    }
  }

  #serveMmio(io: IoHandler): void {
    const run = this.#run
    const address = run.getUint32(MMIO_ADDRESS, true) + run.getUint32(MMIO_ADDRESS + 4, true) * 0x1_0000_0000
    const size = run.getUint32(MMIO_LENGTH, true)
    if (run.getUint8(MMIO_IS_WRITE) !== 0) io.mmioWrite(address, size, this.#mmioData)
    else io.mmioRead(address, size, this.#mmioData)
  }

  /** An exit that ends the run: the reason and what KVM tells about it, in words. */
  #failed(): VcpuExit {
    const run = RUN.over(this.#runBytes)
    const reason = run.get('exit_reason')
    const message =
      reason === EXIT.KVM_EXIT_INTERNAL_ERROR
        ? describeInternalError(run)
        : reason === EXIT.KVM_EXIT_FAIL_ENTRY
          ? describeFailedEntry(run)
          : reason === EXIT.KVM_EXIT_SYSTEM_EVENT
            ? describeSystemEvent(run)
            : `KVM gave an exit of kind ${reason}, which this program does not know`
    return { reason: 'internal-error', message, dump: dumpVcpu(this.#fd, this.#memory) }
  }

  #refused(errno: number): VcpuExit {
    const { code } = new HostError('ioctl', errno, 'KVM_RUN')
    const message = `KVM_RUN failed with ${code}`
    return { reason: 'internal-error', message, dump: dumpVcpu(this.#fd, this.#memory) }
  }

  readRegisters(): CpuRegisters {
    return getRegisters(this.#fd)
  }

  writeRegisters(registers: CpuRegisters): void {
    setRegisters(this.#fd, registers)
  }

  readSystemRegisters(): SystemRegisters {
    return getSystemRegisters(this.#fd)
  }

  writeSystemRegisters(system: SystemRegisters): void {
    setSystemRegisters(this.#fd, system)
  }

  /** KVM drops its translations whenever the system registers are set. */
  forgetTranslations(): void {
    this.writeSystemRegisters(this.readSystemRegisters())
  }

  /** `struct kvm_sregs` and `struct kvm_regs`, one after the other: for a peer that drives the same guest. */
  nativeRegisters(): Uint8Array {
    const bytes = new Uint8Array(SREGS.size + REGS.size)
    ioctl(this.#fd, 'KVM_GET_SREGS', bytes.subarray(0, SREGS.size))
    ioctl(this.#fd, 'KVM_GET_REGS', bytes.subarray(SREGS.size))
    return bytes
  }

  reset(): void {
    const { cpus, supportedCpuid, shape } = this.#detail
    const machine = { index: this.index, cpus, localApic: shape.localApic }
    // CPUID first: it decides which MSRs exist.
    setCpuid(this.#fd, encodeCpuid(normaliseCpuid(decodeCpuid(supportedCpuid), machine)))
    setMsrs(this.#fd, BOOT_MSRS)
    ioctl(this.#fd, 'KVM_SET_FPU', FPU.create().set('fcw', 0x37f).set('mxcsr', 0x1f80).bytes)
    if (!shape.localApic) return
    setBootLocalApic(this.#fd)
    const state = this.index === 0 ? KVM.KVM_MP_STATE_RUNNABLE : KVM.KVM_MP_STATE_UNINITIALIZED
    ioctl(this.#fd, 'KVM_SET_MP_STATE', MP_STATE.create().set('mp_state', state).bytes)
  }

  save(): Uint8Array {
    return saveVcpu(this.#fd, this.#detail.shape)
  }

  restore(state: Uint8Array): void {
    restoreVcpu(this.#fd, state, this.#detail.shape)
  }

  counters(): Record<string, number> {
    return {
      entries: this.#entries,
      portExits: this.#ports,
      mmioExits: this.#mmios,
      interruptedEntries: this.#interruptions,
    }
  }

  /** Nothing to give back: descriptors and mappings are the VM's. */
  close(): void {}
}

export function openKvmVcpu(ticket: VcpuTicket): Vcpu {
  if (ticket.accelerator !== 'kvm') {
    throw new KvmError('BAD_ARGUMENT', `a vCPU of accelerator '${ticket.accelerator}' was given to KVM`)
  }
  return new KvmVcpu(ticket)
}
