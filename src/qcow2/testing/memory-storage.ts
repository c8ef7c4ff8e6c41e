/** A file in memory that remembers every change in order, so that a power cut can be played at any point of it. */
import type { IoVector } from '../../host/io-vector.ts'
import type { Storage } from '../storage.ts'
import type { Random } from './random.ts'

export type Change =
  | { readonly kind: 'write'; readonly position: number; readonly bytes: Uint8Array }
  | { readonly kind: 'zero' | 'punch'; readonly position: number; readonly length: number }
  | { readonly kind: 'truncate'; readonly size: number }
  | { readonly kind: 'flush' }

export class MemoryStorage implements Storage {
  readonly log: Change[] = []
  #bytes: Uint8Array
  #size: number
  /** Set to make changes fail: called before each, throws what the host would. */
  onChange: ((change: Change) => void) | undefined
  readonly #recording: boolean

  constructor(contents: Uint8Array = new Uint8Array(0), recording = true) {
    this.#bytes = contents.slice()
    this.#size = contents.length
    this.#recording = recording
  }

  contents(): Uint8Array {
    return this.#bytes.slice(0, this.#size)
  }

  size(): number {
    return this.#size
  }

  read(target: Uint8Array, position: number): void {
    target.fill(0)
    if (position < this.#size)
      target.set(this.#bytes.subarray(position, Math.min(this.#size, position + target.length)))
  }

  readv(vector: IoVector, position: number): void {
    const bytes = new Uint8Array(vector.byteLength)
    this.read(bytes, position)
    vector.copyFrom(bytes)
  }

  write(source: Uint8Array, position: number): void {
    this.#change({ kind: 'write', position, bytes: source.slice() })
  }

  writev(vector: IoVector, position: number): void {
    const bytes = new Uint8Array(vector.byteLength)
    vector.copyTo(bytes)
    this.#change({ kind: 'write', position, bytes })
  }

  flush(): void {
    this.#change({ kind: 'flush' })
  }

  /** Space that is given back reads as zeros, as with most file systems: the worst for whoever still needs it. */
  giveBack(position: number, length: number): void {
    this.#change({ kind: 'punch', position, length })
  }

  punch(position: number, length: number): void {
    this.#change({ kind: 'punch', position, length })
  }

  zero(position: number, length: number): void {
    this.#change({ kind: 'zero', position, length })
  }

  truncate(size: number): void {
    this.#change({ kind: 'truncate', size })
  }

  isData(position: number): boolean {
    return position < this.#size
  }

  runEnd(position: number): number {
    return position < this.#size ? this.#size : Number.MAX_SAFE_INTEGER
  }

  close(): void {}

  #change(change: Change): void {
    this.onChange?.(change)
    if (this.#recording) this.log.push(change)
    this.apply(change)
  }

  apply(change: Change): void {
    if (change.kind === 'write') {
      this.#reach(change.position + change.bytes.length)
      this.#bytes.set(change.bytes, change.position)
    } else if (change.kind === 'zero') {
      this.#reach(change.position + change.length)
      this.#bytes.fill(0, change.position, change.position + change.length)
    } else if (change.kind === 'punch') {
      this.#bytes.fill(0, Math.min(change.position, this.#size), Math.min(change.position + change.length, this.#size))
    } else if (change.kind === 'truncate') {
      this.#reach(change.size)
      this.#bytes.fill(0, change.size)
      this.#size = change.size
    }
  }

  #reach(size: number): void {
    if (size > this.#bytes.length) {
      const larger = new Uint8Array(Math.max(size, this.#bytes.length * 2))
      larger.set(this.#bytes)
      this.#bytes = larger
    }
    this.#size = Math.max(this.#size, size)
  }
}

/** What a disk may do with writes that no flush followed: keep some sectors of some of them, in any order. */
export function survivors(changes: readonly Change[], random: Random): Change[] {
  const kept: Change[] = []
  for (const change of changes) {
    if (change.kind === 'flush' || random.chance(0.4)) continue
    if (change.kind === 'write' && change.bytes.length > 512 && random.chance(0.3)) {
      const sectors = Math.ceil(change.bytes.length / 512)
      for (let i = 0; i < sectors; i++) {
        if (random.chance(0.5)) continue
        kept.push({
          kind: 'write',
          position: change.position + i * 512,
          bytes: change.bytes.slice(i * 512, (i + 1) * 512),
        })
      }
    } else kept.push(change)
  }
  for (let i = kept.length - 1; i > 0; i--) {
    const j = random.below(i + 1)
    const [a, b] = [kept[i]!, kept[j]!]
    // Two changes of the same bytes keep their order: the later one is what the disk was told last.
    if (random.chance(0.5) && !overlap(a, b)) [kept[i], kept[j]] = [b, a]
  }
  return kept
}

function overlap(a: Change, b: Change): boolean {
  const range = (c: Change): [number, number] =>
    c.kind === 'write'
      ? [c.position, c.position + c.bytes.length]
      : 'position' in c
        ? [c.position, c.position + c.length]
        : [0, Number.MAX_VALUE]
  const [aStart, aEnd] = range(a)
  const [bStart, bEnd] = range(b)
  return aStart < bEnd && bStart < aEnd
}
