/** A console's state is its size, and how much of the oldest output buffer is already out. */
import type { SavedValue } from '../device.ts'
import { integerOf, recordOf } from '../saved.ts'

const VERSION = 1

export interface ConsoleState {
  readonly columns: number
  readonly rows: number
  readonly done: number
}

export const saveConsole = ({ columns, rows, done }: ConsoleState): SavedValue => ({
  version: VERSION,
  columns,
  rows,
  done,
})

export function restoreConsole(state: SavedValue): ConsoleState {
  const saved = recordOf(state, 'the console')
  integerOf(saved.version, "the console's version", VERSION, VERSION)
  return {
    columns: integerOf(saved.columns, "the console's width", 0, 0xffff),
    rows: integerOf(saved.rows, "the console's height", 0, 0xffff),
    done: integerOf(saved.done, "the console's output position", 0, 0xffff_ffff),
  }
}
