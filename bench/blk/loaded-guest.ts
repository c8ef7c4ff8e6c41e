/** A VMM with a guest that waits for loads on its console, on this machine. */
import { type ChildProcess, spawn } from 'node:child_process'
import type { Sample } from '../harness/benchmark.ts'
import { CELLS, CLOCK_COMMAND, checkClock, commandOf, measured } from './cells.ts'

const BOOT_MS = 90_000
const ANSWER_MS = 60_000
/** QEMU's microvm under TCG sometimes never gets a timer tick. */
const ATTEMPTS = 4

export class LoadedGuest {
  readonly #child: ChildProcess
  #text = ''
  #round = 0
  #ended = false
  #wake: () => void = () => {}

  private constructor(command: readonly string[]) {
    this.#child = spawn(command[0]!, command.slice(1), { stdio: ['pipe', 'pipe', 'inherit'] })
    this.#child.stdout!.on('data', (bytes: Buffer) => {
      this.#text += bytes.toString('latin1')
      this.#wake()
    })
    this.#child.on('close', () => {
      this.#ended = true
      this.#wake()
    })
  }

  static async boot(command: readonly string[], log: (message: string) => void): Promise<LoadedGuest> {
    for (let attempt = 1; ; attempt++) {
      const guest = new LoadedGuest(command)
      try {
        await guest.#line(/LOAD-READY/, BOOT_MS)
        const began = performance.now()
        await guest.#ask(CLOCK_COMMAND)
        checkClock(performance.now() - began)
        return guest
      } catch (error) {
        guest.end()
        if (attempt >= ATTEMPTS) throw error
        log(`${(error as Error).message}; once more`)
      }
    }
  }

  /** Waits for a line that matches, and forgets what was printed up to its end. */
  async #line(pattern: RegExp, limitMs: number): Promise<string> {
    const end = Date.now() + limitMs
    for (;;) {
      for (let at = this.#text.indexOf('\n'); at >= 0; at = this.#text.indexOf('\n')) {
        const line = this.#text.slice(0, at).trim()
        this.#text = this.#text.slice(at + 1)
        if (pattern.test(line)) return line
      }
      if (this.#ended || Date.now() > end) {
        throw new Error(`${this.#child.spawnfile} did not print ${pattern}, but: ${this.#text.slice(-500)}`)
      }
      await new Promise<void>(resolve => {
        this.#wake = resolve
        setTimeout(resolve, 1000)
      })
    }
  }

  #ask(command: string): Promise<string> {
    this.#child.stdin!.write(`${command}\n`)
    return this.#line(/RESULT|FAILED/, ANSWER_MS)
  }

  async sample(): Promise<Sample> {
    const sample: Record<string, number> = {}
    for (const cell of CELLS) {
      const began = performance.now()
      const answer = await this.#ask(commandOf(cell, this.#round))
      sample[cell.metric.name] = measured(cell, answer, performance.now() - began)
    }
    this.#round++
    return sample
  }

  end(): void {
    this.#child.kill('SIGKILL')
  }
}
