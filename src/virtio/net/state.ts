/** A card keeps nothing between frames but whether its cable is in, and what its link keeps. Frames under way are lost, as on any network. */
import type { SavedValue } from '../device.ts'
import { booleanOf, integerOf, recordOf } from '../saved.ts'

const VERSION = 1

export const saveNet = (up: boolean, link: SavedValue | undefined): SavedValue => ({
  version: VERSION,
  up,
  ...(link === undefined ? {} : { link }),
})

export function restoreNet(state: SavedValue): { readonly up: boolean; readonly link: SavedValue | undefined } {
  const saved = recordOf(state, 'the network card')
  integerOf(saved.version, "the network card's version", VERSION, VERSION)
  return { up: booleanOf(saved.up, 'whether the link is up'), link: saved.link }
}
