/** Makes, runs and closes machines with a micro-guest, and looks for what they left behind. */
import { readdirSync, readFileSync } from 'node:fs'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { expect, it } from 'vitest'
import type { AcceleratorName } from '../../src/accel/contract.ts'
import { Machine } from '../../src/machine/machine.ts'
import { HELLO } from '../../src/machine/micro-programs.ts'

/** Before counting starts: caches fill, threads of libuv's pool start. */
const WARM_UP = 3
/** V8's heap breathes by some MiB; machines that stayed would take several each. */
const ALLOWED_MIB_A_MACHINE = 1

/** A machine's memory goes when V8 collects it, which under no pressure it need not do for a long time. */
setFlagsFromString('--expose-gc')
const collectGarbage = runInNewContext('gc') as () => void

async function cycle(accel: AcceleratorName): Promise<void> {
  const machine = await Machine.create({ accel, program: HELLO, memoryMib: 4 })
  machine.start()
  expect(await machine.ended()).toEqual({ reason: 'power-off' })
  await machine.close()
  collectGarbage()
}

const count = (folder: string): number => readdirSync(`/proc/self/${folder}`).length
const residentMib = (): number => Number(/VmRSS:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))![1]) / 1024

export function machineCycleTest(accel: AcceleratorName, cycles: number, limitMs: number): void {
  it(
    `${cycles} machines leave no descriptor, no thread and no memory`,
    async () => {
      for (let i = 0; i < WARM_UP; i++) await cycle(accel)
      const before = [count('fd'), count('task')]
      const residentBefore = residentMib()
      for (let i = 0; i < cycles; i++) await cycle(accel)
      expect([count('fd'), count('task')]).toEqual(before)
      expect(residentMib() - residentBefore).toBeLessThan(40 + cycles * ALLOWED_MIB_A_MACHINE)
    },
    limitMs,
  )
}
