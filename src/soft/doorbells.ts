/** Doorbells in shared memory: the machine's thread adds them, vCPUs look writes up in them and signal the eventfd. */
import { SoftError } from './errors.ts'
import { DOORBELLS_BASE, MAX_DOORBELLS } from './layout.ts'

const ENTRIES = DOORBELLS_BASE + 16
const ENTRY = 16
/** Marks a free entry: no guest address is negative. */
const FREE = -1

export interface DoorbellTable {
  /** The descriptor to signal for a 32-bit write of `value` to `address`, or -1. */
  find(address: number, value: number): number
  add(address: number, match: number, fd: number): void
  remove(address: number, match: number): void
}

export function openDoorbells(view: DataView): DoorbellTable {
  const count = (): number => view.getUint32(DOORBELLS_BASE, true)
  const at = (index: number): number => ENTRIES + index * ENTRY
  const indexOf = (address: number, match: number): number => {
    for (let index = count() - 1; index >= 0; index--) {
      if (view.getFloat64(at(index), true) === address && view.getUint32(at(index) + 8, true) === match) return index
    }
    return -1
  }
  return {
    find: (address, value) => {
      const index = indexOf(address, value)
      return index < 0 ? -1 : view.getInt32(at(index) + 12, true)
    },
    add: (address, match, fd) => {
      let index = 0
      while (index < count() && view.getFloat64(at(index), true) !== FREE) index++
      if (index >= MAX_DOORBELLS) throw new SoftError('TOO_MANY', `a machine has at most ${MAX_DOORBELLS} doorbells`)
      view.setInt32(at(index) + 12, fd, true)
      view.setUint32(at(index) + 8, match, true)
      view.setFloat64(at(index), address, true)
      if (index === count()) view.setUint32(DOORBELLS_BASE, index + 1, true)
    },
    remove: (address, match) => {
      const index = indexOf(address, match)
      if (index >= 0) view.setFloat64(at(index), FREE, true)
    },
  }
}
