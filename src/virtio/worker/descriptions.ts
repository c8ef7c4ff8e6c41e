/**
 * Devices as plain values, so that a machine can describe what a worker is to make. What a device stands on (a disk
 * image, a network) is opened in the worker by `Backends`, which whoever knows the engines composes.
 */
import type { BalloonOptions } from '../balloon/config.ts'
import { BalloonDevice } from '../balloon/device.ts'
import type { BlockBackend } from '../blk/backend.ts'
import type { BlkOptions } from '../blk/config.ts'
import { BlkDevice } from '../blk/device.ts'
import { HeldDisk } from '../blk/held-disk.ts'
import type { ConsoleOptions } from '../console/config.ts'
import { ConsoleDevice } from '../console/device.ts'
import type { SavedValue, VirtioDevice } from '../device.ts'
import { VirtioError } from '../errors.ts'
import type { NetOptions } from '../net/config.ts'
import { NetDevice } from '../net/device.ts'
import type { FrameLink } from '../net/link.ts'
import { LoopbackLink } from '../net/loopback.ts'
import { RngDevice } from '../rng/device.ts'
import type { VsockOptions } from '../vsock/config.ts'
import { VsockDevice } from '../vsock/device.ts'

export interface DiskDescription {
  readonly path: string
  readonly format: 'raw' | 'qcow2'
  readonly readOnly?: boolean
  /** Where the backing files of a QCOW2 image may be; its own folder unless told. */
  readonly backingFolders?: readonly string[] | 'any'
}

/** 'loopback' is made here; every other kind is for `Backends`. */
export interface LinkDescription {
  readonly kind: string
  readonly options?: SavedValue
}

export type DeviceDescription =
  | ({ readonly kind: 'blk'; readonly disk: DiskDescription } & BlkOptions)
  | { readonly kind: 'rng' }
  | ({ readonly kind: 'vsock' } & VsockOptions)
  | ({ readonly kind: 'console' } & ConsoleOptions)
  | ({ readonly kind: 'net'; readonly link: LinkDescription } & NetOptions)
  | ({ readonly kind: 'balloon' } & BalloonOptions)

export interface Backends {
  disk(description: DiskDescription): BlockBackend
  /** Undefined: there is no such kind. */
  link?(description: LinkDescription): FrameLink | undefined
}

/** How many queues, and so how many doorbells, a described device has. */
export function queueCount(description: DeviceDescription): number {
  switch (description.kind) {
    case 'blk':
      return description.queues ?? 1
    case 'rng':
      return 1
    case 'vsock':
      return 3
    case 'console':
    case 'net':
      return 2
    case 'balloon':
      return 4
  }
}

export function makeDevice(description: DeviceDescription, backends: Backends): VirtioDevice {
  switch (description.kind) {
    case 'blk':
      return new BlkDevice(new HeldDisk(() => backends.disk(description.disk)), description)
    case 'rng':
      return new RngDevice()
    case 'vsock':
      return new VsockDevice(description)
    case 'console':
      return new ConsoleDevice(description)
    case 'net':
      return new NetDevice(makeLink(description.link, backends), description)
    case 'balloon':
      return new BalloonDevice(description)
  }
}

function makeLink(description: LinkDescription, backends: Backends): FrameLink {
  if (description.kind === 'loopback') return new LoopbackLink()
  const link = backends.link?.(description)
  if (link === undefined) {
    throw new VirtioError('BAD_DESCRIPTION', `there is no network of the kind '${description.kind}' here`)
  }
  return link
}
