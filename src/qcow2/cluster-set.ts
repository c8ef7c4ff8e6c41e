/** A set of cluster numbers: open addressing in one typed array, half full at most. Numbers are not negative. */
export class ClusterSet {
  #slots = new Float64Array(64).fill(-1)
  #count = 0

  get size(): number {
    return this.#count
  }

  has(cluster: number): boolean {
    return this.#slots[this.#slotOf(cluster)] === cluster
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
