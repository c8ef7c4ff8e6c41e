/**
 * The WebAssembly modules of Vitrine, one row each. `scripts/build.ts` compiles `wasm/<name>/index.ts` to
 * `dist/wasm/<name>.wasm`; `src/wasm/loader.ts` is the only code that instantiates them.
 *
 * A module that works on guest memory imports the machine's one shared memory and keeps its statics at `staticBase`,
 * in the region that `src/memory/layout.ts` sets aside for them. A module with its own memory has no `staticBase`.
 */
export interface WasmModuleSpec {
  readonly name: string
  /** Where the module's statics go in the shared memory; absent for a module with a memory of its own. */
  readonly staticBase?: number
  /** AssemblyScript features to enable besides the defaults. */
  readonly features?: readonly string[]
  /** Export the function table, so that functions of other modules can be put in it. */
  readonly exportTable?: boolean
}

export const WASM_MODULES: readonly WasmModuleSpec[] = [
  // The software CPU, on the machine's memory.
  { name: 'cpu', staticBase: 0x1_0000, exportTable: true },
  // Decompression of kernels.
  { name: 'lz4' },
  // The internet checksum, for frames whose checksums the guest's driver does not leave to us.
  { name: 'checksum' },
  // Checksums of snapshot files, and how their pages are mapped.
  { name: 'snapshot' },
]
