/** What a network card counts. */
export const NET_COUNTERS = [
  'framesOut',
  'bytesOut',
  'framesIn',
  'bytesIn',
  'droppedOut',
  'droppedIn',
  'waits',
] as const
export const FRAMES_OUT = 0
export const BYTES_OUT = 1
export const FRAMES_IN = 2
export const BYTES_IN = 3
export const DROPPED_OUT = 4
export const DROPPED_IN = 5
export const WAITS = 6
