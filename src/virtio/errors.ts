/** Errors of the virtio area. A guest's mistakes are `GuestFault`s, which never leave the transport. */

/** What a guest did wrong: the reasons for DEVICE_NEEDS_RESET, by name. Their order is part of the shared page. */
export const GUEST_FAULTS = [
  'none',
  'queue-size',
  'queue-alignment',
  'queue-not-in-ram',
  'avail-index',
  'descriptor-index',
  'descriptor-loop',
  'descriptor-length',
  'descriptor-address',
  'descriptor-order',
  'indirect-nested',
  'indirect-size',
  'indirect-unexpected',
  'request-shape',
  'device-error',
] as const

export type GuestFaultName = (typeof GUEST_FAULTS)[number]

/** Thrown by queues and devices, caught by the transport, which sets DEVICE_NEEDS_RESET and counts it. */
export class GuestFault extends Error {
  readonly code: GuestFaultName
  constructor(code: GuestFaultName, message: string) {
    super(message)
    this.name = 'GuestFault'
    this.code = code
  }
}

export type VirtioErrorCode = 'BAD_STATE' | 'BAD_DESCRIPTION' | 'WORKER_FAILED' | 'NOT_CONNECTED'

/** A mistake of the host's side: a snapshot that does not fit, a device description that cannot be met. */
export class VirtioError extends Error {
  readonly code: VirtioErrorCode
  constructor(code: VirtioErrorCode, message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'VirtioError'
    this.code = code
  }
}
