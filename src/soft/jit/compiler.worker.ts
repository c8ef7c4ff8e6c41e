/** The thread that compiles for one vCPU (background.ts). */
import { setFlagsFromString } from 'node:v8'
import { workerData } from 'node:worker_threads'
import type { CompileAnswer, CompileRequest, CompilerStart } from './background.ts'
import { RegionCompiler } from './compile.ts'

// Code is generated here and now, not by the vCPU's thread when it first calls a function.
setFlagsFromString('--no-wasm-lazy-compilation')

const { memory, base, port } = workerData as CompilerStart
const compiler = new RegionCompiler(memory, base, false)

port.on('message', ({ addresses, end, coldest, generation }: CompileRequest) => {
  const answer: CompileAnswer = { batch: compiler.compile(addresses, end, coldest), generation }
  port.postMessage(answer)
})
