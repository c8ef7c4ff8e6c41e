/** One file's code, made with the flags that this process was started with: `precompile-one.ts FILE OUTPUT`. */
import { readFileSync, writeFileSync } from 'node:fs'
import { nativeCodeOf } from '../src/wasm/native-code.ts'
import { bytecodeOf } from './bytecode.ts'

const [path, output] = process.argv.slice(2) as [string, string]
const code = path.endsWith('.wasm') ? nativeCodeOf(readFileSync(path)) : bytecodeOf(path, true)
if (code) writeFileSync(output, code)
