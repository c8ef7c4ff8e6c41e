/**
 * The one way to WebAssembly: compiled once per process, instantiated per thread. A compiled module can be sent to a
 * worker, which instantiates it without compiling again.
 */
import { readFileSync } from 'node:fs'
import { WASM_MODULES } from '../../wasm/modules.ts'
import { assetPath } from '../host/assets.ts'

const compiled = new Map<string, WebAssembly.Module>()

/** The compiled module `wasm/<name>`. */
export function wasmModule(name: string): WebAssembly.Module {
  let module = compiled.get(name)
  if (!module) {
    module = new WebAssembly.Module(readFileSync(assetPath(`wasm/${name}.wasm`)))
    compiled.set(name, module)
  }
  return module
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
