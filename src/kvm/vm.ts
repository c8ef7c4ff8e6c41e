/** A virtual machine on KVM: the main thread's side. It owns every descriptor and mapping, its vCPUs' included. */
import type { DoorbellTicket, InterruptTicket, VcpuTicket, VirtualMachine, VmOptions } from '../accel/contract.ts'
import { atProcessExit } from '../host/at-exit.ts'
import { createEventFd } from '../host/event-fd.ts'
import { closeFd } from '../host/file.ts'
import type { GuestMemory } from '../memory/guest-memory.ts'
import { MAX_CPUS } from '../memory/layout.ts'
import { KvmError } from './errors.ts'
import { ioctl, ioctlValue } from './ioctl.ts'
import { addIoEventFd, removeIoEventFd } from './ioeventfd.ts'
import { addIrqFd, createIrqChip, GSI_COUNT } from './irqchip.ts'
import { acquireKickSignal, kickThread, releaseKickSignal } from './kick.ts'
import { setMemorySlots, showPage, takeDirtyLog } from './memory-slots.ts'
import { mapRunArea, runOffset, threadWord, unmapRunArea } from './run-area.ts'
import { RUN, XSAVE } from './structs.ts'
import { capabilityOf, KvmSystem } from './system.ts'
import type { KvmVcpuDetail } from './vcpu.ts'
import type { VcpuStateShape } from './vcpu-state.ts'
import { restoreVm, saveVm } from './vm-state.ts'

/** Guest-physical pages below 4 GiB that Intel's VT-x needs for real mode: a TSS of three pages, and one page table. */
const TSS_ADDRESS = 0xfffb_d000
const IDENTITY_MAP_ADDRESS = 0xfffb_c000

/** A memory has one place for each vCPU's pages, so it serves one machine at a time. */
const memoriesInUse = new WeakSet<WebAssembly.Memory>()

export class KvmVirtualMachine implements VirtualMachine {
  readonly accelerator = 'kvm'
  readonly memory: GuestMemory
  readonly cpus: number
  readonly #chips: boolean
  readonly #words: Int32Array
  #vmFd = -1
  readonly #vcpuFds: number[] = []
  readonly #interrupts = new Map<number, number>()
  readonly #doorbells = new Set<DoorbellTicket>()
  #shownPages = 0
  #supportedCpuid: Uint8Array = new Uint8Array()
  #shape: VcpuStateShape = { msrIndices: new Uint32Array(), xsaveSize: XSAVE.size, localApic: false }
  /** A thread inside KVM_RUN would hold the process at its exit. */
  readonly #forgetExit = atProcessExit(() => this.#kickAll())
  #closed = false

  private constructor({ memory, cpus, bare = false }: VmOptions) {
    this.memory = memory
    this.cpus = cpus
    this.#chips = !bare
    this.#words = new Int32Array(memory.wasm.buffer)
    memoriesInUse.add(memory.wasm)
  }

  static create(options: VmOptions, device?: string): KvmVirtualMachine {
    if (!Number.isInteger(options.cpus) || options.cpus < 1 || options.cpus > MAX_CPUS) {
      throw new KvmError('BAD_ARGUMENT', `${options.cpus} CPUs are not possible: give a number from 1 to ${MAX_CPUS}`)
    }
    if (memoriesInUse.has(options.memory.wasm)) {
      throw new KvmError('BAD_ARGUMENT', 'this memory belongs to a machine that is still open: close that first')
    }
    const system = KvmSystem.open(device)
    try {
      system.requireSupport()
      const most = system.capability('KVM_CAP_MAX_VCPUS')
      if (options.cpus > most) {
        throw new KvmError('BAD_ARGUMENT', `${options.cpus} CPUs are not possible: this KVM has at most ${most}`)
      }
      acquireKickSignal()
      const vm = new KvmVirtualMachine(options)
      try {
        vm.#build(system)
      } catch (error) {
        vm.close()
        throw error
      }
      return vm
    } finally {
      system.close()
    }
  }

