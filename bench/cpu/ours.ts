/**
 * Our side, as a process of its own: `node ours.js INDEX KERNEL INITRD COMMAND-LINE MIB`. Boots the guest on the software CPU with the library
 * in INDEX; the console goes to standard output, and at every mark a line with the counters goes to standard error.
 */
import { readFileSync } from 'node:fs'
import type { Machine as MachineClass } from '../../src/machine/machine.ts'
import { vcpuStateBase } from '../../src/soft/layout.ts'
import * as S from '../../wasm/cpu/state.ts'

const [index, kernel, initrd, cmdline, mib] = process.argv.slice(2)
const { Machine } = (await import(index!)) as { Machine: typeof MachineClass }
const machine = await Machine.create({
  kernel: { path: kernel!, immutable: true },
  initrd: readFileSync(initrd!),
  cmdline: cmdline!,
  memoryMib: Number(mib),
  accel: 'soft',
})
const view = new DataView(machine.memory.wasm.buffer)
const base = vcpuStateBase(0)

/** The host reads while the vCPU runs: instructions are exact to a slice, the rest as it is. */
function counters(): Record<string, number> {
  const count = (offset: number): number => Number(view.getBigUint64(base + offset, true))
  return {
    instructions: count(S.S_RETIRED),
    compiled: count(S.S_JIT_RETIRED),
    entries: count(S.S_JIT_ENTRIES),
    decoded: count(S.S_COUNT_BLOCKS_DECODED),
    resumes: count(S.S_COUNT_RESUMES),
    tlbFills: count(S.S_COUNT_TLB_FILLS),
    flushes: count(S.S_COUNT_FLUSHES),
    exceptions: count(S.S_COUNT_EXCEPTIONS),
    interrupts: count(S.S_COUNT_INTERRUPTS),
    mmio: count(S.S_COUNT_MMIO),
    port: count(S.S_COUNT_PORT),
    codeWrites: count(S.S_COUNT_SMC),
    resets: count(S.S_COUNT_CACHE_RESETS),
  }
}

let line = ''
machine.on('console', (data: Uint8Array) => {
  process.stdout.write(data)
  line += Buffer.from(data).toString('latin1')
  const lines = line.split('\n')
  line = lines.pop()!
  for (const text of lines) {
    const mark = /@([a-z][a-z0-9 -]*)/.exec(text)?.[1]
    if (mark !== undefined) process.stderr.write(`#${JSON.stringify({ mark, ...counters() })}\n`)
  }
})
machine.start()
const done = (): void => {
  void machine
    .stop()
    .then(() => machine.metrics())
    .then(({ vcpus }) => process.stderr.write(`#${JSON.stringify({ mark: 'end', ...vcpus[0] })}\n`))
    .then(() => machine.close())
    .then(() => process.exit(0))
}
process.on('SIGTERM', done)
await machine.ended()
