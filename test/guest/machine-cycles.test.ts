/** Machines one after the other on each accelerator that is here: a hundred where they cost little, or as VITRINE_CYCLES says. */
import { describe } from 'vitest'
import type { AcceleratorName } from '../../src/accel/contract.ts'
import { acceleratorNames, loadAccelerator } from '../../src/accel/select.ts'
import { machineCycleTest } from '../boot/machine-cycles.ts'

const available: AcceleratorName[] = []
for (const name of acceleratorNames()) {
  if ((await (await loadAccelerator(name)).probe()).runsMicroGuests) available.push(name)
}

describe.each(available)('on %s', accel => machineCycleTest(accel, accel === 'soft' ? 25 : 100, 400_000))
