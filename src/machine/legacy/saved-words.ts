/** Legacy devices save themselves as the words of their block; restoring checks every one. */
import { MachineError } from '../errors.ts'

export type SavedWords = readonly number[]

export const saveWords = (words: Int32Array): SavedWords => Array.from(words)

export function validWords(name: string, saved: unknown, count: number, valid: (value: number) => boolean): Int32Array {
  if (!Array.isArray(saved) || saved.length !== count) {
    throw new MachineError('BAD_SAVED_STATE', `the saved state of ${name} does not have ${count} words`)
  }
  const words = new Int32Array(count)
  saved.forEach((value: unknown, i) => {
    if (typeof value !== 'number' || !Number.isInteger(value) || !valid(value)) {
      throw new MachineError('BAD_SAVED_STATE', `word ${i} of the saved state of ${name} cannot be ${String(value)}`)
    }
    words[i] = value
  })
  return words
}
