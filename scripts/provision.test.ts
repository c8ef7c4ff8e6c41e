/** What `npm test` says when it may not install packages. */
import { expect, it } from 'vitest'
import { provision } from './provision.ts'

const PACKAGES = [
  { name: 'coreutils', file: process.execPath, reason: 'is there' },
  { name: 'one', file: '/nowhere/one', reason: 'the first thing' },
  { name: 'two', file: '/nowhere/two', reason: 'the second thing' },
]

it('says exactly what to install, and why, to a user who may not install it', () => {
  const said: string[] = []
  const left = provision(message => said.push(message), PACKAGES, false)
  expect(left.map(({ name }) => name)).toEqual(['one', 'two'])
  expect(said).toEqual([
    'not installed, so the tests that need them are skipped:',
    '  one: the first thing',
    '  two: the second thing',
    'to install them: sudo apt-get install one two',
  ])
})

it('is silent when everything is there', () => {
  const said: string[] = []
  expect(provision(message => said.push(message), PACKAGES.slice(0, 1), false)).toEqual([])
  expect(said).toEqual([])
})
