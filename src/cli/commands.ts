/** The list of commands: what each is for, and how it is loaded when it is run. */
import type { Command } from './command.ts'

export interface Entry {
  readonly summary: string
  load(): Promise<Command>
}

/** In the order in which the help shows them. */
export const COMMANDS: Readonly<Record<string, Entry>> = {
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
    load: async () => (await import('./boxes.ts')).logsCommand,
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
  boot: {
    summary: 'Boot a kernel with its console on this terminal',
    load: async () => (await import('./boot.ts')).bootCommand,
  },
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
}
