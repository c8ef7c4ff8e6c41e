/** What a VMM needs and loads only when it is first used: done while there is nothing else to do. */

import cluster from 'node:cluster'
import { createHash } from 'node:crypto'
import { createSocket } from 'node:dgram'
import { existsSync } from 'node:fs'
import { Socket } from 'node:net'
import { loadAccelerator } from '../../accel/select.ts'
import { defaultHome } from '../../image/kernel/cache.ts'
import { snapshotModule } from '../../snapshot/wasm.ts'
import { noKvmNote } from '../home.ts'

/** Modules of Node stand for what is loaded when something of them is looked at (scripts/build.ts). Servers need `cluster`. Returned, so that it counts as used. */
export const loadEarly = (): readonly unknown[] => [
  cluster.isPrimary,
  createHash,
  createSocket,
  Socket,
  performance.now(),
]

/** What a machine on the software CPU that goes on from a snapshot needs of our own. */
export async function loadSoft(): Promise<void> {
  snapshotModule()
  const [{ prepareCpu }] = await Promise.all([
    import('../../soft/vcpu.ts'),
    loadAccelerator('soft'),
    import('../../soft/lockstep.ts'),
    import('../../soft/interrupt.ts'),
  ])
  prepareCpu()
}

/** Does so where machines have had no other CPU: nobody has said yet what is to be started. A mistake costs 3 ms. */
export function loadSoftEarly(): void {
  // Who starts the machine hears of a failure.
  if (existsSync(noKvmNote(defaultHome()))) loadSoft().catch(() => {})
}
