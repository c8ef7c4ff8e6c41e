/**
 * Makes, runs and closes machines with a micro-guest, and looks for what they left behind. How many is told by the caller,
 * or by VITRINE_CYCLES.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { expect, it } from 'vitest'
import type { AcceleratorName } from '../../src/accel/contract.ts'
import { collectGarbage } from '../../src/host/testing/garbage.ts'
import { Machine } from '../../src/machine/machine.ts'
import { HELLO } from '../../src/machine/micro-programs.ts'

/** Before counting starts: caches fill, threads of libuv's pool start. */
const WARM_UP = 3
/** V8's heap breathes by some MiB, and grows with code that gets compiled; a machine that stayed would take some MiB each. */
const BREATH_MIB = 40
const MIB_A_MACHINE = 0.5
/** Once code is compiled and garbage is gone, the second half of the machines adds next to nothing: a leak of a page table would show. */
const SECOND_HALF_MIB = 6
/** What V8 reserves for a shared WebAssembly memory, whatever its size: address space, not pages. */
const RESERVED_GIB = 10
/** Collected memories whose address space V8 has not yet given back. */
const LATE_MEMORIES = 3

async function cycle(accel: AcceleratorName): Promise<void> {
  const machine = await Machine.create({ accel, program: HELLO, memoryMib: 4 })
  machine.start()
  expect(await machine.ended()).toEqual({ reason: 'power-off' })
  await machine.close()
}

const count = (folder: string): number => readdirSync(`/proc/self/${folder}`).length

function status(name: 'VmRSS' | 'VmSize'): number {
  return Number(new RegExp(`${name}:\\s+(\\d+) kB`).exec(readFileSync('/proc/self/status', 'utf8'))![1])
}

async function withoutGarbage(name: 'VmRSS' | 'VmSize'): Promise<number> {
  for (let i = 0; i < 3; i++) {
    collectGarbage()
    await sleep(20)
  }
  return status(name)
}

export function machineCycleTest(accel: AcceleratorName, usual: number, limitMs: number): void {
  const cycles = Number(process.env.VITRINE_CYCLES || usual)
  it(
    `${cycles} machines leave no descriptor, no thread and no memory`,
    async () => {
      const sizeBefore = await withoutGarbage('VmSize')
      for (let i = 0; i < WARM_UP; i++) await cycle(accel)
      const before = [count('fd'), count('task')]
      const residentBefore = status('VmRSS')
      const half = Math.floor(cycles / 2)
      for (let i = 0; i < half; i++) await cycle(accel)
      const residentHalfWay = await withoutGarbage('VmRSS')
      for (let i = half; i < cycles; i++) await cycle(accel)
      expect([count('fd'), count('task')]).toEqual(before)
      // Pages go with the machine, not when V8 collects garbage.
      expect((status('VmRSS') - residentBefore) / 1024).toBeLessThan(BREATH_MIB + cycles * MIB_A_MACHINE)
      expect(((await withoutGarbage('VmRSS')) - residentHalfWay) / 1024).toBeLessThan(SECOND_HALF_MIB)
      // Address space does go with the garbage; that it goes shows that nothing refers to a closed machine.
      const reserved = (await withoutGarbage('VmSize')) - sizeBefore
      expect(reserved / 2 ** 20).toBeLessThan((LATE_MEMORIES + 0.5) * RESERVED_GIB)
    },
    (limitMs * Math.max(cycles, usual)) / usual,
  )
}
