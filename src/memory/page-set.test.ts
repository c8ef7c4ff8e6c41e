import { expect, it } from 'vitest'
import { addPages, countPages, eachRun, emptyPages } from './page-set.ts'

function runs(pages: number, set: readonly number[], longest: number): [number, number][] {
  const bits = emptyPages(pages)
  for (const page of set) bits[page >>> 5]! |= 1 << (page & 31)
  const found: [number, number][] = []
  eachRun(bits, pages, longest, (first, count) => found.push([first, count]))
  return found
}

it('visits runs in order, cut to the longest piece', () => {
  expect(runs(100, [], 8)).toEqual([])
  expect(runs(100, [0, 1, 2, 31, 32, 33, 99], 8)).toEqual([
    [0, 3],
    [31, 3],
    [99, 1],
  ])
  expect(runs(96, [64, 65, 66, 67, 68], 2)).toEqual([
    [64, 2],
    [66, 2],
    [68, 1],
  ])
  expect(runs(33, [...Array(33).keys()], 1000)).toEqual([[0, 33]])
})

it('finds the same pages as a plain loop, whatever the set', () => {
  let seed = 7
  const random = (): number => {
    seed = (seed * 1_103_515_245 + 12_345) & 0x7fff_ffff
    return seed / 0x8000_0000
  }
  for (let round = 0; round < 50; round++) {
    const pages = 1 + Math.floor(random() * 400)
    const density = random()
    const set = [...Array(pages).keys()].filter(() => random() < density)
    const longest = 1 + Math.floor(random() * 40)
    const visited = runs(pages, set, longest).flatMap(([first, count]) => {
      expect(count).toBeLessThanOrEqual(longest)
      return [...Array(count).keys()].map(i => first + i)
    })
    expect(visited).toEqual(set)
  }
})

it('joins and counts', () => {
  const [a, b] = [emptyPages(64), emptyPages(64)]
  a[0] = 0x8000_0001
  b[1] = 3
  addPages(a, b)
  expect(countPages(a)).toBe(4)
})
