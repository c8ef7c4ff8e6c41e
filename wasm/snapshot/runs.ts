/**
 * Which parts of a chain of memory layers are mapped (src/snapshot/mapping-plan.ts says what for). Sets of pages are bitmaps in words of 64:
 *
 *   for every layer, bottom first: pages that it holds | pages that it says are zeros
 *   then, of `show`: pages that any layer shows
 *   then scratch: pages that a layer below shows | pages that must not be covered
 */

/** How many pages are in a set. */
export function count(set: usize, words: i32): i32 {
  let total: u64 = 0
  for (let i = 0; i < words; i++) total += popcnt(load<u64>(set + ((<usize>i) << 3)))
  return <i32>total
}

/** Puts the pages that a layer shows, those that no layer above says anything of, in the place of its zeros. */
export function show(base: usize, layers: i32, words: i32): void {
  const bytes = (<usize>words) << 3
  const any = base + 2 * <usize>layers * bytes
  for (let at: usize = 0; at < bytes; at += 8) {
    let open: u64 = ~0
    let shown: u64 = 0
    for (let layer = layers - 1; layer >= 0; layer--) {
      const data = base + 2 * <usize>layer * bytes + at
      const own = load<u64>(data)
      const zero = load<u64>(data + bytes)
      store<u64>(data + bytes, own & open)
      shown |= own & open
      open &= ~(own | zero)
    }
    store<u64>(any + at, shown)
  }
}

/** The first page from `from` on that is in the set, or with `flip` ~0 that is not; `limit` when there is none before it. */
function next(set: usize, from: i32, flip: u64, limit: i32): i32 {
  let page = from
  while (page < limit) {
    const rest = (load<u64>(set + ((<usize>(page >> 6)) << 3)) ^ flip) >> (page & 63)
    if (rest != 0) return min(limit, page + <i32>ctz(rest))
    page = (page | 63) + 1
  }
  return limit
}

/** Whether no more than `gap` pages in a row are missing in the set between two pages. */
function isDense(set: usize, from: i32, to: i32, gap: i32): bool {
  for (let page = next(set, from, ~0, to); page < to; ) {
    const end = next(set, page, 0, to)
    if (end - page > gap) return false
    page = next(set, end, ~0, to)
  }
  return true
}

/**
 * Writes what is to be mapped, layer by layer from the bottom, to `out`: three words each, layer, first page and pages. A run goes on over pages that a layer
 * above will be mapped over, and over up to `gap` pages in a row that are zeros and a hole in its file. How many there are; those past `room` are not written.
 */
export function runs(base: usize, layers: i32, words: i32, pages: i32, gap: i32, out: usize, room: i32): i32 {
  const bytes = (<usize>words) << 3
  const any = base + 2 * <usize>layers * bytes
  const below = any + bytes
  const solid = below + bytes
  memory.fill(below, 0, bytes)
  let found = 0
  for (let layer = 0; layer < layers; layer++) {
    const data = base + 2 * <usize>layer * bytes
    const own = data + bytes
    for (let at: usize = 0; at < bytes; at += 8)
      store<u64>(solid + at, load<u64>(below + at) | (load<u64>(data + at) & ~load<u64>(any + at)))
    for (let first = next(own, 0, 0, pages); first < pages; ) {
      let end = next(own, first, ~0, pages)
      let after = next(own, end, 0, pages)
      while (after < pages && next(solid, end, 0, after) == after && isDense(any, end, after, gap)) {
        end = next(own, after, ~0, pages)
        after = next(own, end, 0, pages)
      }
      if (found < room) {
        const at = out + 12 * <usize>found
        store<u32>(at, layer)
        store<u32>(at, first, 4)
        store<u32>(at, end - first, 8)
      }
      found++
      first = after
    }
    for (let at: usize = 0; at < bytes; at += 8) store<u64>(below + at, load<u64>(below + at) | load<u64>(own + at))
  }
  return found
}
