/**
 * Machine code of a WebAssembly module, kept from the build: V8 compiles a module twice, quickly when it is loaded and well when it
 * is hot, in every process again, which for the CPU is a good part of a box's start. V8 can write the good code out and take it in
 * again, by two functions of its own that programs reach only through its natives syntax. What it takes in it checks for its version, its flags and
 * the processor's features; whenever it does not like what it sees, or is a V8 without these functions, the module is compiled as usual.
 */
import { setFlagsFromString } from 'node:v8'

const NATIVES = '--allow-natives-syntax'
/** Everything at once, by the optimizing compiler. */
const WELL = ['--no-liftoff', '--no-wasm-lazy-compilation', '--no-wasm-dynamic-tiering']
const AS_USUAL = ['--liftoff', '--wasm-lazy-compilation', '--wasm-dynamic-tiering']

function withNatives<Result>(body: string, ...args: readonly unknown[]): Result | undefined {
  setFlagsFromString(NATIVES)
  try {
    const names = args.map((_, i) => `a${i}`)
    return new Function(...names, `return ${body}`)(...args) as Result
  } catch {
    return undefined
  } finally {
    setFlagsFromString(NATIVES.replace('--', '--no-'))
  }
}

/** For the build: a module's machine code, or undefined where V8 does not give it. */
export function nativeCodeOf(bytes: Uint8Array): Uint8Array | undefined {
  for (const flag of WELL) setFlagsFromString(flag)
  const module = new WebAssembly.Module(bytes as Uint8Array<ArrayBuffer>)
  for (const flag of AS_USUAL) setFlagsFromString(flag)
  const code = withNatives<ArrayBuffer>('%SerializeWasmModule(a0)', module)
  return code && new Uint8Array(code)
}

/** The module of `bytes` with that code; undefined when V8 does not take it. */
export function moduleFromCode(code: Uint8Array, bytes: Uint8Array): WebAssembly.Module | undefined {
  // A file that was read is all of its buffer.
  const isWhole = code.byteLength === code.buffer.byteLength
  const buffer = isWhole ? code.buffer : code.buffer.slice(code.byteOffset, code.byteOffset + code.length)
  const module = withNatives<unknown>('%DeserializeWasmModule(a0, a1)', buffer, bytes)
  return module instanceof WebAssembly.Module ? module : undefined
}
