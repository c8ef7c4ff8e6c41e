/** The exports of the CPU module. */
export { setCpu } from './cpu'
export { readSlow, writeSlow } from './memory-slow'
export { flushTlbAll, flushTlbLocal, flushTlbPage } from './tlb'
export { execX87 } from './x87'
export { execVector } from './sse'
