/** Reading saved state back with suspicion: a snapshot file is input like any other. */
import type { SavedValue } from './device.ts'
import { VirtioError } from './errors.ts'

const fail = (what: string, expected: string): never => {
  throw new VirtioError('BAD_STATE', `the saved state is damaged: ${what} is not ${expected}. Take the snapshot again.`)
}

export function recordOf(value: SavedValue | undefined, what: string): { readonly [key: string]: SavedValue } {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return fail(what, 'a record')
  return value as { readonly [key: string]: SavedValue }
}

export function integerOf(value: SavedValue | undefined, what: string, min: number, max: number): number {
  if (typeof value !== 'number' || !Number.isInteger(value) || value < min || value > max) {
    return fail(what, min === max ? String(min) : `a whole number from ${min} to ${max}`)
  }
  return value
}

/** `length` absent: any up to `max`. */
export function listOf(
  value: SavedValue | undefined,
  what: string,
  length?: number,
  max = 65536,
): readonly SavedValue[] {
  if (!Array.isArray(value) || value.length > max || (length !== undefined && value.length !== length)) {
    return fail(what, length === undefined ? `a list of up to ${max}` : `a list of ${length}`)
  }
  return value as readonly SavedValue[]
}

export function booleanOf(value: SavedValue | undefined, what: string): boolean {
  return typeof value === 'boolean' ? value : fail(what, 'true or false')
}
