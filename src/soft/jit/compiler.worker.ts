/** The thread that compiles for one vCPU (background.ts). */
import { setPriority } from 'node:os'
import { setFlagsFromString } from 'node:v8'
import { workerData } from 'node:worker_threads'
import type { CompileAnswer, CompileRequest, CompilerStart } from './background.ts'
import { RegionCompiler } from './compile.ts'

const BEHIND_VCPUS = 5

// Code is generated here and now, not by the vCPU's thread when it first calls a function.
setFlagsFromString('--no-wasm-lazy-compilation')
// Ways out of a region are laid behind what runs.
setFlagsFromString('--experimental-wasm-branch-hinting')
// Where cores are few the vCPU goes first. Linux means a thread by this, others the whole process.
if (process.platform === 'linux') setPriority(0, BEHIND_VCPUS)

const { memory, base, port, wellAtOnce } = workerData as CompilerStart
// V8 compiles quickly first, and what is hot again in threads of its own, where it has some.
if (wellAtOnce) setFlagsFromString('--no-liftoff')
const compiler = new RegionCompiler(memory, base, false)

let current = 0

port.on('message', ({ blocks, end, coldest, generation }: CompileRequest) => {
  if (generation !== current) compiler.forget()
  current = generation
  const answer: CompileAnswer = { ...compiler.compile(blocks, end, coldest), generation }
  port.postMessage(answer)
})
