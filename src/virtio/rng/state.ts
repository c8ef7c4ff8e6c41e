/** The entropy device keeps nothing between requests, and must not: two clones of a snapshot get different bytes. */
import type { SavedValue } from '../device.ts'
import { integerOf, recordOf } from '../saved.ts'

const VERSION = 1

export const saveRng = (): SavedValue => ({ version: VERSION })

export function restoreRng(state: SavedValue): void {
  integerOf(recordOf(state, 'the entropy device').version, "the entropy device's version", VERSION, VERSION)
}
