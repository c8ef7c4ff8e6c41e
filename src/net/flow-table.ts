/** Flows by their addresses and ports: a bounded hash table that makes no garbage when it is asked. */
import { sameAddress } from './addresses.ts'

export interface FlowKey {
  readonly guest: Uint8Array
  readonly guestPort: number
  readonly remote: Uint8Array
  readonly remotePort: number
}

/** A flow keeps its own place in the chain of its bucket. */
export interface ChainedFlow extends FlowKey {
  nextInBucket: ChainedFlow | undefined
}

const BUCKETS = 4096

export function hashOf(guest: Uint8Array, guestPort: number, remote: Uint8Array, remotePort: number): number {
  let hash = 0x811c_9dc5 ^ (guestPort << 16) ^ remotePort
  for (let i = 8; i < 16; i++) hash = Math.imul(hash ^ remote[i]!, 0x0100_0193)
  hash = Math.imul(hash ^ guest[15]!, 0x0100_0193)
  hash ^= hash >>> 15
  return hash & (BUCKETS - 1)
}

export class FlowTable<Flow extends ChainedFlow> {
  readonly #buckets: (Flow | undefined)[] = new Array<Flow | undefined>(BUCKETS).fill(undefined)
  readonly all = new Set<Flow>()
  readonly limit: number

  constructor(limit: number) {
    this.limit = limit
  }

  get full(): boolean {
    return this.all.size >= this.limit
  }

  find(guest: Uint8Array, guestPort: number, remote: Uint8Array, remotePort: number): Flow | undefined {
    let flow = this.#buckets[hashOf(guest, guestPort, remote, remotePort)]
    while (flow !== undefined) {
      const ports = flow.guestPort === guestPort && flow.remotePort === remotePort
      if (ports && sameAddress(flow.remote, remote) && sameAddress(flow.guest, guest)) return flow
      flow = flow.nextInBucket as Flow | undefined
    }
    return undefined
  }

  add(flow: Flow): void {
    const bucket = hashOf(flow.guest, flow.guestPort, flow.remote, flow.remotePort)
    flow.nextInBucket = this.#buckets[bucket]
    this.#buckets[bucket] = flow
    this.all.add(flow)
  }

  remove(flow: Flow): void {
    if (!this.all.delete(flow)) return
    const bucket = hashOf(flow.guest, flow.guestPort, flow.remote, flow.remotePort)
    let at = this.#buckets[bucket]
    if (at === flow) this.#buckets[bucket] = flow.nextInBucket as Flow | undefined
    while (at !== undefined) {
      if (at.nextInBucket === flow) at.nextInBucket = flow.nextInBucket
      at = at.nextInBucket as Flow | undefined
    }
    flow.nextInBucket = undefined
  }
}
