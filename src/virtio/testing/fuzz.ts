/**
 * A structure-aware fuzzer for devices. A seed gives a sequence of what a guest can do: mostly well-formed requests, with
 * every now and then a field that is not. After each sequence the device must work again after a reset; throughout,
 * nothing may throw, and nothing outside the guest's buffers may change.
 */
import { readdirSync } from 'node:fs'
import { STATICS_BASE, STATICS_END } from '../../memory/layout.ts'
import * as reg from '../mmio/registers.ts'
import { restoreTransport, saveTransport } from '../mmio/state.ts'
import { INDIRECT, NEXT, type Segment, WRITE } from './driver.ts'
import type { Mounted, Subject } from './subjects.ts'

const RAM = 32 * 2 ** 20
/** Guest memory that no descriptor of ours names. */
const SANCTUARY = 0x8_0000
const SANCTUARY_SIZE = 0x8_0000
const BUFFERS = 24 * 2 ** 20

/** mulberry32: small, fast, and the same everywhere. */
export function randomFrom(seed: number): () => number {
  let state = seed | 0
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32
  }
}

class FuzzRun {
  readonly #subject: Subject
  readonly #mounted: Mounted
  readonly #random: () => number

  constructor(subject: Subject, mounted: Mounted, random: () => number) {
    this.#subject = subject
    this.#mounted = mounted
    this.#random = random
  }

  #int(limit: number): number {
    return Math.floor(this.#random() * limit)
  }

  #pick<T>(values: readonly T[]): T {
    return values[this.#int(values.length)]!
  }

