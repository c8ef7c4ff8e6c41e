/**
 * What an accelerator is. Types only: kvm/, hvf/ and soft/ satisfy them, machine/ is written against them, and
 * accel/select.ts is the only code that knows all of them by name.
 *
 * A virtual machine has two sides. On the main thread, `VirtualMachine` creates things and hands out tickets: plain
 * objects that survive `postMessage`. In a vCPU's worker, the ticket becomes a `Vcpu`, whose `run` enters the guest and
 * serves its port and MMIO accesses through an `IoHandler` on that same thread. In a device's worker, tickets become
 * doorbells (guest to device) and interrupt lines (device to guest).
 */
import type { GuestMemory } from '../memory/guest-memory.ts'

/** What can run a guest: hardware on Linux, hardware on macOS, or the software CPU, which runs anywhere. */
export type AcceleratorName = 'kvm' | 'hvf' | 'soft'

/** One thing that a probe found out, in the order it was looked at. */
export interface Finding {
  readonly what: string
  readonly ok: boolean
  readonly detail: string
  /** What the user can do about it, when not ok. */
  readonly remedy?: string
}

export interface AcceleratorReport {
  readonly name: AcceleratorName
  /** True when it can run an ordinary kernel at a useful speed, which is when it may be chosen by itself. */
  readonly usable: boolean
  /** True when it can at least run micro-guests (a KVM that emulates ring 0 can). */
  readonly runsMicroGuests: boolean
  readonly summary: string
  readonly findings: readonly Finding[]
}

export interface Accelerator {
  readonly name: AcceleratorName
  probe(): Promise<AcceleratorReport>
  createVm(options: VmOptions): Promise<VirtualMachine>
}

export interface VmOptions {
  readonly memory: GuestMemory
  readonly cpus: number
  /** Without the interrupt controllers and the timer: for micro-guests that measure bare exits. Default: with them. */
  readonly bare?: boolean
  /** Settings of the software CPU; other accelerators ignore them. */
  readonly soft?: SoftOptions
}

/** How the software CPU runs. */
export interface SoftOptions {
  /**
   * Which tiers may run: both (the default), the interpreter only, compiled code as soon as possible, or one against the other, which
   * makes a deterministic machine of one CPU and no devices that ends at the first difference with both states in its message.
   */
  readonly tier?: 'auto' | 'interpreter' | 'compiler' | 'lockstep'
  /** Time comes from retired instructions alone. */
  readonly deterministic?: boolean
  /** Tells every instruction, or every access that leaves the CPU, on standard error. */
  readonly trace?: 'instructions' | 'exits'
}

/** The main thread's side. All methods are called from the thread that created it. */
export interface VirtualMachine {
  readonly accelerator: AcceleratorName
  readonly memory: GuestMemory
  readonly cpus: number
  /** What vCPU `index`'s worker needs in order to open it. */
  vcpuTicket(index: number): VcpuTicket
  /** Makes `Vcpu.run` of vCPU `index` return 'kicked' soon, from whatever it is doing; sticky until it has returned. */
  kick(index: number): void
  /** An edge-triggered interrupt line into the IOAPIC (and, below 16, the PICs). Any thread may raise it. */
  interruptLine(gsi: number): InterruptTicket
  /** A bell that rings when the guest writes the 32-bit value `match` to guest-physical `address`. */
  doorbell(address: number, match: number): DoorbellTicket
  removeDoorbell(ticket: DoorbellTicket): void
  /**
   * Has the guest read the 4 KiB at `offset` of the shared memory at guest-physical `address` without an exit, for as long as the machine lives;
   * its writes there come as before. Where the accelerator can: false otherwise.
   */
  showPage?(address: number, offset: number): boolean
  /** Starts or stops recording which pages the guest writes. */
  setDirtyLog(enabled: boolean): void
  /** One bit per 4 KiB page of each of `memory.regions`, in order; reading clears the log. */
  takeDirtyLog(): Uint8Array[]
  /**
   * Whether every vCPU has heard of the last `setDirtyLog` or `takeDirtyLog`: until then a running one may write, without
   * a note, to pages that were just reported. Copy those pages after it is true.
   */
  dirtyLogSettled(): boolean
  /** State shared by all vCPUs: interrupt controllers, timer, clock. Only while every vCPU is stopped. */
  save(): Uint8Array
  restore(state: Uint8Array): void
  /**
   * What the vCPUs have made of the guest's code, which a machine that goes on from the same state and memory can use again; for accelerators that
   * make anything of it. Only while every vCPU and device is stopped.
   */
  saveCode?(): Uint8Array | undefined
  /** Has that mapped from a file, after `restore`, when it was made by the same build. */
  adoptCode?(fd: number, length: number): void
  /** Closes every descriptor and mapping. vCPU workers must have ended. */
  close(): void
}

export interface VcpuTicket {
  readonly accelerator: AcceleratorName
  readonly index: number
  readonly wasm: WebAssembly.Memory
  /** Accelerator-specific, structured-cloneable. */
  readonly detail: unknown
}

export type InterruptTicket =
  | { readonly kind: 'eventfd'; readonly gsi: number; readonly fd: number }
  | {
      readonly kind: 'soft'
      readonly gsi: number
      readonly wasm: WebAssembly.Memory
      /** Lockstep: the line waits for the end of a slice. */
      readonly held: boolean
      /** An eventfd that the vCPU's thread waits on when it sleeps, where it shares that with others (`MainLoop`). */
      readonly wakeFd?: number
    }

