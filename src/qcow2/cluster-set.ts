/**
 * A set of cluster numbers: open addressing in one typed array, half full at most. Numbers are not negative. Ranges that
 * stay for good (the tables of snapshots, of which a hostile file may claim terabytes) are kept as such.
 */
export class ClusterSet {
  #slots = new Float64Array(64).fill(-1)
  #count = 0
  /** Ranges that stay, apart from each other and in order: starts and ends. */
  #starts: number[] = []
  #ends: number[] = []

  get size(): number {
    return this.#count
  }

  has(cluster: number): boolean {
    return this.#slots[this.#slotOf(cluster)] === cluster || (this.#starts.length > 0 && this.#inRange(cluster))
  }

  /** False when it was there already. */
  add(cluster: number): boolean {
    const slot = this.#slotOf(cluster)
    if (this.#slots[slot] === cluster) return false
    this.#slots[slot] = cluster
    if (++this.#count * 2 > this.#slots.length) this.#grow()
    return true
  }

  addRange(first: number, count: number): boolean {
    let fresh = true
    for (let i = 0; i < count; i++) fresh = this.add(first + i) && fresh
    return fresh
  }

  /** Adds ranges, which may overlap; `delete` does nothing to them. */
  setRanges(ranges: readonly { readonly first: number; readonly count: number }[]): void {
    this.#starts = []
    this.#ends = []
    for (const { first, count } of ranges.filter(range => range.count > 0).sort((a, b) => a.first - b.first)) {
      const last = this.#ends.length - 1
      if (last >= 0 && first <= this.#ends[last]!) this.#ends[last] = Math.max(this.#ends[last]!, first + count)
      else {
        this.#starts.push(first)
        this.#ends.push(first + count)
      }
    }
  }

  #inRange(cluster: number): boolean {
    let low = 0
    let high = this.#starts.length
    while (low < high) {
      const middle = (low + high) >>> 1
      if (this.#starts[middle]! <= cluster) low = middle + 1
      else high = middle
    }
    return low > 0 && cluster < this.#ends[low - 1]!
  }

  delete(cluster: number): void {
    let slot = this.#slotOf(cluster)
    if (this.#slots[slot] !== cluster) return
    this.#count--
    this.#slots[slot] = -1
    // What follows in the same probe run moves up, so that no search stops short at the gap.
    const mask = this.#slots.length - 1
    for (slot = (slot + 1) & mask; this.#slots[slot] !== -1; slot = (slot + 1) & mask) {
      const moved = this.#slots[slot]!
      this.#slots[slot] = -1
      this.#slots[this.#slotOf(moved)] = moved
    }
  }

  #slotOf(cluster: number): number {
    const mask = this.#slots.length - 1
    let slot = Math.imul(cluster | 0, 0x9e3779b1) ^ Math.imul((cluster / 4294967296) | 0, 0x85ebca6b)
    for (slot = (slot ^ (slot >>> 15)) & mask; ; slot = (slot + 1) & mask) {
      const held = this.#slots[slot]!
      if (held === cluster || held === -1) return slot
    }
  }

  #grow(): void {
    const old = this.#slots
    this.#slots = new Float64Array(old.length * 2).fill(-1)
    for (const cluster of old) if (cluster !== -1) this.#slots[this.#slotOf(cluster)] = cluster
  }
}
