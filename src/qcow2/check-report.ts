/** What a check found, and the words for it. */
const MAX_MESSAGES = 100

/** What a check found. */
export class CheckReport {
  /** Things that lose data: a missing reference, a wrong flag, a table that overlaps another. */
  corruptions = 0
  /** Clusters that nothing refers to but that count as used: they waste space. */
  leaks = 0
  corruptionsFixed = 0
  leaksFixed = 0
  /** Clusters of the disk, of which stored, of those compressed and not next to their neighbour. */
  totalClusters = 0
  allocatedClusters = 0
  compressedClusters = 0
  fragmentedClusters = 0
  /** Where the last used cluster of the file ends. */
  imageEndOffset = 0
  /** The first hundred findings, in words. */
  readonly messages: string[] = []

  corruption(message: string): void {
    this.corruptions++
    this.#say(`error: ${message}`)
  }

  leak(message: string): void {
    this.leaks++
    this.#say(`leak: ${message}`)
  }

  get isClean(): boolean {
    return this.corruptions === 0 && this.leaks === 0
  }

  #say(message: string): void {
    if (this.messages.length < MAX_MESSAGES) this.messages.push(message)
  }
}
