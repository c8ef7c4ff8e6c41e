/** What a caller may say about a new box, and what is taken where it says nothing. */
import { MAX_RAM_MIB } from '../memory/layout.ts'
import { BoxError } from './errors.ts'
import type { BoxConfig, NetworkPolicy, PortMapping } from './record.ts'

export interface BoxOptions {
  /** An image reference, a path to a root directory or an archive, or `base` (the default), which needs no registry. */
  readonly image?: string
  /** Unique in its home; the box's id unless told. */
  readonly name?: string
  /** 1 unless told. */
  readonly cpus?: number
  /** 512 unless told. */
  readonly memoryMib?: number
  /** 10 unless told; space is taken only as it is written. */
  readonly diskGib?: number
  readonly env?: Readonly<Record<string, string>>
  /** Where commands start: the image's, else the user's home directory. */
  readonly workdir?: string
  /** Who commands run as: the image's, else root. */
  readonly user?: string
  readonly accel?: BoxConfig['accel']
  readonly network?: NetworkPolicy
  readonly ports?: readonly PortMapping[]
  /**
   * Run at every start, its output in the box's log; the box stops when it ends. Given to the image's entrypoint, if it has
   * one; empty: the image's own command. Absent: nothing is run, the box waits for `exec`.
   */
  readonly command?: readonly string[]
  /** The box lives on when this process ends, and any process can attach to it. */
  readonly detach?: boolean
  /** The box is removed when it stops. */
  readonly autoRemove?: boolean
  readonly timeoutMs?: number
  readonly idleMs?: number
}

/** What the image says about its commands. */
export interface ImageSettings {
  readonly env: Readonly<Record<string, string>>
  readonly workdir: string
  readonly user: string
  readonly entrypoint: readonly string[]
  readonly cmd: readonly string[]
}

/** What `run` starts: the image's entrypoint with these arguments, or with its own; a shell where it says nothing. */
export function commandLine(
  image: Pick<ImageSettings, 'entrypoint' | 'cmd'>,
  args: readonly string[],
): readonly string[] {
  const line = [...image.entrypoint, ...(args.length > 0 ? args : image.cmd)]
  return line.length > 0 ? line : ['/bin/sh']
}

const MAX_CPUS = 32
const MIN_MEMORY_MIB = 64
const MAX_DISK_GIB = 1024

function whole(what: string, value: number, min: number, max: number, unit = ''): number {
  if (Number.isInteger(value) && value >= min && value <= max) return value
  throw new BoxError('INVALID', `${what} cannot be ${value}${unit}: give a whole number from ${min} to ${max}`)
}

function checkPort(port: PortMapping): PortMapping {
  whole('a host port', port.host, 0, 65_535)
  whole('a guest port', port.guest, 1, 65_535)
  return port
}

export function resolveConfig(options: BoxOptions, image: ImageSettings): BoxConfig {
  for (const name of Object.keys(options.env ?? {})) {
    if (name === '' || /[=\0]/.test(name))
      throw new BoxError('INVALID', `'${name}' cannot be the name of an environment variable`)
  }
  if (options.workdir !== undefined && !options.workdir.startsWith('/')) {
    throw new BoxError('INVALID', `the working directory '${options.workdir}' must be an absolute path in the guest`)
  }
  return {
    image: options.image ?? 'base',
    cpus: whole('the number of CPUs', options.cpus ?? 1, 1, MAX_CPUS),
    memoryMib: whole('the memory', options.memoryMib ?? 512, MIN_MEMORY_MIB, MAX_RAM_MIB, ' MiB'),
    diskGib: whole('the disk', options.diskGib ?? 10, 1, MAX_DISK_GIB, ' GiB'),
    env: { ...image.env, ...options.env },
    workdir: options.workdir ?? image.workdir,
    user: options.user ?? image.user,
    accel: options.accel ?? 'auto',
    network: options.network ?? 'full',
    ports: (options.ports ?? []).map(checkPort),
    command: options.command ? commandLine(image, options.command) : null,
    detach: options.detach ?? false,
    autoRemove: options.autoRemove ?? false,
    timeoutMs: whole('timeoutMs', options.timeoutMs ?? 0, 0, 2 ** 31 - 1),
    idleMs: whole('idleMs', options.idleMs ?? 0, 0, 2 ** 31 - 1),
  }
}