  #chance(probability: number): boolean {
    return this.#random() < probability
  }

  step(): void {
    const { bench } = this.#mounted
    const { driver } = bench
    const action = this.#random()
    if (action < 0.55) this.#request()
    else if (action < 0.7) bench.run(50)
    else if (action < 0.78) this.#mounted.provoke(this.#pick(this.#subject.attackable))
    else if (action < 0.84) this.#scribble()
    else if (action < 0.9) this.#window()
    else if (action < 0.93) for (const request of this.#subject.controls(this.#random)) bench.device.control?.(request)
    else if (action < 0.95) this.#restart()
    else for (const queue of driver.queues) queue?.takeUsed()
    if (driver.status & reg.STATUS_NEEDS_RESET) this.#restart()
  }

  #restart(): void {
    const { driver } = this.#mounted.bench
    const refuse = this.#chance(0.3) ? [this.#pick([0, 1, 2, 5, 9, 15, 28, 29])] : []
    driver.start(this.#subject.queues, this.#pick([undefined, undefined, 4, 16]), refuse)
  }

  /** A buffer somewhere that requests may be. */
  #segment(write: boolean): Segment {
    const lengths = [1, 4, 11, 12, 16, 43, 44, 72, 100, 512, 513, 4096, 5000, 65_536, 1 + this.#int(8192)]
    return { address: BUFFERS + this.#int(6 * 2 ** 20), length: this.#pick(lengths), write }
  }

  #request(): void {
    const { driver } = this.#mounted.bench
    const queue = driver.queues[this.#int(this.#subject.queues)]
    if (queue === undefined) return
    const head = this.#subject.requestHead(this.#random)
    const first = { address: BUFFERS + this.#int(2 ** 20) * 4, length: head.length }
    const segments: Segment[] = []
    if (head.length > 0 && this.#chance(0.85)) {
      driver.memory.write(first.address, head)
      segments.push(first)
    }
    const readable = this.#int(3)
    const writable = this.#int(4)
    for (let i = 0; i < readable; i++) segments.push(this.#segment(false))
    for (let i = 0; i < writable; i++) segments.push(this.#segment(true))
    if (segments.length === 0) segments.push(this.#segment(this.#chance(0.5)))
    if (queue.freeDescriptors < segments.length) {
      queue.takeUsed()
      if (queue.freeDescriptors < segments.length) return
    }
    const taken = queue.add(segments, this.#chance(0.3))
    if (this.#chance(0.05)) this.#spoil(taken)
    if (this.#chance(0.5)) queue.ring()
  }

  /** Breaks one descriptor that is already available. */
  #spoil(index: number): void {
    const { driver } = this.#mounted.bench
    const queue = this.#pick(driver.queues.filter(candidate => candidate !== undefined))
    const address = this.#pick([BUFFERS, RAM - 8, RAM, 0xc000_1000, 2 ** 63, BUFFERS + this.#int(4096)])
    const length = this.#pick([0, 1, 16, 17, 4096, 0xffff_ffff])
    const flags = this.#pick([0, NEXT, WRITE, INDIRECT, NEXT | WRITE, INDIRECT | NEXT, 0xffff])
    queue.writeDescriptor(index % queue.size, address, length, flags, this.#int(queue.size + 2))
  }

  /** Writes to the rings themselves. */
  #scribble(): void {
    const { driver } = this.#mounted.bench
    const queue = this.#pick(driver.queues.filter(candidate => candidate !== undefined))
    const what = this.#random()
    if (what < 0.3) queue.setAvailIndex(this.#int(0x1_0000))
    else if (what < 0.6) queue.offer(this.#int(queue.size + 4))
    else if (what < 0.8) driver.memory.writeU16(queue.avail + 4 + 2 * queue.size, this.#int(0x1_0000))
    else driver.memory.writeU16(queue.used + 2 * this.#int(4), this.#int(0x1_0000))
    if (this.#chance(0.5)) queue.ring()
  }

  #window(): void {
    const { driver } = this.#mounted.bench
    const size = this.#pick([1, 2, 4, 8])
    const offset = this.#pick([this.#int(0x100) & ~3, reg.CONFIG + this.#int(64), this.#int(0x1000 - size)])
    if (this.#chance(0.5)) driver.read(offset, size)
    else driver.write(offset, this.#int(2 ** 32), size)
  }
}

export interface FuzzResult {
  readonly steps: number
  readonly faults: number
  readonly completions: boolean
}

const openDescriptors = (): number => readdirSync('/proc/self/fd').length

/** One sequence. Throws when an invariant does not hold; the message names the seed. */
export function fuzzDevice(subject: Subject, seed: number, steps: number): FuzzResult {
  const random = randomFrom(seed)
  const before = openDescriptors()
  const mounted = subject.mount({ sizeMib: 32 })
  const { bench } = mounted
  const fail = (what: string): never => {
    throw new Error(`fuzzing ${subject.name} with seed ${seed} over ${steps} steps: ${what}`)
  }
  const sanctuary = bench.memory.slice(SANCTUARY, SANCTUARY_SIZE).fill(0xa5)
  const statics = bench.memory.bytes.subarray(STATICS_BASE, STATICS_END)
  try {
    bench.driver.start(subject.queues)
    const run = new FuzzRun(subject, mounted, random)
    for (let i = 0; i < steps; i++) run.step()
    bench.run(1000)
    if (bench.errors.length > 0) fail(`an error that is not the guest's: ${String(bench.errors[0])}`)
    if (!sanctuary.every(byte => byte === 0xa5)) fail('guest memory outside every buffer was written')
    if (!statics.every(byte => byte === 0)) fail("the host's part of the shared memory was written")
    const faults = Number(bench.metrics.guestFaults)
    // Whatever state it is in can be saved, and put back into a fresh device of the same kind.
    const saved = JSON.parse(JSON.stringify(saveTransport(bench.transport)))
    restoreInto(subject, saved, fail)
    bench.driver.start(subject.queues)
    if (!mounted.works()) fail('the device does not work after a reset')
    return { steps, faults, completions: true }
  } finally {
    mounted.close()
    const after = openDescriptors()
    if (after !== before) fail(`${after - before} descriptors were left open`)
  }
}

function restoreInto(
  subject: Subject,
  saved: Parameters<typeof restoreTransport>[1],
  fail: (what: string) => never,
): void {
  const fresh = subject.mount({ sizeMib: 32 })
  try {
    restoreTransport(fresh.bench.transport, saved)
    fresh.bench.run(100)
    if (fresh.bench.errors.length > 0) fail(`a restored device failed: ${String(fresh.bench.errors[0])}`)
  } finally {
    fresh.close()
  }
}
