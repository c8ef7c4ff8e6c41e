/**
 * What V8 makes of our code, kept for the processes and threads that start boxes: machine code of WebAssembly, bytecode of bundles. V8 takes
 * it only if its version and flags are those of the V8 that made it; else it compiles, as it would without. So for a nursery, which has flags of its
 * own, it is made by a process that has them too.
 */
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
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

/** A program whose start somebody waits for: what V8 compiled when it was used is kept in the home (src/host/kept-code.ts) under a name of its own. */
export interface KeptProgram {
  /** An expression: text, or undefined where nothing is kept. */
  readonly name: string
}

/**
 * Loads a bundle with bytecode: `NAME.cjs` for `NAME.bundle.js`. If none is kept in the home that V8 takes, that of the build, `NAME.bundle.code`. V8 knows a
 * text by its length, so the name of what is kept has a hash of it.
 */
function loaderOf(bundle: string, kept: KeptProgram | undefined, before: string): string {
  const hash = createHash('sha256').update(bundle).digest('hex').slice(0, 16)
  return `#!/usr/bin/env node
'use strict'
${before}const { readFileSync } = require('node:fs')
const { Script } = require('node:vm')
const filename = __filename.replace(/cjs$/, 'bundle.js')
// ASCII, which takes the least to become a string.
const source = readFileSync(filename, 'latin1')
function read(code) {
  try {
    return readFileSync(code)
  } catch {
    return undefined
  }
}
function load(cachedData) {
  const script = cachedData && new Script(source, { filename, cachedData })
  return script?.cachedDataRejected ? undefined : script
}
${kept ? keptPart(kept, hash) : 'let script'}
script ??= load(read(filename.replace(/js$/, 'code'))) ?? new Script(source, { filename })
${kept ? "if (path) globalThis[Symbol.for('vitrine.bundle')] = { script, path, uses }\n" : ''}script.runInThisContext()(exports, require, module, __filename, __dirname)
`
}

const keptPart = ({ name }: KeptProgram, hash: string): string => `const name = ${name}
const home = process.env.VITRINE_HOME || require('node:os').homedir() + '/.vitrine'
const path = name && home + '/code/' + name + '-${hash}.code'
const kept = path && read(path)
let script = load(kept?.subarray(0, -1))
const uses = script ? kept[kept.length - 1] : 0`

/** As Node wraps a module; all else than ASCII is written as escapes by esbuild. */
function asFunction(module: string): string {
  if (/[^\0-\x7f]/.test(module)) throw new Error('a bundle is not ASCII: esbuild is to write the rest as escapes')
  return `(function (exports, require, module, __filename, __dirname) {${module}\n})`
}

/** Makes the loader and the bytecode of a bundle `NAME.cjs`, and puts the bundle beside them. `before` is JavaScript to be run first. */
export function precompileBundle(path: string, kept?: KeptProgram, before = ''): void {
  const bundle = path.replace(/cjs$/, 'bundle.js')
  const text = asFunction(readFileSync(path, 'utf8').replace(/^#!.*/, ''))
  rmSync(path)
  writeFileSync(bundle, text)
  const code = bundle.replace(/js$/, 'code')
  if (path.endsWith('nursery.process.cjs')) makeCode(bundle, code, NURSERY_NODE_OPTIONS)
  else writeFileSync(code, bytecodeOf(bundle))
  writeFileSync(path, loaderOf(text, kept, before))
}
