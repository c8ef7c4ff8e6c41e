/**
 * Snapshots and forks of a busy guest on the software CPU. A few in `npm test`; `VITRINE_SNAPSHOT_ROUNDS=50 VITRINE_FORKS=100` for all.
 */
import { Runtime } from '../../src/box/runtime.ts'
import { snapshotTests } from '../snapshot/under-load.ts'

snapshotTests(new Runtime({ defaults: { accel: 'soft' } }), { rounds: 2, forks: 3, limitMs: 90_000 })
