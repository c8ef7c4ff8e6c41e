/** A card keeps nothing between frames but whether its cable is in. Frames under way are lost, as on any network. */
import type { SavedValue } from '../device.ts'
import { booleanOf, integerOf, recordOf } from '../saved.ts'

const VERSION = 1

export const saveNet = (up: boolean): SavedValue => ({ version: VERSION, up })

export function restoreNet(state: SavedValue): boolean {
  const saved = recordOf(state, 'the network card')
  integerOf(saved.version, "the network card's version", VERSION, VERSION)
  return booleanOf(saved.up, 'whether the link is up')
}
