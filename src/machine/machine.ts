/**
 * One virtual machine, in the caller's process. The vCPUs run in workers; this object is control only.
 *
 *   created ── start ──> running ── pause ──> paused ── resume ──> running
 *      └─ restore ──> paused          └─ the guest ends, or stop ──> stopped ── close ──> closed
 */
import { randomBytes } from 'node:crypto'
import { EventEmitter } from 'node:events'
import type { Accelerator, VcpuExit, VirtualMachine, VmOptions } from '../accel/contract.ts'
import { type InterruptLine, openInterrupt } from '../accel/interrupt.ts'
import { ACCELERATOR_VARIABLE, loadAccelerator, requireAccelerator } from '../accel/select.ts'
import { unmapOver } from '../host/mapping.ts'
import { GuestMemory } from '../memory/guest-memory.ts'
import { GSI_COM1, GSI_POWER_BUTTON, GSI_VM_GENERATION, VM_GENERATION_ID } from './address-map.ts'
import type { EntryState } from './boot/cpu-state.ts'
import { loadGuest } from './boot/load.ts'
import { loadProgram } from './boot/program.ts'
import { MachineConsole } from './console.ts'
import type { MachineDevice, MmioDescription } from './device-slots.ts'
import { MachineError } from './errors.ts'
import { LegacyDevices } from './legacy/legacy-devices.ts'
import { MachineCpu } from './machine-cpu.ts'
import type { MachineEvents, MachineExit } from './machine-events.ts'
import { type CheckedOptions, checkOptions, type MachineOptions } from './machine-options.ts'
import type { MachineState } from './machine-state.ts'
import { CONTROL, controlWords, POWER_REQUEST } from './shared-layout.ts'
import { makeSlot } from './slots.ts'
import type { VcpuHandle } from './vcpu-handle.ts'
import { startVcpuThreads } from './vcpu-thread.ts'

/** Where a machine is in its life. */
export type MachinePhase = 'created' | 'running' | 'paused' | 'stopped' | 'closed'

/** Counters by vCPU and by device. */
export interface MachineMetrics {
  readonly vcpus: readonly Record<string, number>[]
  readonly devices: Record<string, Record<string, number>>
  readonly legacy: Record<string, number>
  readonly console: Record<string, number>
}

/** One virtual machine in this process. */
export class Machine extends EventEmitter<MachineEvents> {
  readonly accelerator: Accelerator['name']
  readonly memory: GuestMemory
  readonly cpus: number
  readonly console: MachineConsole
  readonly #vm: VirtualMachine
  readonly #threads: readonly VcpuHandle[]
  readonly #devices: readonly MachineDevice[]
  readonly #legacy: LegacyDevices
  readonly #control: Int32Array
  readonly #ownMemory: boolean
  readonly #lines: { readonly generation?: InterruptLine; readonly power?: InterruptLine }
  #phase: MachinePhase = 'created'
  #loops: Promise<void>[] = []
  #exit: MachineExit | undefined
  #closing: Promise<void> | undefined
  /** pause, resume, stop and close wait for each other. */
  #turn: Promise<unknown> = Promise.resolve()

