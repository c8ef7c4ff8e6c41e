/** The word that was probably meant: for mistyped commands and options. */

/** The fewest insertions, deletions, replacements and swaps of neighbours that make one word of the other. */
function distance(a: string, b: string): number {
  // Row i of the table: the distances of the first i letters of `a` to every beginning of `b`.
  let before: number[] = []
  let last = Array.from({ length: b.length + 1 }, (_, j) => j)
  for (let i = 1; i <= a.length; i++) {
    const row = [i]
    for (let j = 1; j <= b.length; j++) {
      const replaced = last[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1)
      row[j] = Math.min(replaced, last[j]! + 1, row[j - 1]! + 1)
      const swapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]
      if (swapped) row[j] = Math.min(row[j]!, before[j - 2]! + 1)
    }
    before = last
    last = row
  }
  return last[b.length]!
}

/** The known word closest to `word`, if one is close: a third of its letters may be wrong, or it is the beginning of one. */
export function nearest(word: string, known: readonly string[]): string | undefined {
  const limit = Math.max(1, Math.floor(word.length / 3))
  const close = known
    .map(candidate => ({ candidate, steps: distance(word, candidate) }))
    .filter(({ steps, candidate }) => steps <= limit && steps < candidate.length)
    .sort((a, b) => a.steps - b.steps)[0]
  return close?.candidate ?? (word.length > 1 ? known.find(candidate => candidate.startsWith(word)) : undefined)
}
