/**
 * What V8 makes of our code, kept for the processes and threads that start boxes: machine code of WebAssembly, bytecode of bundles. V8 takes
 * it only if its version and flags are those of the V8 that made it; else it compiles, as it would without.
 */
import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { Script } from 'node:vm'
import { nativeCodeOf } from '../src/wasm/native-code.ts'

/** Writes `<name>.code` beside `<name>.wasm`. */
export function precompileWasm(path: string): void {
  const code = nativeCodeOf(readFileSync(path))
  if (code) writeFileSync(path.replace(/\.wasm$/, '.code'), code)
}

/** Loads a bundle with its bytecode: `NAME.cjs` for `NAME.bundle.js` and `NAME.bundle.code`. */
const LOADER = `#!/usr/bin/env node
'use strict'
const { existsSync, readFileSync } = require('node:fs')
const { Script } = require('node:vm')
const filename = __filename.replace(/cjs$/, 'bundle.js')
const code = filename.replace(/js$/, 'code')
const source = '(function (exports, require, module, __filename, __dirname) {' + readFileSync(filename, 'utf8') + '\\n})'
const script = new Script(source, { filename, ...(existsSync(code) ? { cachedData: readFileSync(code) } : {}) })
script.runInThisContext()(exports, require, module, __filename, __dirname)
`

/** Makes those three of a bundle `NAME.cjs`. */
export function precompileBundle(path: string): void {
  const bundle = path.replace(/cjs$/, 'bundle.js')
  const text = readFileSync(path, 'utf8').replace(/^#!.*/, '')
  rmSync(path)
  writeFileSync(bundle, text)
  const source = `(function (exports, require, module, __filename, __dirname) {${text}\n})`
  writeFileSync(bundle.replace(/js$/, 'code'), new Script(source, { filename: bundle }).createCachedData())
  writeFileSync(path, LOADER)
}
