/**
 * A Linux boot in lockstep (lockstep.ts): `npx tsx test/soft/lockstep-boot.ts [--slice N] [--threshold N] [--exec SCRIPT]
 * [--limit INSTRUCTIONS]`. Prints the console of the interpreted machine and stops at the first difference.
 */
import { parseArgs } from 'node:util'
import type { IoHandler } from '../../src/accel/contract.ts'
import { buildInitramfs } from '../../src/image/initramfs.ts'
import { findKernel } from '../../src/image/kernel/find.ts'
import { loadGuest } from '../../src/machine/boot/load.ts'
import { Bus } from '../../src/machine/bus.ts'
import { ConsoleRing } from '../../src/machine/legacy/console-ring.ts'
import { EXIT_SHUTDOWN, EXIT_STOPPED } from '../../wasm/cpu/state.ts'
import { Lockstep } from './lockstep.ts'

const { values } = parseArgs({
  options: {
    slice: { type: 'string', default: '500' },
    threshold: { type: 'string', default: '50' },
    exec: { type: 'string', default: 'echo lockstep' },
    limit: { type: 'string', default: '20000000000' },
  },
})
const found = await findKernel()
const busybox = process.env.BUSYBOX ?? '/bin/busybox'
const initrd = buildInitramfs({ busybox })
const commandLine = `console=ttyS0 panic=-1 quiet mitigations=off initcall_blacklist=load_system_certificate_list vitrine.exec="${values.exec}"`
const machine = await Lockstep.create({
  mib: 128,
  settings: { threshold: Number(values.threshold), batch: 16, patience: 50, everyEdge: true },
  load: memory =>
    loadGuest(memory, {
      kernel: { path: found.path, immutable: true },
      initrd,
      commandLine,
      cpus: 1,
      slots: 0,
      generationId: new Uint8Array(16),
    }),
  open: ({ memory, vm }): Promise<IoHandler> =>
    Bus.open({ wasm: memory.wasm, serialInterrupt: vm.interruptLine(4), windows: [] }, () => undefined),
})
const consoles = machine.sides.map(({ memory }) => ConsoleRing.output(memory.wasm))
const started = performance.now()
let next = 50_000_000
let failed = false
for (;;) {
  const result = machine.step(Number(values.slice))
  const text = consoles[0]!.take()
  consoles[1]!.take()
  if (text.length > 0) process.stdout.write(text)
  const difference = typeof result === 'number' ? undefined : result
  const over = machine.retired > Number(values.limit) || result === EXIT_STOPPED || result === EXIT_SHUTDOWN
  if (machine.retired > next || over) {
    next += 50_000_000
    const seconds = ((performance.now() - started) / 1000).toFixed(0)
    process.stderr.write(`\n[${(machine.retired / 1e6).toFixed(0)} M instructions, ${seconds} s]\n`)
    const memory = machine.compareMemory()
    if (memory) {
      console.error(memory.what, memory.since, `\n${memory.at}`)
      failed = true
      break
    }
  }
  if (difference) {
    console.error(`\ndifferent after ${difference.since} instructions: ${difference.what}\n${difference.at}`)
    failed = true
    break
  }
  if (over) break
}
console.error(machine.sides[1].vcpu.counters())
machine.close()
process.exitCode = failed ? 1 : 0
