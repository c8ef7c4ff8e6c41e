import { roomFor } from './wasm.ts'

/** A set of pages of guest memory: one bit a page, in RAM order. */
export class PageSet {
  readonly words: Uint32Array
  readonly pages: number

  constructor(pages: number, words: Uint32Array = new Uint32Array(Math.ceil(pages / 32))) {
    this.pages = pages
    this.words = words
  }

  has(page: number): boolean {
    return ((this.words[page >>> 5]! >>> (page & 31)) & 1) === 1
  }

  add(page: number): void {
    this.words[page >>> 5]! |= 1 << (page & 31)
  }

  delete(page: number): void {
    this.words[page >>> 5]! &= ~(1 << (page & 31))
  }

  get count(): number {
    const { bytes } = this
    const words = Math.ceil(bytes.length / 8)
    const room = roomFor(words * 8)
    room.bytes.fill(0, bytes.length)
    room.bytes.set(bytes)
    return room.wasm.count(room.base, words)
  }

  /** The first page from `from` on that is in the set (or, with `wanted` false, is not); `pages` when there is none. */
  next(from: number, wanted: boolean): number {
    let page = from
    while (page < this.pages) {
      const word = wanted ? this.words[page >>> 5]! : ~this.words[page >>> 5]!
      const rest = word >>> (page & 31)
      if (rest !== 0) return Math.min(this.pages, page + 31 - Math.clz32(rest & -rest))
      page = (page | 31) + 1
    }
    return this.pages
  }

  /** True when no page of the range is in the set. */
  isFree(from: number, to: number): boolean {
    return this.next(from, true) >= to
  }

  /** The words as the bytes that a file holds, little-endian as every host of ours is. */
  get bytes(): Uint8Array {
    return new Uint8Array(this.words.buffer, this.words.byteOffset, this.words.byteLength)
  }
}
