/**
 * Measures one boot; runs inside the emulated host, as a program of its own. Starts the VMM that its arguments name,
 * takes the time from there to the first output of user space, then what the VMM's process holds and uses while its
 * guest idles, and ends it. Prints a `BootSample` as JSON.
 *
 *   node measure.js MARKER GUEST_MIB COMMAND...
 */
import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'

export interface BootSample {
  /** From the start of the process to the first output of user space. */
  readonly bootMs: number
  /** Resident memory of the process, guest RAM left out. */
  readonly vmmMib: number
  /** CPU time of the process for each second of an idle guest. */
  readonly idleMsPerSecond: number
}

const LIMIT_MS = 150_000
const SETTLE_MS = 3000
const IDLE_MS = 5000
/** USER_HZ: the unit of utime and stime in /proc/PID/stat on every Linux architecture that we run on. */
const TICK_MS = 10

/** User and system time, a guest's included. */
function cpuMs(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * TICK_MS
}

/** Resident MiB, without the mapping that holds guest RAM: the writable ones of at least its size. */
function vmmMib(pid: number, guestMib: number): number {
  let resident = 0
  let isGuest = false
  let writable = false
  for (const line of readFileSync(`/proc/${pid}/smaps`, 'utf8').split('\n')) {
    const mapping = /^[0-9a-f]+-[0-9a-f]+ (\S+)/.exec(line)
    if (mapping) writable = mapping[1]!.startsWith('rw')
    const [, name, kib] = /^(Size|Rss):\s*(\d+) kB$/.exec(line) ?? []
    if (name === 'Size') isGuest = writable && Number(kib) >= guestMib * 1024 * 0.75
    if (name === 'Rss' && !isGuest) resident += Number(kib)
  }
  return resident / 1024
}

async function measure(
  marker: string,
  guestMib: number,
  command: string,
  args: readonly string[],
): Promise<BootSample> {
  const began = process.hrtime.bigint()
  const child = spawn(command, args, { stdio: ['pipe', 'pipe', 'pipe'] })
  try {
    const bootMs = await new Promise<number>((resolve, reject) => {
      let text = ''
      const failed = (why: string) => reject(new Error(`${command}: ${why}. It printed:\n${text.slice(-2000)}`))
      const limit = setTimeout(() => failed(`no '${marker}' in ${LIMIT_MS / 1000} s`), LIMIT_MS)
      const take = (bytes: Buffer) => {
        text += bytes.toString('latin1')
        if (!text.includes(marker)) return
        clearTimeout(limit)
        resolve(Number(process.hrtime.bigint() - began) / 1e6)
      }
      child.stdout.on('data', take)
      child.stderr.on('data', take)
      child.once('error', error => failed(error.message))
      child.once('exit', status => failed(`ended with status ${status}`))
    })
    await sleep(SETTLE_MS)
    const before = cpuMs(child.pid!)
    const from = performance.now()
    await sleep(IDLE_MS)
    const idleMsPerSecond = ((cpuMs(child.pid!) - before) / (performance.now() - from)) * 1000
    return { bootMs, vmmMib: vmmMib(child.pid!, guestMib), idleMsPerSecond }
  } finally {
    child.removeAllListeners('exit')
    child.kill('SIGKILL')
  }
}

const [marker, guestMib, command, ...args] = process.argv.slice(2)
try {
  console.log(JSON.stringify(await measure(marker!, Number(guestMib), command!, args)))
} catch (error) {
  console.error(error instanceof Error ? error.message : error)
  process.exitCode = 1
}
