/** The tables of RFC 8878 that the encoder needs: length codes (3.1.1.3.2.1) and FSE states (4.1.1). */

/** Codes of literal lengths and match lengths: base value and number of extra bits of each. Match lengths less 3. */
export class LengthCodes {
  readonly literalBase = Int32Array.of(
    ...Array.from({ length: 16 }, (_, i) => i),
    ...[16, 18, 20, 22, 24, 28, 32, 40, 48, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536],
  )
  readonly literalBits = Uint8Array.of(
    ...Array<number>(16).fill(0),
    ...[1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
  )
  readonly matchBase = Int32Array.of(
    ...Array.from({ length: 32 }, (_, i) => i),
    ...[32, 34, 36, 38, 40, 44, 48, 56, 64, 80, 96, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536],
  )
  readonly matchBits = Uint8Array.of(
    ...Array<number>(32).fill(0),
    ...[1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
  )
  readonly #literalCodes = codesBelow(64, this.literalBase)
  readonly #matchCodes = codesBelow(128, this.matchBase)

  /** From 64 on, each power of two is a code of its own: 25 is 64. */
  literalCode(length: number): number {
    return length < 64 ? this.#literalCodes[length]! : 25 + (31 - Math.clz32(length)) - 6
  }

  /** From 128 on likewise: 43 is 128. */
  matchCode(length: number): number {
    return length < 128 ? this.#matchCodes[length]! : 43 + (31 - Math.clz32(length)) - 7
  }
}

function codesBelow(limit: number, bases: Int32Array): Uint8Array {
  const codes = new Uint8Array(limit)
  for (let value = 0, code = 0; value < limit; value++) {
    while (code + 1 < bases.length && bases[code + 1]! <= value) code++
    codes[value] = code
  }
  return codes
}

export interface FseTable {
  readonly size: number
  /** Of each state: the bits that a decoder reads to leave it, and what they are added to. */
  readonly bits: Uint8Array
  readonly baseline: Uint8Array
  /** A state of each symbol, to end in. */
  readonly first: Uint8Array
  /** For symbol s and following state n at [s * size + n]: the state with that symbol that leads to n. */
  readonly before: Uint8Array
}

/** Spreads symbols over states by their probabilities; -1 is "less than one". */
export function fseTable(log: number, probabilities: readonly number[]): FseTable {
  const size = 1 << log
  const symbols = new Uint8Array(size)
  const next = probabilities.map(probability => Math.abs(probability))
  let high = size - 1
  probabilities.forEach((probability, symbol) => {
    if (probability === -1) symbols[high--] = symbol
  })
  let position = 0
  probabilities.forEach((probability, symbol) => {
    for (let i = 0; i < probability; i++) {
      symbols[position] = symbol
      do position = (position + (size >> 1) + (size >> 3) + 3) & (size - 1)
      while (position > high)
    }
  })
  const bits = new Uint8Array(size)
  const baseline = new Uint8Array(size)
  const first = new Uint8Array(probabilities.length)
  const before = new Uint8Array(probabilities.length * size)
  for (let state = size - 1; state >= 0; state--) first[symbols[state]!] = state
  for (let state = 0; state < size; state++) {
    const symbol = symbols[state]!
    const rank = next[symbol]!++
    bits[state] = log - (31 - Math.clz32(rank))
    baseline[state] = (rank << bits[state]!) - size
    for (let i = 0; i < 1 << bits[state]!; i++) before[symbol * size + baseline[state]! + i] = state
  }
  return { size, bits, baseline, first, before }
}

/** Bits, least significant first; a single 1 closes them, by which a backward reader finds the start. */
export class BitWriter {
  readonly #output: Uint8Array
  #at: number
  #held = 0
  #count = 0

  constructor(output: Uint8Array, at: number) {
    this.#output = output
    this.#at = at
  }

  add(value: number, bits: number): void {
    if (bits > 16) {
      this.add(value & 0xffff, 16)
      this.add(value >>> 16, bits - 16)
      return
    }
    this.#held |= value << this.#count
    this.#count += bits
    while (this.#count >= 8) {
      if (this.#at < this.#output.length) this.#output[this.#at] = this.#held
      this.#at++
      this.#held >>>= 8
      this.#count -= 8
    }
  }

  /** The position after the last byte, or -1 when it did not fit. */
  finish(): number {
    this.add(1, 1)
    if (this.#count > 0) this.add(0, 8 - this.#count)
    return this.#at <= this.#output.length ? this.#at : -1
  }
}
