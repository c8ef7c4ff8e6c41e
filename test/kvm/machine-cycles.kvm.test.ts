/** A hundred machines, one after the other: nothing of them stays. */
import { readdirSync, readFileSync } from 'node:fs'
import { expect, it } from 'vitest'
import { Machine } from '../../src/machine/machine.ts'
import { HELLO } from '../../src/machine/micro-programs.ts'

const CYCLES = 100

async function cycle(): Promise<void> {
  const machine = await Machine.create({ accel: 'kvm', program: HELLO, memoryMib: 4 })
  machine.start()
  expect(await machine.ended()).toEqual({ reason: 'power-off' })
  await machine.close()
}

const count = (folder: string): number => readdirSync(`/proc/self/${folder}`).length
const residentMib = (): number => Number(/VmRSS:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))![1]) / 1024

it(`${CYCLES} machines leave no descriptor, no thread and no memory`, async () => {
  for (let i = 0; i < 10; i++) await cycle()
  const before = [count('fd'), count('task')]
  const residentBefore = residentMib()
  for (let i = 0; i < CYCLES; i++) await cycle()
  expect([count('fd'), count('task')]).toEqual(before)
  // V8's heap breathes by some MiB; a leak of a machine would be a hundred times a worker's several.
  expect(residentMib() - residentBefore).toBeLessThan(100)
}, 300_000)
