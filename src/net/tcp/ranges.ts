/** A few ranges of sequence numbers, sorted and apart: what came out of order, or what the peer says it has. */
import { distance } from './segment.ts'

export class Ranges {
  readonly starts: Uint32Array
  readonly ends: Uint32Array
  count = 0
  /** The range that changed last: SACK reports it first (RFC 2018, 4). */
  latest = 0

  constructor(limit: number) {
    this.starts = new Uint32Array(limit)
    this.ends = new Uint32Array(limit)
  }

  clear(): void {
    this.count = 0
    this.latest = 0
  }

  /** Adds `start`..`end`, joining what it touches. False when there is no room for one more: nothing is added then. */
  add(start: number, end: number): boolean {
    let first = 0
    while (first < this.count && distance(this.ends[first]!, start) < 0) first++
    let last = first
    let low = start
    let high = end
    while (last < this.count && distance(this.starts[last]!, end) <= 0) {
      if (distance(this.starts[last]!, low) < 0) low = this.starts[last]!
      if (distance(this.ends[last]!, high) > 0) high = this.ends[last]!
      last++
    }
    if (last === first) {
      if (this.count === this.starts.length) return false
      this.starts.copyWithin(first + 1, first, this.count)
      this.ends.copyWithin(first + 1, first, this.count)
      this.count++
    } else if (last > first + 1) {
      this.starts.copyWithin(first + 1, last, this.count)
      this.ends.copyWithin(first + 1, last, this.count)
      this.count -= last - first - 1
    }
    this.starts[first] = low
    this.ends[first] = high
    this.latest = first
    return true
  }

  /** Forgets all before `sequence`. */
  trim(sequence: number): void {
    let gone = 0
    while (gone < this.count && distance(this.ends[gone]!, sequence) <= 0) gone++
    if (gone > 0) {
      this.starts.copyWithin(0, gone, this.count)
      this.ends.copyWithin(0, gone, this.count)
      this.count -= gone
      this.latest = Math.max(0, this.latest - gone)
    }
    if (this.count > 0 && distance(this.starts[0]!, sequence) < 0) this.starts[0] = sequence
  }
}
