/** The list of commands: what each is for, and how it is loaded when it is run. */
import type { Command } from './command.ts'

export interface Entry {
  readonly summary: string
  load(): Promise<Command>
}

/** In the order in which the help shows them. */
export const GROUPS: Readonly<Record<string, Readonly<Record<string, Entry>>>> = {
  Boxes: {
    run: {
      summary: 'Run a command in a new box',
      load: async () => (await import('./run.ts')).runCommand,
    },
    exec: {
      summary: 'Run a command in a box',
      load: async () => (await import('./exec.ts')).execCommand,
    },
    create: {
      summary: 'Make a box without starting it',
      load: async () => (await import('./boxes.ts')).createCommand,
    },
    start: {
      summary: 'Start boxes',
      load: async () => (await import('./boxes.ts')).startCommand,
    },
    stop: {
      summary: 'Stop boxes; their disks stay',
      load: async () => (await import('./boxes.ts')).stopCommand,
    },
    rm: {
      summary: 'Remove boxes and their disks',
      load: async () => (await import('./boxes.ts')).rmCommand,
    },
    ps: {
      summary: 'List boxes',
      load: async () => (await import('./boxes.ts')).psCommand,
    },
    logs: {
      summary: "Show a box's output or console",
      load: async () => (await import('./logs.ts')).logsCommand,
    },
    cp: {
      summary: 'Copy files between the host and a box',
      load: async () => (await import('./boxes.ts')).cpCommand,
    },
    stats: {
      summary: 'Show what running boxes use',
      load: async () => (await import('./boxes.ts')).statsCommand,
    },
    inspect: {
      summary: 'Show everything about boxes, as JSON',
      load: async () => (await import('./boxes.ts')).inspectCommand,
    },
  },
  Snapshots: {
    snapshot: {
      summary: 'Save boxes as they are; list, compare, check and remove what was saved',
      load: async () => (await import('./snapshot.ts')).snapshotCommand,
    },
    rollback: {
      summary: 'Put a box back to a snapshot of it',
      load: async () => (await import('./snapshot-live.ts')).rollbackCommand,
    },
    restore: {
      summary: 'Make a new box of a snapshot',
      load: async () => (await import('./snapshot-live.ts')).restoreCommand,
    },
    fork: {
      summary: 'Branch a box into more that go on from the same moment',
      load: async () => (await import('./snapshot-live.ts')).forkCommand,
    },
    pause: {
      summary: 'Freeze boxes, in memory or on disk',
      load: async () => (await import('./snapshot-live.ts')).pauseCommand,
    },
    resume: {
      summary: 'Let paused boxes go on',
      load: async () => (await import('./snapshot-live.ts')).resumeCommand,
    },
    export: {
      summary: 'Write a snapshot to a file or a pipe',
      load: async () => (await import('./transfer.ts')).exportCommand,
    },
    import: {
      summary: 'Read a snapshot from a file or a pipe',
      load: async () => (await import('./transfer.ts')).importCommand,
    },
  },
  Network: {
    net: {
      summary: "Show or change a running box's network: flows, counters, denials, rules",
      load: async () => (await import('./net.ts')).netCommand,
    },
    port: {
      summary: 'List, open and close ports that lead into a running box',
      load: async () => (await import('./net.ts')).portCommand,
    },
    network: {
      summary: 'List, create and remove networks that boxes can share',
      load: async () => (await import('./net.ts')).networkCommand,
    },
  },
  Images: {
    pull: {
      summary: 'Fetch images and make disks of them',
      load: async () => (await import('./images.ts')).pullCommand,
    },
    images: {
      summary: 'List the images on this machine',
      load: async () => (await import('./images.ts')).imagesCommand,
    },
    rmi: {
      summary: 'Remove images',
      load: async () => (await import('./images.ts')).rmiCommand,
    },
    prune: {
      summary: 'Free space: remove what no image or box needs',
      load: async () => (await import('./images.ts')).pruneCommand,
    },
  },
  'Parts and tools': {
    boot: {
      summary: 'Boot a kernel with its console on this terminal',
      load: async () => (await import('./boot.ts')).bootCommand,
    },
    kernel: {
      summary: 'Show, fetch or build the kernel that machines boot',
      load: async () => (await import('./kernel.ts')).kernelCommand,
    },
    disk: {
      summary: 'Create, inspect, check, convert and change disk images',
      load: async () => (await import('./disk.ts')).diskCommand,
    },
    doctor: {
      summary: 'Look at what this host can run machines with, and what is missing',
      load: async () => (await import('./doctor.ts')).doctorCommand,
    },
    completion: {
      summary: 'Print a script that completes commands, options and names in your shell',
      load: async () => (await import('./completion.ts')).completionCommand,
    },
  },
}

export const COMMANDS: Readonly<Record<string, Entry>> = Object.assign({}, ...Object.values(GROUPS))
