/**
 * Devices as plain values, so that a machine can describe what a worker is to make. What a device stands on (a disk
 * image, a network) is opened in the worker by `Backends`, which whoever knows the engines composes.
 */
import type { BlockBackend } from '../blk/backend.ts'
import { BlkDevice } from '../blk/device.ts'
import type { VirtioDevice } from '../device.ts'
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

export interface BlkDescription {
  readonly kind: 'blk'
  readonly disk: DiskDescription
  readonly serial?: string
  readonly queues?: number
}

export interface RngDescription {
  readonly kind: 'rng'
}

export interface VsockDescription extends VsockOptions {
  readonly kind: 'vsock'
}

export type DeviceDescription = BlkDescription | RngDescription | VsockDescription

export interface Backends {
  disk(description: DiskDescription): BlockBackend
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
  }
}

export function makeDevice(description: DeviceDescription, backends: Backends): VirtioDevice {
  switch (description.kind) {
    case 'blk':
      return new BlkDevice(backends.disk(description.disk), description)
    case 'rng':
      return new RngDevice()
    case 'vsock':
      return new VsockDevice(description)
  }
}
