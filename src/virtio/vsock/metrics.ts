/** What a vsock device counts. */
export const VSOCK_COUNTERS = [
  'connections',
  'opened',
  'refused',
  'resets',
  'bytesToHost',
  'bytesToGuest',
  'packetsToHost',
  'packetsToGuest',
  'badPackets',
  'bufferedBytes',
  'timedOut',
] as const
export const CONNECTIONS = 0
export const OPENED = 1
export const REFUSED = 2
export const RESETS = 3
export const BYTES_TO_HOST = 4
export const BYTES_TO_GUEST = 5
export const PACKETS_TO_HOST = 6
export const PACKETS_TO_GUEST = 7
export const BAD_PACKETS = 8
export const BUFFERED_BYTES = 9
export const TIMED_OUT = 10
