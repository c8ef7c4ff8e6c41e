/** A block device keeps nothing between requests. Its size is saved to notice that another disk is in its place. */
import type { SavedValue } from '../device.ts'
import { VirtioError } from '../errors.ts'
import { integerOf, recordOf } from '../saved.ts'

const VERSION = 1

export const saveBlk = (capacity: number): SavedValue => ({ version: VERSION, capacity })

export function restoreBlk(state: SavedValue, capacity: number): void {
  const saved = recordOf(state, 'the block device')
  integerOf(saved.version, "the block device's version", VERSION, VERSION)
  const before = integerOf(saved.capacity, "the disk's size", 0, Number.MAX_SAFE_INTEGER)
  if (before !== capacity) {
    throw new VirtioError(
      'BAD_STATE',
      `the disk had ${before} sectors when the machine was saved and has ${capacity} now: give it the disk of the snapshot`,
    )
  }
}
