/**
 * Power cuts: a session of random operations is recorded, then cut at every point of its write log, with the writes
 * since the last flush all kept, all lost, or partly kept in another order. Every result has to open, to pass the check
 * with leaks at most, and to have every byte that a finished flush covered.
 */
import type { BlockImage } from '../block-image.ts'
import { checkStorage } from '../check.ts'
import { formatQcow2 } from '../create.ts'
import { Qcow2Image } from '../qcow2-image.ts'
import { RawImage } from '../raw-image.ts'
import { readDisk, writeDisk } from './disk-io.ts'
import { type Change, MemoryStorage, survivors } from './memory-storage.ts'
import { Random } from './random.ts'
import { contentsOf, expectSame, type Geometry, randomStep } from './random-disk.ts'

/** What one operation of the guest did to the disk; `bytes` undefined for zeros. */
interface GuestWrite {
  readonly offset: number
  readonly bytes: Uint8Array
}

/** A point of the log where a flush of the guest had returned: everything in `model` is safe from here on. */
interface Milestone {
  readonly at: number
  readonly model: Uint8Array
  /** Index of the first guest write after it. */
  readonly writes: number
}

export interface PowerCutResult {
  readonly cuts: number
  readonly leaks: number
}

export interface PowerCutOptions {
  readonly steps: number
  /** Called with some of the cut images, for a second opinion. */
  readonly onSample?: (image: Uint8Array) => void
  readonly sampleEvery?: number
}

export function playPowerCuts(seed: number, options: PowerCutOptions): PowerCutResult {
  const random = new Random(seed)
  // Every second run has the smallest clusters and the widest refcounts: new blocks and larger tables are needed often.
  const tight = seed % 2 === 0
  const version = !tight && random.chance(0.3) ? 2 : 3
  const clusterSize = tight ? 512 : random.pick([512, 1024, 4096, 65536])
  const size = tight ? 512 * 250 : Math.min(clusterSize * random.pick([10, 80, 250]), 384 * 1024)
  const refcountBits = tight ? 64 : 2 ** random.below(7)
  const geometry: Geometry = { version, clusterSize, size, ...(version === 3 ? { refcountBits } : {}) }
  const base = random.chance(0.6) ? random.bytes(size - 512 * random.below(4)) : undefined
  return new PowerCutRun(random, geometry, base, options).play()
}

class PowerCutRun {
  readonly #random: Random
  readonly #geometry: Geometry
  readonly #base: Uint8Array | undefined
  readonly #options: PowerCutOptions
  readonly #storage = new MemoryStorage()
  readonly #milestones: Milestone[] = []
  readonly #writes: GuestWrite[] = []
  /** The log's length before each guest write began. */
  readonly #began: number[] = []
  #cuts = 0
  #leaks = 0

  constructor(random: Random, geometry: Geometry, base: Uint8Array | undefined, options: PowerCutOptions) {
    this.#random = random
    this.#geometry = geometry
    this.#base = base
    this.#options = options
  }

