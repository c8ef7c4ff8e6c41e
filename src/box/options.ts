/** What a caller may say about a new box, and what is taken where it says nothing. */
import { resolve } from 'node:path'
import { MAX_RAM_MIB } from '../memory/layout.ts'
import type { Bandwidth } from '../net/description.ts'
import { NetError } from '../net/errors.ts'
import { checkPolicy } from '../net/policy.ts'
import { BoxError } from './errors.ts'
import type { BoxConfig, NetworkPolicy, PortMapping } from './record.ts'

/** What `Box.create` is told. All of it is optional. */
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
  /** Added to the image's environment, for every command. */
  readonly env?: Readonly<Record<string, string>>
  /** What a command is given to: instead of the image's entrypoint, and of its own command. */
  readonly entrypoint?: readonly string[]
  /** Where commands start: the image's, else the user's home directory. */
  readonly workdir?: string
  /** Who commands run as: the image's, else root. */
  readonly user?: string
  /** What runs it: the best that works here unless told. */
  readonly accel?: BoxConfig['accel']
  /** What it may reach: everything unless told. */
  readonly network?: NetworkPolicy
  /** Host ports that lead into it, bound to 127.0.0.1 unless told. */
  readonly ports?: readonly PortMapping[]
  /** Named networks to be in: the boxes of one reach each other by name. They must exist. */
  readonly networks?: readonly string[]
  /** Bytes a second; no limit where nothing is said. */
  readonly bandwidth?: Bandwidth
  /** A file for all that the guest sends and receives, as tshark reads it; a new one at each start. */
  readonly pcap?: string
  /**
   * Run at every start, its output in the box's log; the box stops when it and whatever else runs in it have ended. Given to the image's entrypoint, if it has
   * one; empty: the image's own command, unless that is just a shell. Absent: nothing is run, the box waits for `exec`.
   */
  readonly command?: readonly string[]
  /** The box lives on when this process ends, and any process can attach to it. */
  readonly detach?: boolean
  /** The box is removed when it stops. */
  readonly autoRemove?: boolean
  /** The box is stopped this long after its start. */
  readonly timeoutMs?: number
  /** The box is stopped after this long without a connection to it. */
  readonly idleMs?: number
  /** What happens to a box that nobody used for `idleMs`: 'stop' (the default), or 'pause', until it is used again. */
  readonly onIdle?: 'stop' | 'pause'
  /** False: boot, instead of going on from a snapshot of a freshly booted guest, and leave no such snapshot. */
  readonly template?: boolean
}

/** What the image says about its commands. */
export interface ImageSettings {
  readonly env: Readonly<Record<string, string>>
  readonly workdir: string
  readonly user: string
  readonly entrypoint: readonly string[]
  readonly cmd: readonly string[]
}

/** The image's settings with an entrypoint of the caller's; the image's command was for the one that it had. */
export function withEntrypoint<T extends ImageSettings>(image: T, entrypoint: readonly string[] | undefined): T {
  return entrypoint === undefined ? image : { ...image, entrypoint, cmd: [] }
}

/** What `run` starts: the image's entrypoint with these arguments, or with its own; a shell where it says nothing. */
export function commandLine(
  image: Pick<ImageSettings, 'entrypoint' | 'cmd'>,
  args: readonly string[],
): readonly string[] {
  const line = [...image.entrypoint, ...(args.length > 0 ? args : image.cmd)]
  return line.length > 0 ? line : ['/bin/sh']
}

/**
 * What a box is to run as its own: an image whose command is just a shell has nothing of its own to run, and a shell without input would
 * end at once, and the box with it.
 */
function ownCommand(image: ImageSettings, args: readonly string[] | undefined): readonly string[] | null {
  if (args === undefined) return null
  const line = commandLine(image, args)
  return args.length === 0 && line.length === 1 && /(^|\/)[a-z]*sh$/.test(line[0]!) ? null : line
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
  whole('a range of ports', port.range ?? 1, 1, 1024)
  return port
}

/** Rules are read when the box is made, so that a mistake in them is not found at its first start. */
function checkedPolicy(policy: NetworkPolicy): NetworkPolicy {
  try {
    checkPolicy(policy)
    return policy
  } catch (error) {
    if (!(error instanceof NetError)) throw error
    throw new BoxError(error.code, error.message, { cause: error })
  }
}

function checkedBandwidth(bandwidth: Bandwidth): Bandwidth {
  for (const rate of [bandwidth.fromGuest, bandwidth.toGuest]) {
    if (rate !== undefined) whole('a bandwidth', rate, 1024, Number.MAX_SAFE_INTEGER, ' bytes a second')
  }
  return bandwidth
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
    network: checkedPolicy(options.network ?? 'full'),
    ports: (options.ports ?? []).map(checkPort),
    networks: options.networks ?? [],
    ...(options.bandwidth === undefined ? {} : { bandwidth: checkedBandwidth(options.bandwidth) }),
    ...(options.pcap === undefined ? {} : { pcap: resolve(options.pcap) }),
    command: ownCommand(image, options.command),
    detach: options.detach ?? false,
    autoRemove: options.autoRemove ?? false,
    timeoutMs: whole('timeoutMs', options.timeoutMs ?? 0, 0, 2 ** 31 - 1),
    idleMs: whole('idleMs', options.idleMs ?? 0, 0, 2 ** 31 - 1),
    ...(options.onIdle ? { onIdle: options.onIdle } : {}),
    ...(options.template === false ? { template: false } : {}),
  }
}