  #build(system: KvmSystem): void {
    this.#vmFd = system.createVm()
    this.#supportedCpuid = system.supportedCpuid()
    // The XSAVE area's size is asked of the VM, for it depends on what the VM may use.
    this.#shape = {
      msrIndices: system.msrIndices(),
      xsaveSize: Math.max(XSAVE.size, capabilityOf(this.#vmFd, 'KVM_CAP_XSAVE2')),
      localApic: this.#chips,
    }
    ioctlValue(this.#vmFd, 'KVM_SET_TSS_ADDR', TSS_ADDRESS)
    ioctl(this.#vmFd, 'KVM_SET_IDENTITY_MAP_ADDR', new BigUint64Array([BigInt(IDENTITY_MAP_ADDRESS)]))
    setMemorySlots(this.#vmFd, this.memory, false)
    if (this.#chips) createIrqChip(this.#vmFd)
    const size = system.vcpuMmapSize()
    for (let index = 0; index < this.cpus; index++) {
      const fd = ioctlValue(this.#vmFd, 'KVM_CREATE_VCPU', index)
      this.#vcpuFds.push(fd)
      mapRunArea(this.memory.bytes, index, fd, size)
    }
  }

  vcpuTicket(index: number): VcpuTicket {
    const fd = this.#vcpuFd(index)
    const detail: KvmVcpuDetail = {
      fd,
      cpus: this.cpus,
      supportedCpuid: this.#supportedCpuid,
      shape: this.#shape,
    }
    return { accelerator: 'kvm', index, wasm: this.memory.wasm, detail }
  }

  kick(index: number): void {
    this.#vcpuFd(index)
    Atomics.store(this.memory.bytes, runOffset(index) + RUN.members.immediate_exit.offset, 1)
    // A thread that is not inside `run` sees the byte when it next enters; it needs no signal.
    const tid = Atomics.load(this.#words, threadWord(index))
    if (tid !== 0) kickThread(tid)
  }

  #kickAll(): void {
    for (let index = 0; index < this.#vcpuFds.length; index++) this.kick(index)
  }

  interruptLine(gsi: number): InterruptTicket {
    if (!this.#chips) throw new KvmError('BAD_ARGUMENT', 'a bare VM has no interrupt controllers')
    if (!Number.isInteger(gsi) || gsi < 0 || gsi >= GSI_COUNT) {
      throw new KvmError('BAD_ARGUMENT', `interrupt line ${gsi} does not exist: there are ${GSI_COUNT}, from 0`)
    }
    let fd = this.#interrupts.get(gsi)
    if (fd === undefined) {
      const vmFd = this.#open()
      fd = createEventFd()
      try {
        addIrqFd(vmFd, fd, gsi)
      } catch (error) {
        closeFd(fd)
        throw error
      }
      this.#interrupts.set(gsi, fd)
    }
    return { kind: 'eventfd', gsi, fd }
  }

  doorbell(address: number, match: number): DoorbellTicket {
    const vmFd = this.#open()
    const fd = createEventFd()
    try {
      addIoEventFd(vmFd, fd, address, match)
    } catch (error) {
      closeFd(fd)
      throw error
    }
    const ticket = { address, match, fd }
    this.#doorbells.add(ticket)
    return ticket
  }

  removeDoorbell(ticket: DoorbellTicket): void {
    for (const own of this.#doorbells) {
      if (own.fd !== ticket.fd) continue
      this.#doorbells.delete(own)
      removeIoEventFd(this.#open(), own.fd, own.address, own.match)
      closeFd(own.fd)
      return
    }
  }

  showPage(address: number, offset: number): boolean {
    const vmFd = this.#open()
    if (capabilityOf(vmFd, 'KVM_CAP_READONLY_MEM') === 0) return false
    showPage(vmFd, this.memory, this.#shownPages++, address, offset)
    return true
  }

  setDirtyLog(enabled: boolean): void {
    setMemorySlots(this.#open(), this.memory, enabled)
  }

  takeDirtyLog(): Uint8Array[] {
    return takeDirtyLog(this.#open(), this.memory)
  }

  /** The kernel takes write access away before it returns. */
  dirtyLogSettled(): boolean {
    return true
  }

  save(): Uint8Array {
    return saveVm(this.#open(), this.#chips)
  }

  restore(state: Uint8Array): void {
    restoreVm(this.#open(), this.#chips, state)
  }

  close(): void {
    if (this.#closed) return
    this.#closed = true
    // The vCPUs' pages go first: a mapping of a vCPU keeps the whole VM alive in the kernel.
    this.#vcpuFds.forEach((fd, index) => {
      unmapRunArea(this.memory.bytes, index)
      closeFd(fd)
    })
    for (const { fd } of this.#doorbells) closeFd(fd)
    for (const fd of this.#interrupts.values()) closeFd(fd)
    if (this.#vmFd >= 0) closeFd(this.#vmFd)
    memoriesInUse.delete(this.memory.wasm)
    this.#forgetExit()
    releaseKickSignal()
  }

  #open(): number {
    if (this.#closed) throw new KvmError('CLOSED', 'the virtual machine is closed')
    return this.#vmFd
  }

  #vcpuFd(index: number): number {
    this.#open()
    const fd = this.#vcpuFds[index]
    if (fd === undefined) throw new KvmError('BAD_ARGUMENT', `vCPU ${index} does not exist: there are ${this.cpus}`)
    return fd
  }
}
