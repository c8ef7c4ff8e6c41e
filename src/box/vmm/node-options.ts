/** How Node.js is started for a VMM process. */
import { availableParallelism } from 'node:os'
import { FORKABLE_NODE_OPTIONS } from '../../host/forkable.ts'

/** What Node.js has by default. */
const V8_THREADS = 4

/**
 * V8 compiles hot code, of the software CPU above all, in threads of its own: more of them than there are cores would take their time from
 * the vCPUs'.
 */
export const VMM_NODE_OPTIONS: readonly string[] = [`--v8-pool-size=${Math.min(V8_THREADS, availableParallelism())}`]

/** And for a nursery. */
export const NURSERY_NODE_OPTIONS: readonly string[] = [...FORKABLE_NODE_OPTIONS, '--max-semi-space-size=1']
