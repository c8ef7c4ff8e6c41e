/**
 * What V8 makes of our code, kept for the processes and threads that start boxes: machine code of WebAssembly, bytecode of bundles. V8 takes
 * it only if its version and flags are those of the V8 that made it; else it compiles, as it would without. So for a nursery, which has flags of its
 * own, it is made by a process that has them too.
 */
import { spawnSync } from 'node:child_process'
import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { NURSERY_NODE_OPTIONS } from '../src/box/vmm/node-options.ts'
import { bytecodeOf } from './bytecode.ts'

const MAKER = fileURLToPath(new URL('precompile-one.ts', import.meta.url))

/** Writes the code of `path`, a module or a bundle, to `output`, as Node with these options makes it. */
function makeCode(path: string, output: string, options: readonly string[]): void {
  const { status } = spawnSync(process.execPath, [...options, '--import', 'tsx', MAKER, path, output], {
    stdio: 'inherit',
  })
  if (status !== 0) throw new Error(`${path} cannot be compiled (exit status ${status})`)
}

/** Writes `<name>.code` and, for a nursery, `<name>.forkable.code` beside `<name>.wasm`. */
export function precompileWasm(path: string): void {
  makeCode(path, path.replace(/wasm$/, 'code'), [])
  makeCode(path, path.replace(/wasm$/, 'forkable.code'), NURSERY_NODE_OPTIONS)
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

/** `before` is JavaScript to be run first. */
const loaderOf = (before: string): string => LOADER.replace("'use strict'\n", `'use strict'\n${before}`)

/** Makes those three of a bundle `NAME.cjs`. */
export function precompileBundle(path: string, before = ''): void {
  const bundle = path.replace(/cjs$/, 'bundle.js')
  const text = readFileSync(path, 'utf8').replace(/^#!.*/, '')
  rmSync(path)
  writeFileSync(bundle, text)
  const code = bundle.replace(/js$/, 'code')
  if (path.endsWith('nursery.process.cjs')) makeCode(bundle, code, NURSERY_NODE_OPTIONS)
  else writeFileSync(code, bytecodeOf(bundle))
  writeFileSync(path, loaderOf(before))
}
