import { expect, it } from 'vitest'
import { inParallel } from './in-parallel.ts'

const later = (): Promise<void> => new Promise(resolve => setTimeout(resolve, 1))

it('does everything once, and no more than so many at a time', async () => {
  const done: number[] = []
  let [now, most] = [0, 0]
  await inParallel([...Array(20).keys()], 3, async item => {
    most = Math.max(most, ++now)
    await later()
    now--
    done.push(item)
  })
  expect(done.sort((a, b) => a - b)).toEqual([...Array(20).keys()])
  expect(most).toBe(3)
  await inParallel([], 3, later)
})

it('begins nothing after a failure, and waits for what was begun', async () => {
  const ended: number[] = []
  const work = inParallel([0, 1, 2, 3, 4, 5], 2, async item => {
    await later()
    if (item === 2) throw new Error('two')
    await later()
    ended.push(item)
  })
  await expect(work).rejects.toThrow('two')
  expect(ended).toEqual([0, 1, 3])
})
