/** What can be wrong with compressed data. */
import { MachineError } from '../../errors.ts'

export const corrupt = (format: string, detail: string): MachineError =>
  new MachineError('BAD_COMPRESSION', `the ${format} data is corrupt: ${detail}; fetch or build the kernel again`)

export const tooLarge = (format: string, limit: number): MachineError =>
  new MachineError(
    'BAD_COMPRESSION',
    `the ${format} data decompresses to more than the ${limit} bytes that are allowed`,
  )
