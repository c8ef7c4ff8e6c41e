/**
 * Debian's own kernel in a machine, on the accelerator that is named: 1 CPU by PVH and 2 CPUs by the 64-bit protocol, our
 * initramfs and init, the console in both directions, pause and resume, save and restore, power off and restart.
 *
 * Two boots only: in the emulated host each takes from ten seconds to a minute.
 */
import { expect, it } from 'vitest'
import type { AcceleratorName } from '../../src/accel/contract.ts'
import { buildInitramfs } from '../../src/image/initramfs.ts'
import { findKernel } from '../../src/image/kernel/find.ts'
import { Machine } from '../../src/machine/machine.ts'
import type { MachineOptions } from '../../src/machine/machine-options.ts'
import { decodeMachineState, encodeMachineState } from '../../src/machine/machine-state.ts'
import { ConsoleText } from './console-text.ts'

const LIMIT_MS = 400_000

/**
 * Of one host CPU, for a guest that waits for input. A vCPU that spins or a thread that polls takes all of it. The software CPU
 * takes 0.005; the emulated host's own noise is most of what is seen there.
 */
const MOST_IDLE_CPU = 0.3

/** What this process uses, with all its threads, guests included. */
async function cpuShare(milliseconds: number): Promise<number> {
  const before = process.cpuUsage()
  const began = performance.now()
  await new Promise(resolve => setTimeout(resolve, milliseconds))
  const { user, system } = process.cpuUsage(before)
  return (user + system) / 1000 / (performance.now() - began)
}

async function guestFiles(): Promise<Pick<MachineOptions, 'kernel' | 'initrd'>> {
  const found = await findKernel({ tuned: false })
  return { kernel: { path: found.path, immutable: true }, initrd: buildInitramfs({ modules: found.modules }) }
}

export function linuxBootTests(accel: AcceleratorName): void {
  it(
    'boots with 1 CPU by PVH, echoes, is paused, saved, restored elsewhere, goes on, and powers off',
    async () => {
      const shape = { accel, cpus: 1, memoryMib: 256 }
      const cmdline = 'console=ttyS0 panic=-1 quiet vitrine.mode=echo'
      const first = await Machine.create({ ...shape, ...(await guestFiles()), cmdline, protocol: 'pvh' })
      const text = new ConsoleText(first)
      try {
        first.start()
        await text.waitFor(/vitrine-init: ready mode=echo cpus=1 modules=\d+/)
        await first.console.write('hello there\n')
        await text.waitFor(/echo: hello there/)
        expect(await cpuShare(3000)).toBeLessThan(MOST_IDLE_CPU)
        await first.pause()
        const size = text.all.length
        await new Promise(resolve => setTimeout(resolve, 300))
        expect(text.all.length).toBe(size)
        await first.resume()
        await first.console.write('after a pause\n')
        await text.waitFor(/echo: after a pause/)
        await first.pause()
        const state = encodeMachineState(await first.save())
        const second = await Machine.create(shape)
        try {
          second.memory.write(0, first.memory.slice(0, first.memory.size))
          await first.close()
          const restored = new ConsoleText(second)
          await second.restore(decodeMachineState(state))
          await second.resume()
          await second.console.write('in another machine\n')
          await restored.waitFor(/echo: in another machine/)
          await second.console.write('poweroff\n')
          expect(await restored.end()).toEqual({ reason: 'power-off' })
        } finally {
          await second.close()
        }
      } finally {
        await first.close()
      }
    },
    LIMIT_MS,
  )

  it(
    'boots with 2 CPUs by the 64-bit protocol, and restarts',
    async () => {
      const machine = await Machine.create({
        ...(await guestFiles()),
        accel,
        cpus: 2,
        memoryMib: 256,
        protocol: 'linux64',
        cmdline: 'console=ttyS0 panic=-1 quiet vitrine.mode=echo',
      })
      const text = new ConsoleText(machine)
      const power: string[] = []
      machine.on('power', what => power.push(what))
      try {
        machine.start()
        await text.waitFor(/vitrine-init: ready mode=echo cpus=2 /)
        await machine.console.write('reboot\n')
        expect(await text.end()).toEqual({ reason: 'reboot' })
        expect(power).toEqual(['reboot'])
      } finally {
        await machine.close()
      }
    },
    LIMIT_MS,
  )
}
