/** What a console counts. */
export const CONSOLE_COUNTERS = ['bytesIn', 'bytesOut', 'droppedBytes', 'resizes'] as const
export const BYTES_IN = 0
export const BYTES_OUT = 1
export const DROPPED_BYTES = 2
export const RESIZES = 3
