/** What is alive, for tests that bound memory: V8's garbage comes and goes as it likes. */
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

setFlagsFromString('--expose-gc')
/** Collects all garbage, at once. */
export const collectGarbage = runInNewContext('gc') as () => void

/** Bytes that are reachable: objects and the contents of buffers. */
export function liveBytes(): number {
  collectGarbage()
  collectGarbage()
  const { heapUsed, arrayBuffers } = process.memoryUsage()
  return heapUsed + arrayBuffers
}
