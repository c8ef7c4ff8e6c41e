/** What a VMM process is told when it starts: prepared by whoever starts the box, so that the VMM itself needs little code. */
import type { AcceleratorName } from '../../accel/contract.ts'
import type { SnapshotRef } from '../pending.ts'

export interface LaunchPlan {
  readonly kernel: string
  /** The kernel is of our cache, where files never change: it can be mapped. */
  readonly kernelIsOurs?: boolean
  readonly initrd: string
  readonly accel: AcceleratorName
  /** Extra words for the kernel's command line. */
  readonly kernelArguments: readonly string[]
  /** Go on from this snapshot instead of booting. */
  readonly restore?: SnapshotRef
  /** When the guest is ready, before its command: leave a template under this key. */
  readonly template?: string
  /** Whether this run outlives the process that starts it; as the box's settings say, unless told. */
  readonly detach?: boolean
  /** Say when the machine runs, before the guest is ready. */
  readonly announce?: boolean
  /** How long a guest that is not ready may say nothing on its console; a minute unless told. */
  readonly silenceMs?: number
}

/** How long each stage of a start took, in milliseconds since the VMM process was created. */
export interface BootStages {
  /** The process runs our code. */
  readonly processMs: number
  /** The machine exists: memory, devices, vCPUs. */
  readonly machineMs: number
  /** Its CPUs run: from the kernel's entry, or from where they were saved. */
  readonly runningMs: number
  /** The guest's first console output. */
  readonly kernelMs: number
  /** The agent answered, the guest has its time, name and disk size. */
  readonly readyMs: number
}

/** The descriptor of the socket to the process that starts it, in a VMM and in a nursery. */
export const CHANNEL = 3

/** From the process that starts a VMM to it: first which box it is for, then what to start. */
export type OwnerMessage =
  /** `owner`: the process that says it. */
  | { readonly box: { readonly path: string; readonly id: string }; readonly owner: number }
  | { readonly plan: LaunchPlan }

/** From the VMM process to the process that started it. */
export type VmmMessage =
  /** Only if it was asked for. */
  | { readonly type: 'running' }
  | { readonly type: 'ready'; readonly stages: BootStages }
  | { readonly type: 'failed'; readonly code: string; readonly message: string }

/** From the process that forks a box to the nursery: what all go on from, then one after the other, as they are made, then that there are no more. */
export type NurseryRequest =
  | { readonly launch: LaunchPlan }
  | { readonly box: { readonly path: string; readonly id: string } }
  | { readonly end: true }

/** From a nursery and the VMM processes that come from it, over the one channel that they share: a line of JSON each. */
export type NurseryMessage =
  | (VmmMessage & { readonly box: string })
  /** Its process ended; only of interest where it said nothing itself. */
  | { readonly type: 'ended'; readonly box: string; readonly how: string }
  /** Of all that said nothing so far: they cannot be started. */
  | { readonly type: 'all-failed'; readonly code: string; readonly message: string }
  /** No process came to be for these, and another way may do. */
  | { readonly type: 'unable'; readonly boxes: readonly string[] }
  /** Nothing more comes from the nursery. */
  | { readonly type: 'done' }

/** What a running box's VMM says of itself. */
export interface VmmStatus {
  /** The VMM's process id on the host. */
  readonly pid: number
  readonly accel: AcceleratorName
  readonly stages: BootStages
  /** Its guest can be used. */
  readonly isReady: boolean
  /** Its end has begun: it takes nothing on any more. */
  readonly isEnding: boolean
}

/** What a running VMM is asked to save. */
export interface SnapshotRequest {
  readonly name: string | null
  readonly kind: 'snapshot' | 'fork'
  readonly diskOnly: boolean
}

/** A snapshot that was taken, and what it cost. */
export interface TakenSnapshot {
  readonly id: string
  /** How long the guest stood still. */
  readonly pauseMs: number
  /** Until the guest went on; then until the snapshot was durable. */
  readonly liveMs: number
  readonly totalMs: number
  /** Memory pages that are in it and not in its parent, in bytes. */
  readonly memoryBytes: number
  readonly rounds: number
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
    /** Its memory is on disk; it goes on from there when it is used. */
    | 'paused'
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
    /** Commands that were started, that could not be, and that run now. */
    readonly execs: { readonly started: number; readonly failed: number; readonly running: number }
  } | null
  readonly stages: BootStages | null
  /** What passed between the guest and its disk, and its network, in bytes, as the guest sees it. */
  readonly disk: { readonly readBytes: number; readonly writtenBytes: number }
  readonly network: { readonly receivedBytes: number; readonly sentBytes: number }
  /** How often the guest was left for an access that the VMM had to serve. */
  readonly exits: number
  /** Counters of vCPUs and devices by name: exits, requests, bytes. */
  readonly counters: Readonly<Record<string, number>>
}
