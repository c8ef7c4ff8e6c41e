/** Sets of guest pages, a bit each, in the order of the shared memory: page 0 is at RAM_OFFSET. */
export type PageBits = Uint32Array

export const emptyPages = (pages: number): PageBits => new Uint32Array(Math.ceil(pages / 32))

export function addPages(target: PageBits, more: PageBits): void {
  for (let i = 0; i < target.length; i++) target[i]! |= more[i]!
}

export function addRange(target: PageBits, first: number, count: number): void {
  for (let page = first; page < first + count; page++) target[page >>> 5]! |= 1 << (page & 31)
}

export function countPages(bits: PageBits): number {
  let count = 0
  for (let word of bits) for (; word !== 0; word &= word - 1) count++
  return count
}

/** Calls `visit` for every run of set bits, in order, in pieces of at most `longest` pages. */
export function eachRun(
  bits: PageBits,
  pages: number,
  longest: number,
  visit: (first: number, count: number) => void,
): void {
  let first = -1
  for (let page = 0; page <= pages; page++) {
    if (first < 0 && (page & 31) === 0) {
      while (page < pages && bits[page >>> 5] === 0) page += 32
    }
    const set = page < pages && ((bits[page >>> 5]! >>> (page & 31)) & 1) !== 0
    if (set && first < 0) first = page
    if (first >= 0 && (!set || page - first === longest)) {
      visit(first, page - first)
      first = set ? page : -1
    }
  }
}
