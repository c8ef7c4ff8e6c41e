/** A balloon's state is what it was asked for; how much of that it has, the driver keeps in the configuration space. */
import type { SavedValue } from '../device.ts'
import { integerOf, recordOf } from '../saved.ts'

const VERSION = 1

export const saveBalloon = (targetPages: number): SavedValue => ({ version: VERSION, targetPages })

export function restoreBalloon(state: SavedValue): number {
  const saved = recordOf(state, 'the balloon')
  integerOf(saved.version, "the balloon's version", VERSION, VERSION)
  return integerOf(saved.targetPages, "the balloon's target", 0, 0xffff_ffff)
}
