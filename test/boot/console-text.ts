/** What a guest has printed, and waiting for it to print something; a guest that ends instead fails the wait with its last words. */
import type { Machine } from '../../src/machine/machine.ts'
import { describeExit, type MachineExit } from '../../src/machine/machine-events.ts'

export class ConsoleText {
  all = ''
  readonly #machine: Machine

  constructor(machine: Machine) {
    this.#machine = machine
    machine.on('console', data => {
      this.all += Buffer.from(data).toString('latin1')
    })
  }

  async waitFor(pattern: RegExp, limitMs = 240_000): Promise<void> {
    const deadline = Date.now() + limitMs
    while (!pattern.test(this.all)) {
      const { exit } = this.#machine
      if (exit) throw new Error(`${describeExit(exit)} before it printed ${pattern}:\n${this.#tail()}`)
      if (Date.now() > deadline) throw new Error(`the guest did not print ${pattern}:\n${this.#tail()}`)
      await new Promise(resolve => setTimeout(resolve, 20))
    }
  }

  async end(limitMs = 120_000): Promise<MachineExit> {
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<never>((_resolve, reject) => {
      timer = setTimeout(() => reject(new Error(`the guest did not end:\n${this.#tail()}`)), limitMs)
    })
    try {
      return await Promise.race([this.#machine.ended(), late])
    } finally {
      clearTimeout(timer)
    }
  }

  #tail(): string {
    return this.all.slice(-2000)
  }
}
