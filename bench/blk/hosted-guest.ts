/**
 * A VMM with a guest that waits for loads on its console, in the emulated AMD host. It is talked to by pipes with names,
 * through a shell that sleeps while a load runs: the host has two slow processors, and the VMM is to have both.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { AmdHost } from '../../test/testbed/amd-host.ts'
import type { Sample } from '../harness/benchmark.ts'
import { CELLS, CLOCK_COMMAND, checkClock, commandOf, measured } from './cells.ts'

const BOOT_S = 150
const SAMPLE_MS = 240_000

/** Starts a VMM in the background. It holds both pipes open itself, so that nobody else's closing matters. */
const START = `
mkfifo "$1.in" "$1.out"
exec 3<>"$1.in" 4<>"$1.out"
base=$1; shift
setsid "$@" <&3 >&4 2>"$base.err" &
`
const READY = `
exec 4<"$1.out"
while read -r line; do case $line in LOAD-READY*) exit 0;; esac; echo "$line"; done <&4
exit 1
`
const SAMPLE = `
exec 3>"$1.in" 4<"$1.out"
while read -r command; do
  began=$(date +%s%N)
  echo "$command" >&3
  while read -r line <&4; do case $line in RESULT*|FAILED*) break;; esac; done
  echo "$(( ($(date +%s%N) - began) / 1000000 )) $line"
done < "$2"
`

export class HostedGuest {
  readonly #host: AmdHost
  readonly #base: string
  #round = 0

  private constructor(host: AmdHost, base: string) {
    this.#host = host
    this.#base = base
  }

  static async boot(host: AmdHost, folder: string, name: string, command: readonly string[]): Promise<HostedGuest> {
    const base = join(folder, name)
    const script = (name: string, text: string): string => {
      const path = join(host.share, name)
      writeFileSync(path, text)
      return path
    }
    await host.run(['sh', script('start.sh', START), base, ...command])
    const ready = await host.run(['timeout', String(BOOT_S), 'sh', script('ready.sh', READY), base], {
      timeoutMs: (BOOT_S + 30) * 1000,
    })
    if (ready.status !== 0) {
      const { stdout } = await host.run(['tail', '-n', '20', `${base}.err`])
      throw new Error(`${name} did not boot: ${ready.stdout.slice(-1000)}\n${stdout}`)
    }
    script('sample.sh', SAMPLE)
    const guest = new HostedGuest(host, base)
    const [clock] = await guest.#ask([CLOCK_COMMAND])
    checkClock(clock!.outsideMs)
    return guest
  }

  async #ask(commands: readonly string[]): Promise<{ outsideMs: number; answer: string }[]> {
    const file = join(this.#host.share, 'commands')
    writeFileSync(file, commands.map(command => `${command}\n`).join(''))
    const argv = ['sh', join(this.#host.share, 'sample.sh'), this.#base, file]
    const { stdout } = await this.#host.run(argv, { timeoutMs: SAMPLE_MS })
    const lines = stdout.trim().split('\n')
    return commands.map((command, i) => {
      const [, outsideMs, answer] = /^(\d+) (.*)$/.exec(lines[i]?.trim() ?? '') ?? []
      if (answer === undefined) throw new Error(`no answer to '${command}': ${stdout}`)
      return { outsideMs: Number(outsideMs), answer }
    })
  }

  async sample(): Promise<Sample> {
    const answers = await this.#ask(CELLS.map(cell => commandOf(cell, this.#round)))
    this.#round++
    return Object.fromEntries(
      CELLS.map((cell, i) => [cell.metric.name, measured(cell, answers[i]!.answer, answers[i]!.outsideMs)]),
    )
  }
}
