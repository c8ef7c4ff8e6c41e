/**
 * A guest on the software CPU for as long as one likes, under a load that changes: fresh machine code, hashes, compression, processes, and
 * rest. Compiled code that is stale has to go: the memory of this process must not grow with time.
 *
 *   npm run fuzz -- soak --seconds 3600
 */
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { buildInitramfs } from '../../src/image/initramfs.ts'
import { findKernel } from '../../src/image/kernel/find.ts'
import { Machine } from '../../src/machine/machine.ts'
import { ConsoleText } from '../boot/console-text.ts'

const BUSYBOX = '/bin/busybox'
const SAMPLE_MS = 10_000
/** How much more the end may use than the time after the warm-up did; collection of garbage is not punctual. */
const MOST_GROWTH = 1.15

/** One turn of everything; it prints a line when it is through. */
const LOAD = `n=0
while true; do
n=$((n + 1))
/churn 3 $n || exit 1
busybox dd if=/dev/zero bs=1M count=$((n % 7 + 1)) 2>/dev/null | busybox sha256sum >/dev/null
busybox seq 1 $((n % 5 * 4000 + 4000)) | busybox gzip | busybox gunzip | busybox sort -n | busybox md5sum >/dev/null
i=0; while [ $i -lt 40 ]; do i=$((i + 1)); busybox true; done
busybox awk 'BEGIN { for (i = 0; i < 60000; i++) s += i * i; print s }' >/dev/null
busybox sleep $((n % 4))
echo TURN $n
done`

function compileChurn(): Uint8Array {
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-soak-'))
  try {
    const program = join(folder, 'churn')
    const source = fileURLToPath(new URL('churn.c', import.meta.url))
    execFileSync('gcc', ['-static', '-O2', '-Wall', '-Werror', '-s', '-o', program, source])
    return readFileSync(program)
  } finally {
    rmSync(folder, { recursive: true })
  }
}

interface Sample {
  readonly seconds: number
  readonly residentMib: number
  readonly turns: number
  readonly counters: Record<string, number>
}

async function take(machine: Machine, text: ConsoleText, seconds: number): Promise<Sample> {
  await machine.pause()
  const [counters] = (await machine.metrics()).vcpus
  await machine.resume()
  const turns = Number([...text.all.matchAll(/TURN (\d+)\s/g)].at(-1)?.[1] ?? 0)
  text.all = text.all.slice(-200)
  return { seconds, residentMib: process.memoryUsage.rss() / 2 ** 20, turns, counters: counters! }
}

const print = ({ seconds, residentMib, turns, counters }: Sample): void =>
  console.log(
    `${seconds.toFixed(0).padStart(5)} s  ${residentMib.toFixed(0)} MiB  turn ${turns}  ` +
      `${(counters.instructions! / 1e9).toFixed(1)} G instructions  ${counters.compiledRegions} regions compiled, ` +
      `${(counters.compiledBytes! / 2 ** 20).toFixed(0)} MiB of them, forgotten ${counters.compiledEvictions} times`,
  )

const most = (samples: readonly Sample[]): number => Math.max(...samples.map(({ residentMib }) => residentMib))

export async function fuzz(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({ args: [...args], options: { seconds: { type: 'string', default: '600' } } })
  const limit = Number(values.seconds)
  const { path, modules } = await findKernel()
  const files = { '/churn': { content: compileChurn(), mode: 0o755 }, '/load.sh': { content: Buffer.from(LOAD) } }
  const machine = await Machine.create({
    kernel: { path, immutable: true },
    initrd: buildInitramfs({ modules, busybox: BUSYBOX, files }),
    cmdline: 'console=ttyS0 quiet panic=-1 vitrine.exec="sh /load.sh"',
    memoryMib: 256,
    accel: 'soft',
  })
  const samples: Sample[] = []
  try {
    const text = new ConsoleText(machine)
    const began = Date.now()
    machine.start()
    while (Date.now() - began < limit * 1000) {
      await new Promise(resolve => setTimeout(resolve, SAMPLE_MS))
      if (machine.exit) throw new Error(`the guest ended: ${machine.exit.reason}\n${text.all.slice(-2000)}`)
      samples.push(await take(machine, text, (Date.now() - began) / 1000))
      if (samples.length % 6 === 0) print(samples.at(-1)!)
    }
  } finally {
    await machine.close()
  }
  const third = Math.ceil(samples.length / 3)
  const [early, late] = [most(samples.slice(third >> 1, third)), most(samples.slice(-third))]
  const { turns, counters } = samples.at(-1)!
  console.log(
    `most memory after the warm-up ${early.toFixed(0)} MiB, in the last third ${late.toFixed(0)} MiB; ${turns} turns`,
  )
  if (turns === 0) console.error('the load never got through one turn')
  if (counters.compiledEvictions === 0) console.error('nothing was ever collected: let it run longer')
  return turns > 0 && counters.compiledEvictions! > 0 && late < early * MOST_GROWTH
}
