/** The bytecode of a bundle, as the loader that `precompile.ts` writes takes it in. */
import { readFileSync } from 'node:fs'
import { setFlagsFromString } from 'node:v8'
import { Script } from 'node:vm'

/** Of what runs when it is loaded, or of `all` functions: V8 leaves the others for when they are first called. */
export function bytecodeOf(bundle: string, all = false): Uint8Array {
  const source = readFileSync(bundle, 'latin1')
  // V8 would not take in what was written with another setting than it has then.
  if (all) setFlagsFromString('--no-lazy')
  const script = new Script(source, { filename: bundle })
  if (all) setFlagsFromString('--lazy')
  return script.createCachedData()
}
