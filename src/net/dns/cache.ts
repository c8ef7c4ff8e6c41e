/** Answers that were given already: bounded, each for as long as its records live, with what is left of that told. */
import { type DnsRecord, TYPE_OPT } from './message.ts'

interface Kept {
  readonly message: Uint8Array
  readonly records: readonly DnsRecord[]
  /** No record is said to live longer than this. */
  readonly most: number
  readonly storedAt: number
  readonly until: number
}

const MAX_TTL_S = 3600

export class DnsCache {
  readonly #kept = new Map<string, Kept>()
  readonly #limit: number
  readonly #clock: () => number

  constructor(limit: number, clock: () => number) {
    this.#limit = limit
    this.#clock = clock
  }

  get size(): number {
    return this.#kept.size
  }

  clear(): void {
    this.#kept.clear()
  }

  /** Keeps an answer that has records, for the shortest of their lives, and no longer than `most` seconds. */
  store(key: string, message: Uint8Array, records: readonly DnsRecord[], most: number): void {
    let life = Math.min(MAX_TTL_S, most)
    let real = 0
    for (const { type, ttl } of records) {
      if (type === TYPE_OPT) continue
      real++
      life = Math.min(life, ttl)
    }
    if (real === 0 || life === 0) return
    if (this.#kept.size >= this.#limit) this.#kept.delete(this.#kept.keys().next().value!)
    const now = this.#clock()
    this.#kept.delete(key)
    this.#kept.set(key, { message: message.slice(), records, most, storedAt: now, until: now + life * 1000 })
  }

  /** A copy with the lives that are left; undefined when there is none. */
  find(key: string): { message: Uint8Array; records: readonly DnsRecord[] } | undefined {
    const kept = this.#kept.get(key)
    if (kept === undefined) return undefined
    const now = this.#clock()
    if (now >= kept.until) {
      this.#kept.delete(key)
      return undefined
    }
    const message = kept.message.slice()
    const view = new DataView(message.buffer)
    const age = Math.floor((now - kept.storedAt) / 1000)
    for (const { type, ttl, ttlAt } of kept.records)
      if (type !== TYPE_OPT) view.setUint32(ttlAt, Math.min(ttl, kept.most) - age)
    return { message, records: kept.records }
  }
}
