/** The bytecode of a bundle, as the loader that `precompile.ts` writes takes it in. */
import { readFileSync } from 'node:fs'
import { Script } from 'node:vm'

export function bytecodeOf(bundle: string): Uint8Array {
  const text = readFileSync(bundle, 'utf8')
  const source = `(function (exports, require, module, __filename, __dirname) {${text}\n})`
  return new Script(source, { filename: bundle }).createCachedData()
}
