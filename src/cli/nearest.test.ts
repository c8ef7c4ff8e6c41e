import { expect, it } from 'vitest'
import { nearest } from './nearest.ts'

it.each<[string, string | undefined]>([
  ['rnu', 'run'],
  ['runn', 'run'],
  ['exce', 'exec'],
  ['snapshto', 'snapshot'],
  ['snap', 'snapshot'],
  ['memroy', 'memory'],
  ['sp', 'ps'],
  ['dockerize', undefined],
  ['x', undefined],
  ['', undefined],
])("'%s' is probably %s", (word, meant) => {
  expect(nearest(word, ['run', 'exec', 'ps', 'snapshot', 'memory', 'doctor', 'cp'])).toBe(meant)
})
