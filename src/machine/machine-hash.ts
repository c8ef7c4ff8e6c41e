/** One number for all that a guest can see of its CPUs and memory: two deterministic runs end with the same. */
import { createHash } from 'node:crypto'
import type { Machine } from './machine.ts'

/** SHA-256 of registers and RAM of a machine that does not run. */
export async function hashMachine(machine: Machine): Promise<string> {
  const hash = createHash('sha256')
  for (let index = 0; index < machine.cpus; index++) {
    const state = await machine.cpu(index).state()
    hash.update(
      JSON.stringify(state, (_key, value: unknown) => (typeof value === 'bigint' ? value.toString(16) : value)),
    )
  }
  for (const { offset, size } of machine.memory.regions)
    hash.update(machine.memory.bytes.subarray(offset, offset + size))
  return hash.digest('hex')
}