  play(): PowerCutResult {
    const size = this.#geometry.size
    formatQcow2(this.#storage, 'memory', this.#geometry)
    this.#storage.flush()
    const model = new Uint8Array(size)
    if (this.#base) model.set(this.#base.subarray(0, size))
    // Some of the disk is written before: what is there already is what a crash could lose.
    const filled = this.#open(this.#storage)
    const before = this.#random.bytes(512 * this.#random.below(Math.floor(size / 512)))
    writeDisk(filled, 0, before)
    model.set(before)
    filled.close()
    this.#milestones.push({ at: this.#storage.log.length, model: model.slice(), writes: 0 })
    const image = this.#open(this.#storage)
    for (let i = 0; i < this.#options.steps; i++) this.#step(image, model)
    image.close()
    this.#milestones.push({ at: this.#storage.log.length, model: model.slice(), writes: this.#writes.length })
    this.#cutEverywhere()
    return { cuts: this.#cuts, leaks: this.#leaks }
  }

  #backing(): BlockImage | undefined {
    return this.#base && new RawImage(new MemoryStorage(this.#base, false), 'base', { readOnly: true })
  }

  #open(storage: MemoryStorage): Qcow2Image {
    return new Qcow2Image(storage, 'memory', { backing: this.#backing(), l2CacheBytes: 4096, refcountCacheBytes: 4096 })
  }

  #step(image: Qcow2Image, model: Uint8Array): void {
    const random = this.#random
    const { kind, offset, length } = randomStep(random, image.sizeBytes, image.clusterSize)
    const began = this.#storage.log.length
    if (kind === 'flush') {
      image.flush()
      this.#milestones.push({ at: this.#storage.log.length, model: model.slice(), writes: this.#writes.length })
      return
    }
    if (kind === 'read') return
    if (kind === 'write') writeDisk(image, offset, random.bytes(length), 1 + random.below(3))
    else if (kind === 'zero') image.writeZeroes(offset, length, random.chance(0.5))
    else image.discard(offset, length)
    const after = readDisk(image, offset, length).slice()
    model.set(after, offset)
    this.#writes.push({ offset, bytes: after })
    this.#began.push(began)
  }

  #cutEverywhere(): void {
    const log = this.#storage.log
    const first = this.#milestones[0]!.at
    const durable = new MemoryStorage(new Uint8Array(0), false)
    let pending: Change[] = []
    for (let i = 0; i < first; i++) durable.apply(log[i]!)
    for (let at = first; at <= log.length; at++) {
      this.#cut(durable, pending, at)
      if (pending.length > 0) {
        this.#cut(durable, [], at)
        this.#cut(durable, survivors(pending, this.#random), at)
        this.#cut(durable, survivors(pending, this.#random), at)
      }
      const change = log[at]
      if (!change) break
      if (change.kind === 'flush') {
        for (const done of pending) durable.apply(done)
        pending = []
      } else pending.push(change)
    }
  }

  #cut(durable: MemoryStorage, kept: readonly Change[], at: number): void {
    const storage = new MemoryStorage(durable.contents(), false)
    for (const change of kept) storage.apply(change)
    const where = `cut ${this.#cuts} after ${at} changes`
    const contents = storage.contents()
    const report = checkStorage(storage, 'memory')
    if (report.corruptions > 0) throw new Error(`${where}: ${report.messages.join('; ')}`)
    this.#leaks += report.leaks
    this.#verify(storage, at, where)
    const every = this.#options.sampleEvery ?? 0
    if (every > 0 && this.#cuts % every === 0) this.#options.onSample?.(contents)
    this.#cuts++
  }

  /** Each sector is as the last finished flush left it, or as one of the writes since then wants it. */
  #verify(storage: MemoryStorage, at: number, where: string): void {
    const milestone = this.#milestones.findLast(candidate => candidate.at <= at)!
    const image = this.#open(storage)
    const actual = contentsOf(image)
    for (let offset = 0; offset < actual.length; offset += 512) {
      const sector = actual.subarray(offset, offset + 512)
      if (Buffer.compare(sector, milestone.model.subarray(offset, offset + 512)) === 0) continue
      const allowed = this.#writes.some((write, index) => {
        if (index < milestone.writes || this.#began[index]! > at) return false
        if (write.offset > offset || write.offset + write.bytes.length <= offset) return false
        const from = offset - write.offset
        return Buffer.compare(sector, write.bytes.subarray(from, from + 512)) === 0
      })
      if (!allowed) throw new Error(`${where}: the sector at ${offset} has neither its flushed nor a later content`)
    }
    // It has to go on working, too.
    const bytes = this.#random.bytes(512)
    writeDisk(image, 0, bytes)
    expectSame(readDisk(image, 0, 512), bytes, where)
    image.close()
    const again = checkStorage(storage, 'memory', { repair: 'leaks' })
    if (!again.isClean) throw new Error(`${where}: after going on: ${again.messages.join('; ')}`)
  }
}
