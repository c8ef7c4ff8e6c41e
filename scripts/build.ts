/**
 * Builds everything into dist/: bundled JavaScript, type declarations, WebAssembly, and the guest's programs.
 *
 *   npm run build                 all of it; WebAssembly and guest programs only when their sources changed
 *   npm run build -- js wasm      only these parts (js, types, wasm, guest)
 *   npm run build -- --if-needed  nothing at all when no source is newer than the last build
 *   WASM_NAMES=1 npm run build    with the names of functions in WebAssembly, for profiles
 */
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { createRequire } from 'node:module'
import { homedir } from 'node:os'
import { basename, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import * as esbuild from 'esbuild'
import { WASM_MODULES, type WasmModuleSpec } from '../wasm/modules.ts'
import { precompileBundle, precompileWasm } from './precompile.ts'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
const DIST = join(ROOT, 'dist')

function filesBelow(folder: string): string[] {
  if (!existsSync(folder)) return []
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter(entry => entry.isFile())
    .map(entry => join(entry.parentPath, entry.name))
}

/** True when `output` exists and is newer than every one of `inputs`. */
function isFresh(output: string, inputs: readonly string[]): boolean {
  if (!existsSync(output)) return false
  const built = statSync(output).mtimeMs
  return inputs.every(input => statSync(input).mtimeMs < built)
}

function run(command: string, args: readonly string[], remedy: string): void {
  const result = spawnSync(command, args, { cwd: ROOT, stdio: 'inherit' })
  if (result.status === 0) return
  const why = result.error ? result.error.message : `exit status ${result.status}`
  throw new Error(`${basename(command)} failed (${why}). ${remedy}`)
}

const tool = (name: string): string => join(ROOT, 'node_modules', '.bin', name)

const BUNDLE = {
  absWorkingDir: ROOT,
  outdir: DIST,
  bundle: true,
  platform: 'node',
  target: 'node20',
  sourcemap: 'linked',
  logLevel: 'warning',
} as const

/** Modules of Node's own that take milliseconds to load, in every thread again, and that most starts do without. */
const LATE = /^node:(?:crypto|net|zlib)$/

const namesOf = (path: string): string[] => Object.keys(createRequire(import.meta.url)(path) as object)

/**
 * Node's own modules for a CommonJS bundle: what is imported of them, looked at when they are loaded. By itself esbuild makes an object with a getter for
 * every name of a module, in each file that imports it. The late ones are such an object, whose module is loaded when something of it is first used.
 */
const builtins: esbuild.Plugin = {
  name: 'builtins',
  setup(build) {
    build.onResolve({ filter: /^node:/ }, ({ path, namespace }) =>
      namespace === 'builtin' ? { path, external: true } : { path, namespace: 'builtin' },
    )
    build.onLoad({ filter: LATE, namespace: 'builtin' }, ({ path }) => {
      const getter = `{ enumerable: true, get: () => require('${path}')[name] }`
      const names = JSON.stringify(namesOf(path))
      return { contents: `for (const name of ${names}) Object.defineProperty(exports, name, ${getter})` }
    })
    build.onLoad({ filter: /./, namespace: 'builtin' }, ({ path }) => {
      const names = namesOf(path).filter(name => /^[a-z]\w*$/i.test(name) && name !== 'default')
      const exported = names.map(name => `export const ${name} = /* @__PURE__ */ (() => all.${name})()`)
      return { contents: [`const all = require('${path}')`, 'export default all', ...exported].join('\n') }
    })
  },
}

/** Commands that are used again and again have code of their own. */
const KEPT_OF_CLI = { name: "['run', 'exec'].includes(process.argv[2]) ? process.argv[2] : undefined" }

/**
 * The library is ES modules. The CLI and every `*.worker.ts` and `*.process.ts`, which start threads and processes, are one
 * CommonJS file each: starting is what a box waits for, and the loader of ES modules, a file at a time, is a good part of it.
 */
async function buildJs(): Promise<void> {
  for (const old of existsSync(DIST) ? readdirSync(DIST) : []) {
    if (/\.(c?js(\.map)?|code)$/.test(old)) rmSync(join(DIST, old))
  }
  const programs: Record<string, string> = { cli: 'src/cli/main.ts' }
  for (const file of filesBelow(join(ROOT, 'src'))) {
    const match = /([^/]+\.(?:worker|process))\.ts$/.exec(file)
    if (match) programs[match[1]!] = file
  }
  await Promise.all([
    esbuild.build({
      ...BUNDLE,
      entryPoints: { index: 'src/index.ts' },
      splitting: true,
      format: 'esm',
      packages: 'external',
      chunkNames: 'chunk-[hash]',
    }),
    esbuild.build({
      ...BUNDLE,
      entryPoints: { ...programs, 'early-vmm': 'src/cli/early-vmm.ts' },
      format: 'cjs',
      outExtension: { '.js': '.cjs' },
      // Every thread reads and keeps its whole text. Names stay as they are: they are what a stack trace shows.
      minifyWhitespace: true,
      minifySyntax: true,
      define: { 'import.meta.url': 'bundleUrl' },
      banner: { js: "const bundleUrl = require('node:url').pathToFileURL(__filename).href;" },
      plugins: [builtins],
    }),
  ])
  // Small, and run before anything else is read: not worth a file of bytecode.
  const early = "if (process.argv[2] === 'run' && !process.argv.includes('--help')) require('./early-vmm.cjs')\n"
  for (const name of Object.keys(programs)) {
    const path = join(DIST, `${name}.cjs`)
    if (name === 'cli') precompileBundle(path, KEPT_OF_CLI, early)
    else precompileBundle(path, name === 'vmm.process' ? { name: "'vmm'" } : undefined)
  }
  writeFileSync(join(DIST, 'cli.js'), "#!/usr/bin/env node\nimport './cli.cjs'\n")
  for (const name of ['cli.js', 'cli.cjs']) chmodSync(join(DIST, name), 0o755)
}

function buildTypes(): void {
  run(tool('tsc'), ['-p', 'tsconfig.types.json'], 'Mend the type errors above.')
}

/**
 * Compiled modules by the hash of all that goes into them (a module imports nothing from outside of its folder): compiling
 * the CPU takes a minute, and branches share most of it.
 */
const WASM_CACHE = process.env.VITRINE_CACHE
  ? join(process.env.VITRINE_CACHE, 'build')
  : join(homedir(), '.cache', 'vitrine-build')

function wasmArguments(spec: WasmModuleSpec): string[] {
  const features = ['simd', 'bulk-memory', 'sign-extension', 'nontrapping-f2i', ...(spec.features ?? [])]
  if (spec.staticBase !== undefined) features.push('threads')
  // The shared memory's size is the machine's choice; these are the limits an import may have.
  const shared = ['--importMemory', '--sharedMemory', '--initialMemory', '16', '--maximumMemory', '65536']
  const memory =
    spec.staticBase === undefined ? ['--initialMemory', '1'] : [...shared, '--memoryBase', String(spec.staticBase)]
  return [
    ...['--runtime', 'stub', '-O3', '--noAssert', '--use', 'abort=', '--disableWarning', '112'],
    ...features.flatMap(feature => ['--enable', feature]),
    ...memory,
    ...(spec.exportTable ? ['--exportTable'] : []),
    // Names of functions, for profiles.
    ...(process.env.WASM_NAMES ? ['--debug'] : []),
  ]
}

function buildWasmModule(spec: WasmModuleSpec): void {
  const output = join(DIST, 'wasm', `${spec.name}.wasm`)
  const args = wasmArguments(spec)
  const hash = createHash('sha256').update(JSON.stringify(args))
  const compiler = readFileSync(join(ROOT, 'node_modules/assemblyscript/package.json'))
  hash.update(compiler)
  for (const file of filesBelow(join(ROOT, 'wasm', spec.name)).sort())
    hash.update(file.slice(ROOT.length)).update(readFileSync(file))
  const cached = join(WASM_CACHE, `${spec.name}-${hash.digest('hex').slice(0, 32)}.wasm`)
  mkdirSync(join(DIST, 'wasm'), { recursive: true })
  if (!existsSync(cached)) {
    mkdirSync(WASM_CACHE, { recursive: true })
    const temporary = `${cached}.${process.pid}`
    run(tool('asc'), [`wasm/${spec.name}/index.ts`, '--outFile', temporary, ...args], 'Mend the AssemblyScript above.')
    renameSync(temporary, cached)
  }
  copyFileSync(cached, output)
  // Small ones are compiled sooner than read.
  if (spec.name === 'cpu') precompileWasm(output)
}

function buildGuest(): void {
  const sources = filesBelow(join(ROOT, 'guest')).filter(file => /\.[ch]$/.test(file))
  const mains = sources.filter(file => /\/guest\/[^/]+\/main\.c$/.test(file))
  for (const main of mains) {
    const folder = join(main, '..')
    const output = join(DIST, 'guest', basename(folder))
    if (isFresh(output, [...sources, join(ROOT, 'scripts/build.ts')])) continue
    mkdirSync(join(DIST, 'guest'), { recursive: true })
    const units = sources.filter(file => file.startsWith(`${folder}/`) && file.endsWith('.c'))
    run(
      'gcc',
      ['-std=gnu11', '-D_GNU_SOURCE', '-static', '-Os', '-Wall', '-Wextra', '-Werror', '-s', '-o', output, ...units],
      'A C compiler with static glibc is needed: apt-get install gcc libc6-dev.',
    )
  }
}

/** One text for all that a running box depends on: templates of another build are not used. */
function buildIdentity(): void {
  const hash = createHash('sha256')
  for (const file of filesBelow(DIST).sort()) {
    if (/\/(?:[^/]+\.c?js|wasm\/[^/]+|guest\/[^/]+)$/.test(file)) hash.update(basename(file)).update(readFileSync(file))
  }
  writeFileSync(join(DIST, 'build-id'), `${hash.digest('hex')}\n`)
}

/** Whether anything that is built from changed since all of it was built. Folders count: what is removed changes them. */
function isBuilt(): boolean {
  const folders = ['src', 'wasm', 'guest'].map(name => join(ROOT, name))
  const below = folders.flatMap(folder =>
    readdirSync(folder, { recursive: true }).map(path => join(folder, String(path))),
  )
  const others = ['scripts/build.ts', 'package.json', 'package-lock.json'].map(name => join(ROOT, name))
  return isFresh(join(DIST, 'complete'), [...folders, ...below, ...others])
}

const PARTS: Record<string, () => void | Promise<void>> = {
  wasm: () => WASM_MODULES.forEach(buildWasmModule),
  guest: buildGuest,
  js: buildJs,
  types: buildTypes,
}

const wanted = process.argv.slice(2).filter(argument => argument !== '--if-needed')
if (process.argv.includes('--if-needed') && isBuilt()) process.exit(0)
for (const name of wanted)
  if (!PARTS[name]) throw new Error(`unknown part '${name}': one of ${Object.keys(PARTS).join(', ')}`)
mkdirSync(DIST, { recursive: true })
for (const [name, build] of Object.entries(PARTS)) if (wanted.length === 0 || wanted.includes(name)) await build()
buildIdentity()
if (wanted.length === 0) writeFileSync(join(DIST, 'complete'), '')