  private constructor(parts: MachineParts) {
    super()
    this.#vm = parts.vm
    this.accelerator = parts.vm.accelerator
    this.memory = parts.vm.memory
    this.cpus = parts.vm.cpus
    this.#threads = parts.threads
    this.#devices = parts.devices
    this.#legacy = parts.legacy
    this.#lines = parts.lines
    this.#ownMemory = parts.ownMemory
    this.#control = controlWords(parts.vm.memory.wasm)
    this.console = new MachineConsole(this.memory.wasm, this.#legacy.serial, data => this.emit('console', data))
    parts.onConsole(() => this.console.drain())
  }

  /** Makes the machine and loads its guest; `start` lets it run. */
  static async create(options: MachineOptions): Promise<Machine> {
    const checked = checkOptions(options)
    const cleanup: (() => unknown)[] = []
    try {
      return new Machine(await assemble(checked, cleanup))
    } catch (error) {
      // The first failure is the one to report, whatever else fails on the way back.
      for (const undo of cleanup.reverse()) await (async () => undo())().catch(() => {})
      throw error
    }
  }

  get phase(): MachinePhase {
    return this.#phase
  }

  /** How it ended, once it has. */
  get exit(): MachineExit | undefined {
    return this.#exit
  }

  start(): void {
    if (this.#phase !== 'created') throw this.#wrongPhase('started')
    this.#enter()
  }

  /** Every vCPU leaves the guest, every device holds still. No effect on a machine that has stopped. */
  pause(): Promise<void> {
    return this.#inTurn(async () => {
      if (this.#phase !== 'running') return
      this.#phase = 'paused'
      await this.#leave()
      this.console.drain()
      if (this.#exit) return
      for (const device of this.#devices) await device.pause()
    })
  }

  resume(): Promise<void> {
    return this.#inTurn(async () => {
      if (this.#phase !== 'paused') return
      for (const device of this.#devices) await device.resume()
      this.#enter()
    })
  }

  /** Ends the guest where it is. */
  stop(): Promise<void> {
    return this.#inTurn(async () => {
      if (this.#phase === 'stopped' || this.#phase === 'closed') return
      await this.#leave()
      this.#finish({ reason: 'killed' })
    })
  }

  /** Ends the guest if it runs, and everything that belongs to the machine: memory that it made itself is empty then. */
  close(): Promise<void> {
    this.#closing ??= this.stop().then(() => this.#inTurn(() => this.#closeParts()))
    return this.#closing
  }

  /** Resolves when the machine has ended. */
  ended(): Promise<MachineExit> {
    if (this.#exit) return Promise.resolve(this.#exit)
    return new Promise(resolve => this.once('exit', resolve))
  }

  /** Everything but memory. The machine must be paused. */
  async save(): Promise<MachineState> {
    if (this.#phase !== 'paused') throw this.#wrongPhase('saved')
    const devices: { name: string; state: Uint8Array }[] = []
    for (const device of this.#devices) devices.push({ name: device.name, state: await device.save() })
    const vcpus: Uint8Array[] = []
    for (const thread of this.#threads) vcpus.push(await thread.call(api => api.save()))
    const { accelerator, cpus } = this
    const vm = this.#vm.save()
    return { accelerator, cpus, memorySize: this.memory.size, vcpus, vm, legacy: this.#legacy.save(), devices }
  }

  /** Puts a saved state into a machine that has not run; its memory has been filled by the caller. It is paused then. */
  async restore(state: MachineState): Promise<void> {
    if (this.#phase !== 'created') throw this.#wrongPhase('restored')
    this.#requireSameShape(state)
    for (const [i, thread] of this.#threads.entries()) await thread.call(api => api.restore(state.vcpus[i]!))
    this.#vm.restore(state.vm)
    this.#legacy.restore(state.legacy)
    for (const [i, device] of this.#devices.entries()) await device.restore(state.devices[i]!.state)
    this.#phase = 'paused'
    this.#legacy.serial.raiseAgain()
  }

  /** What the guest's power button does is the guest's choice; Linux needs a daemon or a handler for it. */
  pressPowerButton(): void {
    this.#lines.power?.raise()
  }

  /** Tells the guest that it is a copy of another: kernels reseed their random numbers. */
  newGeneration(id: Uint8Array = randomBytes(16)): void {
    if (id.length !== 16) throw new MachineError('BAD_SETTING', 'a VM generation id has 16 bytes')
    this.memory.write(VM_GENERATION_ID, id)
    this.#lines.generation?.raise()
  }

  /** Counters of vCPUs are there only while the machine is not running. */
  async metrics(): Promise<MachineMetrics> {
    const out = this.#phase === 'running' || this.#phase === 'closed' ? [] : this.#threads
    const vcpus = await Promise.all(out.map(thread => thread.call(api => api.counters())))
    const devices: Record<string, Record<string, number>> = {}
    for (const [i, device] of this.#devices.entries()) devices[`${device.name}${i}`] = await device.metrics()
    return { vcpus, devices, legacy: this.#legacy.metrics(), console: this.console.metrics() }
  }

  /** A vCPU to look into, change and step, while the machine does not run. */
  cpu(index: number): MachineCpu {
    const thread = this.#threads[index]
    if (!thread) throw new MachineError('BAD_SETTING', `there is no vCPU ${index}: the machine has ${this.cpus}`)
    return new MachineCpu(index, thread, {
      memory: this.memory,
      requireStill: what => {
        if (this.#phase === 'running' || this.#phase === 'closed') throw this.#wrongPhase(what)
        if (what === 'stepped' && this.#exit) throw this.#wrongPhase(what)
      },
      memoryChanged: () => this.memoryChanged(),
      stepped: (cpu, exit) => {
        if (exit.reason !== 'stepped') this.#guestEnded(this.#meaning(cpu, exit))
      },
    })
  }

  /** To be called after `memory` of a machine that does not run was written: page tables and code are read anew. */
  async memoryChanged(): Promise<void> {
    await Promise.all(this.#threads.map(thread => thread.call(api => api.forgetTranslations())))
  }

  /** The main thread's access to the accelerator: dirty logs, and whatever else snapshots need. */
  get vm(): VirtualMachine {
    return this.#vm
  }

  #inTurn<T>(step: () => Promise<T>): Promise<T> {
    const turn = this.#turn.then(step)
    this.#turn = turn.catch(() => {})
    return turn
  }

  #enter(): void {
    Atomics.store(this.#control, CONTROL.holdStill, 0)
    this.#phase = 'running'
    this.#loops = this.#threads.map((_, index) => this.#runVcpu(index))
  }

  /** Brings every vCPU out of the guest. */
  async #leave(): Promise<void> {
    Atomics.store(this.#control, CONTROL.holdStill, 1)
    for (let i = 0; i < this.cpus; i++) this.#vm.kick(i)
    await Promise.all(this.#loops)
    this.#loops = []
  }

  async #runVcpu(index: number): Promise<void> {
    for (;;) {
      let exit: VcpuExit
      try {
        exit = await this.#threads[index]!.call(api => api.run() as Promise<VcpuExit>)
      } catch (error) {
        this.#guestEnded({ reason: 'internal-error', cpu: index, message: (error as Error).message })
        return
      }
      if (exit.reason !== 'kicked') {
        this.#guestEnded(this.#meaning(index, exit))
        return
      }
      if (Atomics.load(this.#control, CONTROL.holdStill) !== 0) return
    }
  }

  #meaning(cpu: number, exit: Exclude<VcpuExit, { reason: 'kicked' }>): MachineExit {
    switch (exit.reason) {
      case 'stopped':
        return Atomics.load(this.#control, CONTROL.powerRequest) === POWER_REQUEST.off
          ? { reason: 'power-off' }
          : { reason: 'reboot' }
      case 'halted':
        return { reason: 'halted' }
      case 'shutdown':
        return { reason: 'triple-fault', cpu, dump: exit.dump }
      case 'internal-error':
        return { reason: 'internal-error', cpu, message: exit.message, dump: exit.dump }
    }
  }

  /** One vCPU ended for good: the others follow, then the machine is stopped. The first reason counts. */
  #guestEnded(exit: MachineExit): void {
    if (this.#exit) return
    this.#exit = exit
    void this.#inTurn(async () => {
      await this.#leave()
      this.#finish(exit)
    })
  }

  #finish(exit: MachineExit): void {
    this.#exit ??= exit
    if (this.#phase === 'stopped' || this.#phase === 'closed') return
    this.#phase = 'stopped'
    this.console.finish()
    if (this.#exit.reason === 'power-off') this.emit('power', 'off')
    if (this.#exit.reason === 'reboot') this.emit('power', 'reboot')
    this.emit('exit', this.#exit)
  }

  async #closeParts(): Promise<void> {
    this.#phase = 'closed'
    await Promise.all(this.#devices.map(device => device.close()))
    await Promise.all(this.#threads.map(thread => thread.close()))
    this.#vm.close()
    // V8 unmaps a memory when it collects garbage, which may be much later; the pages go back to the host now.
    if (this.#ownMemory) unmapOver(this.memory.bytes, 0, this.memory.bytes.length)
  }

  #requireSameShape(state: MachineState): void {
    const names = this.#devices.map(device => device.name).join(', ')
    const savedNames = state.devices.map(device => device.name).join(', ')
    const differs = (what: string, saved: unknown, here: unknown): MachineError =>
      new MachineError('BAD_SAVED_STATE', `the saved machine has ${what} ${saved}, this one has ${here}`)
    if (state.accelerator !== this.accelerator) throw differs('accelerator', state.accelerator, this.accelerator)
    if (state.cpus !== this.cpus) throw differs('CPUs', state.cpus, this.cpus)
    if (state.memorySize !== this.memory.size) throw differs('bytes of memory', state.memorySize, this.memory.size)
    if (savedNames !== names) throw differs('devices', savedNames || '(none)', names || '(none)')
  }

  #wrongPhase(what: string): MachineError {
    return new MachineError('BAD_STATE', `a machine that is ${this.#phase} cannot be ${what}`)
  }
}

interface MachineParts {
  readonly vm: VirtualMachine
  readonly threads: readonly VcpuHandle[]
  readonly devices: readonly MachineDevice[]
  readonly legacy: LegacyDevices
  readonly lines: { readonly generation?: InterruptLine; readonly power?: InterruptLine }
  /** The caller did not bring it. */
  readonly ownMemory: boolean
  /** Sets what happens when a vCPU's worker says that console output is there. */
  onConsole(handler: () => void): void
}

/** Creates everything; whatever was created is in `cleanup` before the next thing can fail. */
async function assemble(options: CheckedOptions, cleanup: (() => unknown)[]): Promise<MachineParts> {
  const { cpus, devices, bare = false } = options
  const accelerator = await chooseFor(options)
  // Workers take a while to start: they do so while memory is prepared.
  const threads = options.threads ?? startVcpuThreads(cpus)
  cleanup.push(() => Promise.all(threads.map(thread => thread.close())))
  const memory = options.memory ?? GuestMemory.create(options.memoryMib)
  const entry = loadEntry(memory, options)
  const vm = await createVm(accelerator, { memory, cpus, bare, ...(options.soft ? { soft: options.soft } : {}) })
  // Descriptors are closed after the workers that use them have ended, and after the devices.
  cleanup.unshift(() => vm.close())
  for (const device of devices) cleanup.push(() => device.close())
  // Side by side: each waits for its worker. All have to be done before one that failed is undone.
  const attached = await Promise.allSettled(
    devices.map(async (device, index) => device.attach(makeSlot(vm, index, device.queues))),
  )
  const windows: MmioDescription[] = attached.map(result => {
    if (result.status === 'rejected') throw result.reason
    return result.value
  })
  const serialInterrupt = bare ? undefined : vm.interruptLine(GSI_COM1)
  const serialLine = serialInterrupt ? await openInterrupt(serialInterrupt) : undefined
  const lines = bare
    ? {}
    : {
        generation: await openInterrupt(vm.interruptLine(GSI_VM_GENERATION)),
        power: await openInterrupt(vm.interruptLine(GSI_POWER_BUTTON)),
      }
  const legacy = new LegacyDevices(memory.wasm, undefined, () => serialLine?.raise())
  legacy.reset()
  await Promise.all(
    threads.map(async (thread, index) => {
      const ticket = vm.vcpuTicket(index)
      await thread.call(api => api.open(ticket, { wasm: memory.wasm, serialInterrupt, windows }))
      await thread.call(api => api.boot(index === 0 ? entry : undefined))
    }),
  )
  return {
    vm,
    threads,
    devices,
    legacy,
    lines,
    ownMemory: options.memory === undefined,
    onConsole: handler => {
      for (const thread of threads) thread.onConsole = handler
    },
  }
}

/** One that is named is not probed first: that takes longer than making a machine. */
function chooseFor(options: CheckedOptions): Promise<Accelerator> {
  if (typeof options.accel === 'object') return Promise.resolve(options.accel)
  const wanted: string = options.accel ?? (process.env[ACCELERATOR_VARIABLE] || 'auto')
  return wanted === 'auto' ? requireAccelerator('auto') : loadAccelerator(wanted)
}

async function createVm(accelerator: Accelerator, options: VmOptions): Promise<VirtualMachine> {
  try {
    return await accelerator.createVm(options)
  } catch (error) {
    // A probe knows better what is wrong and what to do; if it finds nothing, the error itself has to do.
    const report = await accelerator.probe().catch(() => undefined)
    if (report?.runsMicroGuests === false) await requireAccelerator(accelerator.name)
    throw error
  }
}

const isDeterministic = ({ soft }: CheckedOptions): boolean => soft?.deterministic === true || soft?.tier === 'lockstep'

function loadEntry(memory: GuestMemory, options: CheckedOptions): EntryState | undefined {
  const { kernel, program, cpus, initrd, cmdline, protocol } = options
  if (program) return loadProgram(memory, program)
  if (!kernel) return undefined
  const slots = options.devices.length
  return loadGuest(memory, {
    kernel,
    initrd,
    commandLine: cmdline,
    cpus,
    slots,
    protocol,
    // Linux takes its first randomness from it.
    generationId: isDeterministic(options) ? new Uint8Array(16) : randomBytes(16),
  })
}
