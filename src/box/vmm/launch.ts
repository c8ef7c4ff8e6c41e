/** What a VMM process is told when it starts: prepared by whoever starts the box, so that the VMM itself needs little code. */
import type { AcceleratorName } from '../../accel/contract.ts'

export interface LaunchPlan {
  /** The box's folder (home.ts) and id. */
  readonly folder: string
  readonly id: string
  readonly kernel: string
  readonly initrd: string
  readonly accel: AcceleratorName
  /** Extra words for the kernel's command line. */
  readonly kernelArguments: readonly string[]
}

/** How long each stage of a start took, in milliseconds since the VMM process was created. */
export interface BootStages {
  /** The process runs our code. */
  readonly processMs: number
  /** The machine exists: memory, devices, vCPUs. */
  readonly machineMs: number
  /** The guest's first console output. */
  readonly kernelMs: number
  /** The agent answered, the guest has its time, name and disk size. */
  readonly readyMs: number
}

/** From the VMM process to the process that started it, over the IPC channel. */
export type VmmMessage =
  | { readonly type: 'ready'; readonly stages: BootStages }
  | { readonly type: 'failed'; readonly code: string; readonly message: string }

/** What a running box's VMM says of itself. */
export interface VmmStatus {
  /** The VMM's process id on the host. */
  readonly pid: number
  readonly accel: AcceleratorName
  readonly stages: BootStages
}

/** A host port that leads to a port of the guest. */
export interface OpenPort {
  readonly host: number
  readonly guest: number
  readonly protocol: 'tcp' | 'udp'
  readonly bind: string
}

/** How a run of a box ended. */
export interface BoxExit {
  readonly reason:
    | 'stopped'
    | 'powered-off'
    | 'command-ended'
    | 'timeout'
    | 'idle'
    | 'owner-gone'
    | 'guest-crashed'
    | 'vmm-failed'
  readonly message: string
  /** The status of the box's own command, where it has one that ended. */
  readonly exitCode: number | null
  readonly at: string
}

/** What `metrics` reports: figures of the VMM process, the machine and the guest. */
export interface BoxMetrics {
  readonly uptimeMs: number
  /** CPU time of the VMM process, all its threads. */
  readonly cpuMs: number
  /** Resident memory of the VMM process, guest memory included, and what of it is guest memory. */
  readonly residentBytes: number
  readonly guestResidentBytes: number
  readonly guest: {
    readonly memoryTotal: number
    readonly memoryAvailable: number
    readonly diskTotal: number
    readonly diskFree: number
    readonly processes: number
    readonly load: number
  } | null
  readonly stages: BootStages | null
  /** Counters of vCPUs and devices by name: exits, requests, bytes. */
  readonly counters: Readonly<Record<string, number>>
}