export interface DoorbellTicket {
  readonly address: number
  readonly match: number
  /** An eventfd: readable when the bell has rung. */
  readonly fd: number
}

/** Serves the guest's accesses on the vCPU's own thread. Never throws; unclaimed reads give all ones. */
export interface IoHandler {
  portRead(port: number, size: number): number
  portWrite(port: number, size: number, value: number): void
  /** Fills the first `size` bytes (1, 2, 4 or 8) of `data`. */
  mmioRead(address: number, size: number, data: DataView): void
  mmioWrite(address: number, size: number, data: DataView): void
  /** True after an access that ends this vCPU's run: power-off, reset. Asked after every write. */
  readonly stopRequested: boolean
}

/** Why `Vcpu.run` returned. */
export type VcpuExit =
  | { readonly reason: 'kicked' }
  /** `IoHandler.stopRequested` was set. */
  | { readonly reason: 'stopped' }
  /** HLT with nobody to wake it (only without an in-kernel or software interrupt controller). */
  | { readonly reason: 'halted' }
  /** Triple fault. */
  | { readonly reason: 'shutdown'; readonly dump: CpuDump }
  /** The accelerator could not go on: an instruction it cannot emulate, a failed entry. */
  | { readonly reason: 'internal-error'; readonly message: string; readonly dump: CpuDump }

/** Why `Vcpu.step` returned. */
export type StepExit =
  | Exclude<VcpuExit, { reason: 'kicked' }>
  /** All of it was done, or less: the CPU has halted, and an interrupt must come first. */
  | { readonly reason: 'stepped'; readonly retired: number; readonly waits: boolean }

/** A CPU at the moment of a failure. */
export interface CpuDump {
  readonly registers: CpuRegisters
  readonly system: SystemRegisters
  /** The bytes at RIP, as far as they can be read. */
  readonly code: Uint8Array
  /** The registers are a reset CPU's: those at the failure could not be had. */
  readonly lost?: true
}

/** The worker's side of a vCPU. */
export interface Vcpu {
  readonly index: number
  /** Enters the guest and serves its accesses until something in `VcpuExit` happens. */
  run(io: IoHandler): VcpuExit
  /**
   * A part of `run`, for a vCPU that shares its thread: where the accelerator can. It never waits: a number is the milliseconds that the guest has
   * nothing to do, unless a device interrupts it (0: call again at once; Infinity: only a device can wake it).
   */
  turn?(io: IoHandler): number | VcpuExit
  /** Runs `count` instructions, each with what it causes, where the accelerator can. An interrupt or exception that is taken counts as one. */
  step?(io: IoHandler, count: number): StepExit
  readRegisters(): CpuRegisters
  writeRegisters(registers: CpuRegisters): void
  readSystemRegisters(): SystemRegisters
  writeSystemRegisters(system: SystemRegisters): void
  /** Memory was written from outside, perhaps page tables or code: what the CPU keeps of it is out of date. */
  forgetTranslations(): void
  /** Puts the CPU in its boot state: CPUID, MSRs, FPU and local interrupt pins. The first CPU runs; the others wait for SIPI. */
  reset(): void
  /** Everything, in the order that restoring needs. Only while stopped. */
  save(): Uint8Array
  restore(state: Uint8Array): void
  /** Counters for metrics: exits by kind, instructions where they are known. */
  counters(): Record<string, number>
  close(): void
}

/** In the numbering of the instruction set, by which `CpuRegisters.general` lists them. */
export const GENERAL_REGISTERS = [
  'rax',
  'rcx',
  'rdx',
  'rbx',
  'rsp',
  'rbp',
  'rsi',
  'rdi',
  'r8',
  'r9',
  'r10',
  'r11',
  'r12',
  'r13',
  'r14',
  'r15',
] as const
export type GeneralRegister = (typeof GENERAL_REGISTERS)[number]

/** What programs see of a CPU. */
export interface CpuRegisters {
  /** The sixteen, in the order of `GENERAL_REGISTERS`. */
  readonly general: readonly bigint[]
  readonly rip: bigint
  readonly rflags: bigint
}

export interface Segment {
  readonly selector: number
  readonly base: bigint
  /** In bytes, already scaled by granularity. */
  readonly limit: number
  /** Bits 8-15 and 20-23 of the descriptor: type, S, DPL, P, AVL, L, D/B, G at bits 0-7 and 12-15. */
  readonly attributes: number
}

export interface DescriptorTable {
  readonly base: bigint
  readonly limit: number
}

/** What kernels see of a CPU: segments, tables, control registers. */
export interface SystemRegisters {
  readonly cs: Segment
  readonly ds: Segment
  readonly es: Segment
  readonly fs: Segment
  readonly gs: Segment
  readonly ss: Segment
  readonly tr: Segment
  readonly ldt: Segment
  readonly gdt: DescriptorTable
  readonly idt: DescriptorTable
  readonly cr0: bigint
  readonly cr2: bigint
  readonly cr3: bigint
  readonly cr4: bigint
  readonly cr8: bigint
  readonly efer: bigint
  readonly apicBase: bigint
}
