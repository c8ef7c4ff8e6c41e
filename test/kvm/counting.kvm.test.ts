/**
 * A guest that counts on two CPUs, on real KVM: idle it costs nothing; it stands still while it is paused; and its
 * counting goes on in another machine without a gap or a repetition.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { expect, it } from 'vitest'
import { buildInitramfs } from '../../src/image/initramfs.ts'
import { findKernel } from '../../src/image/kernel/find.ts'
import { Machine } from '../../src/machine/machine.ts'
import { ConsoleText } from '../boot/console-text.ts'

/** Waits for two lines of input: it idles after the first and counts after the second. */
const SCRIPT = `
count() { i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); echo "<$1 $i>"; sleep 0.2; done; }
echo "nproc says $(nproc)"
read -r line
echo idling
read -r line
count a &
count b
`
const COUNTERS = ['a', 'b']
const SHAPE = { accel: 'kvm', cpus: 2, memoryMib: 256 } as const

/** CPU time of this process with all its threads, guests included, in milliseconds. */
function cpuMs(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000
}

const counted = (text: string, name: string): number[] =>
  [...text.matchAll(new RegExp(`<${name} (\\d+)>`, 'g'))].map(match => Number(match[1]))

const lastOf = (text: string, name: string): number => counted(text, name).at(-1) ?? 0

/** Waits until both counters are `more` further than they were in `text`. */
async function waitForMore(console: ConsoleText, text: string, more: number): Promise<void> {
  for (const name of COUNTERS) await console.waitFor(new RegExp(`<${name} ${lastOf(text, name) + more}>`))
}

async function createCounter(): Promise<Machine> {
  const { path } = await findKernel({ tuned: false })
  const files = { 'test.sh': { content: new TextEncoder().encode(SCRIPT) } }
  return Machine.create({
    ...SHAPE,
    kernel: { path, immutable: true },
    initrd: buildInitramfs({ busybox: '/bin/busybox', files }),
    cmdline: 'console=ttyS0 quiet panic=-1 vitrine.exec="sh /test.sh"',
  })
}

it('idles without cost, stands still while paused, and goes on counting in another machine', async () => {
  const machine = await createCounter()
  const console = new ConsoleText(machine)
  try {
    machine.start()
    await console.waitFor(/nproc says 2/)
    await machine.console.write('idle\n')
    await console.waitFor(/idling/)
    await sleep(2000)
    // A vCPU that spins, or a thread that polls, would take all of the five seconds or a good part of them.
    const before = cpuMs()
    await sleep(5000)
    expect(cpuMs() - before).toBeLessThan(1500)

    await machine.console.write('count\n')
    await waitForMore(console, '', 3)
    await machine.pause()
    const paused = console.all
    await sleep(2000)
    expect(console.all).toBe(paused)
    await machine.resume()
    await waitForMore(console, paused, 3)

    await machine.pause()
    const state = await machine.save()
    const told = console.all
    const copy = await Machine.create(SHAPE)
    try {
      copy.memory.write(0, machine.memory.slice(0, machine.memory.size))
      await machine.close()
      const copyConsole = new ConsoleText(copy)
      await copy.restore(state)
      await copy.resume()
      await waitForMore(copyConsole, told, 3)
      for (const name of COUNTERS) {
        const numbers = counted(told + copyConsole.all, name)
        expect(numbers).toEqual(numbers.map((_, i) => i + 1))
      }
    } finally {
      await copy.close()
    }
  } finally {
    await machine.close()
  }
}, 400_000)
