/** What a block device counts. */
export const BLK_COUNTERS = [
  'reads',
  'readBytes',
  'writes',
  'writtenBytes',
  'flushes',
  'discards',
  'writeZeroes',
  'ioErrors',
  'unsupported',
] as const
export const READS = 0
export const READ_BYTES = 1
export const WRITES = 2
export const WRITTEN_BYTES = 3
export const FLUSHES = 4
export const DISCARDS = 5
export const WRITE_ZEROES = 6
export const IO_ERRORS = 7
export const UNSUPPORTED = 8
