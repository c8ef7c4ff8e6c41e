/**
 * Builds everything into dist/: bundled JavaScript, type declarations, WebAssembly, and the guest's programs.
 *
 *   npm run build                 all of it; WebAssembly and guest programs only when their sources changed
 *   npm run build -- js wasm      only these parts (js, types, wasm, guest)
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
} from 'node:fs'
import { homedir } from 'node:os'
import { basename, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import * as esbuild from 'esbuild'
import { WASM_MODULES, type WasmModuleSpec } from '../wasm/modules.ts'

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

/** Entry points: the library, the CLI, and every `*.worker.ts` or `*.process.ts`, which start threads and processes. */
async function buildJs(): Promise<void> {
  for (const old of existsSync(DIST) ? readdirSync(DIST) : []) {
    if (/\.js(\.map)?$/.test(old)) rmSync(join(DIST, old))
  }
  const entries: Record<string, string> = {}
  if (existsSync(join(ROOT, 'src/index.ts'))) entries.index = 'src/index.ts'
  if (existsSync(join(ROOT, 'src/cli/main.ts'))) entries.cli = 'src/cli/main.ts'
  for (const file of filesBelow(join(ROOT, 'src'))) {
    const match = /([^/]+\.(?:worker|process))\.ts$/.exec(file)
    if (match) entries[match[1]!] = file
  }
  if (Object.keys(entries).length === 0) return
  await esbuild.build({
    absWorkingDir: ROOT,
    entryPoints: entries,
    outdir: DIST,
    bundle: true,
    splitting: true,
    format: 'esm',
    platform: 'node',
    target: 'node20',
    packages: 'external',
    sourcemap: 'linked',
    chunkNames: 'chunk-[hash]',
    logLevel: 'warning',
  })
  if (entries.cli) chmodSync(join(DIST, 'cli.js'), 0o755)
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

const PARTS: Record<string, () => void | Promise<void>> = {
  wasm: () => WASM_MODULES.forEach(buildWasmModule),
  guest: buildGuest,
  js: buildJs,
  types: buildTypes,
}

const wanted = process.argv.slice(2)
for (const name of wanted)
  if (!PARTS[name]) throw new Error(`unknown part '${name}': one of ${Object.keys(PARTS).join(', ')}`)
mkdirSync(DIST, { recursive: true })
for (const [name, build] of Object.entries(PARTS)) if (wanted.length === 0 || wanted.includes(name)) await build()
