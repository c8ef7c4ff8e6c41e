/**
 * The one way to WebAssembly: compiled once per process, instantiated per thread. A compiled module can be sent to a
 * worker, which instantiates it without compiling again.
 */
import { existsSync, readFileSync } from 'node:fs'
import { WASM_MODULES } from '../../wasm/modules.ts'
import { assetPath } from '../host/assets.ts'
import { v8IsSingleThreaded } from '../host/fork.ts'
import { moduleFromCode } from './native-code.ts'

const compiled = new Map<string, WebAssembly.Module>()

/** The compiled module `wasm/<name>`. */
export function wasmModule(name: string): WebAssembly.Module {
  let module = compiled.get(name)
  if (!module) {
    const bytes = readFileSync(assetPath(`wasm/${name}.wasm`))
    module = builtModule(name, bytes) ?? new WebAssembly.Module(bytes)
    compiled.set(name, module)
  }
  return module
}

/** With the machine code of the build, where there is some that this V8 takes: there is code for either set of flags that we start Node with. */
function builtModule(name: string, bytes: Uint8Array): WebAssembly.Module | undefined {
  const path = assetPath(`wasm/${name}.${v8IsSingleThreaded() ? 'forkable.code' : 'code'}`)
  return existsSync(path) ? moduleFromCode(readFileSync(path), bytes) : undefined
}

/** Puts a module that came in a message where `wasmModule` finds it. */
export const adoptWasmModule = (name: string, module: WebAssembly.Module): void => void compiled.set(name, module)

/** Instantiates a module that has a memory of its own. `Exports` is the module's interface, declared by its user. */
export function instantiateWasm<Exports>(name: string, imports: WebAssembly.Imports = {}): Exports {
  return new WebAssembly.Instance(wasmModule(name), imports).exports as Exports
}

/** Instantiates a module over a machine's shared memory. */
export function instantiateOnMemory<Exports>(
  name: string,
  memory: WebAssembly.Memory,
  imports: WebAssembly.Imports = {},
): Exports {
  const spec = WASM_MODULES.find(candidate => candidate.name === name)
  if (spec?.staticBase === undefined) throw new Error(`the WebAssembly module '${name}' has a memory of its own`)
  return instantiateWasm<Exports>(name, { ...imports, env: { ...imports.env, memory } })
}

/** What `scripts/build.ts` says that such a module needs, in pages of 64 KiB. */
const SMALLEST = 16

/**
 * Has V8 make the code by which a module and JavaScript call each other, which is most of what a first instance takes: by an instance that nobody uses. The
 * functions among the imports have to have as many parameters as those that come later.
 */
export function prepareOnMemory(name: string, imports: WebAssembly.Imports): void {
  instantiateOnMemory(name, new WebAssembly.Memory({ initial: SMALLEST, maximum: SMALLEST, shared: true }), imports)
}
