/** What the rules forbade: the latest for whoever asks, each kind once in a log. A guest that tries for ever fills neither. */
import { closeSync, openSync, writeSync } from 'node:fs'
import { formatAddress } from './addresses.ts'

const MAX_KEPT = 128
const MAX_LOGGED = 10_000

/** Something that the rules did not let a guest reach. */
export interface Denial {
  readonly protocol: 'tcp' | 'udp' | 'icmp' | 'dns'
  /** An address, or the name that was asked for. */
  readonly target: string
  /** 0 where there is none. */
  readonly port: number
  /** When it was last tried, in milliseconds since 1970, and how often in all. */
  at: number
  times: number
}

export class Denials {
  readonly #kept = new Map<string, Denial>()
  readonly #log: number | undefined
  #logged = 0

  constructor(log: string | undefined) {
    this.#log = log === undefined ? undefined : openSync(log, 'a', 0o600)
  }

  /** The latest last. */
  get latest(): readonly Denial[] {
    return [...this.#kept.values()]
  }

  addAddress(protocol: 'tcp' | 'udp' | 'icmp', address: Uint8Array, port: number): void {
    this.add(protocol, formatAddress(address), port)
  }

  add(protocol: Denial['protocol'], target: string, port: number): void {
    const key = `${protocol} ${target} ${port}`
    let denial = this.#kept.get(key)
    if (denial === undefined) {
      if (this.#kept.size >= MAX_KEPT) this.#kept.delete(this.#kept.keys().next().value!)
      denial = { protocol, target, port, at: 0, times: 0 }
      this.#write(denial)
    } else this.#kept.delete(key)
    denial.at = Date.now()
    denial.times++
    this.#kept.set(key, denial)
  }

  #write({ protocol, target, port }: Denial): void {
    if (this.#log === undefined || this.#logged >= MAX_LOGGED) return
    this.#logged++
    const last = this.#logged === MAX_LOGGED ? '; no more are logged in this run' : ''
    const where = port === 0 ? target : `${target} port ${port}`
    try {
      writeSync(this.#log, `${new Date().toISOString()} denied ${protocol} to ${where}${last}\n`)
    } catch {
      // A full disk costs the log, not the network.
      this.#logged = MAX_LOGGED
    }
  }

  close(): void {
    if (this.#log !== undefined) closeSync(this.#log)
  }
}
