/** Random operations on an image and, the same, on a plain array of bytes. */
import type { BlockImage } from '../block-image.ts'
import type { CreateOptions } from '../create.ts'
import type { Qcow2Image } from '../qcow2-image.ts'
import { readDisk, writeDisk } from './disk-io.ts'
import type { Random } from './random.ts'

export interface Geometry extends CreateOptions {
  readonly clusterSize: number
}

/** Small disks with every cluster size and refcount width: the smaller the cluster, the more tables move. */
export function randomGeometry(random: Random): Geometry {
  const version = random.chance(0.25) ? 2 : 3
  const clusterSize = 2 ** random.pick([9, 9, 10, 11, 12, 12, 14, 16, 16, 18, 21])
  const clusters = random.pick([3, 20, 100, 300])
  const size = Math.min(clusterSize * clusters + random.below(clusterSize / 512) * 512, 24 * 1024 * 1024)
  if (version === 2) return { version, clusterSize, size }
  return { version, clusterSize, size, refcountBits: 2 ** random.below(7) }
}

export interface Step {
  readonly kind: 'write' | 'read' | 'discard' | 'zero' | 'flush'
  readonly offset: number
  readonly length: number
}

export function randomStep(random: Random, size: number, clusterSize: number): Step {
  const kind = random.pick(['write', 'write', 'write', 'write', 'read', 'read', 'discard', 'zero', 'flush'] as const)
  if (kind === 'flush') return { kind, offset: 0, length: 0 }
  const aligned = random.chance(0.3)
  const unit = aligned ? clusterSize : 512
  const offset = Math.floor(random.below(size) / unit) * unit
  const most = Math.min(
    size - offset,
    random.pick([4096, clusterSize, clusterSize * 3, clusterSize * 20, clusterSize * 100]),
  )
  const length = Math.max(512, Math.floor((1 + random.below(most)) / unit) * unit || 512)
  return { kind, offset, length: Math.min(length, size - offset) }
}

/** A disk image and what it must contain. */
export class ModelledDisk {
  readonly image: Qcow2Image
  readonly model: Uint8Array
  readonly #random: Random

  constructor(image: Qcow2Image, model: Uint8Array, random: Random) {
    this.image = image
    this.model = model
    this.#random = random
  }

  /** One operation on both. Throws when a read differs. */
  step(): Step {
    const { image, model } = this
    const random = this.#random
    const step = randomStep(random, image.sizeBytes, image.clusterSize)
    const { kind, offset, length } = step
    const end = offset + length
    if (kind === 'write') {
      const bytes = random.bytes(length)
      writeDisk(image, offset, bytes, 1 + random.below(4))
      model.set(bytes, offset)
    } else if (kind === 'zero') {
      image.writeZeroes(offset, length, random.chance(0.5))
      model.fill(0, offset, end)
    } else if (kind === 'discard') {
      image.discard(offset, length)
      const first = Math.ceil(offset / image.clusterSize) * image.clusterSize
      const last = end === image.sizeBytes ? end : Math.floor(end / image.clusterSize) * image.clusterSize
      // Version 2 cannot hide its backing file, so a discard over it changes nothing.
      const seen = image.header.version === 2 ? (image.backing?.sizeBytes ?? 0) : 0
      const from = Math.max(first, Math.ceil(seen / image.clusterSize) * image.clusterSize)
      if (last > from) model.fill(0, from, last)
    } else if (kind === 'flush') image.flush()
    else expectSame(readDisk(image, offset, length), model.subarray(offset, end), `read at ${offset}`)
    return step
  }

  verify(): void {
    expectSame(readDisk(this.image, 0, this.image.sizeBytes), this.model, 'the whole disk')
  }
}

export function expectSame(actual: Uint8Array, expected: Uint8Array, what: string): void {
  if (Buffer.compare(actual, expected) === 0) return
  let at = 0
  while (actual[at] === expected[at]) at++
  throw new Error(
    `${what}: byte ${at} is ${actual[at]} instead of ${expected[at]} (lengths ${actual.length}, ${expected.length})`,
  )
}

export const contentsOf = (image: BlockImage): Uint8Array => readDisk(image, 0, image.sizeBytes)
