/**
 * The LZMA decoder inside XZ: LZMA2 chunks into a growing output, which is also the dictionary. After the LZMA
 * specification (lzma-specification.txt, Igor Pavlov) and the LZMA2 chunk layout in "The .xz File Format".
 */
import { corrupt, tooLarge } from './faults.ts'

const PROB_INIT = 1024
const TOP = 1 << 24
const STATES = 12
const LITERAL_SIZE = 0x300
const MATCH_MIN = 2
const END_MARKER_LENGTH_STATES = 4

/** Output that doubles as it fills, up to a limit. */
export class Output {
  bytes: Uint8Array
  size = 0
  readonly #limit: number

  constructor(expected: number, limit: number) {
    this.#limit = limit
    this.bytes = new Uint8Array(Math.min(Math.max(expected, 4096), limit))
  }

  reserve(more: number): void {
    const needed = this.size + more
    if (needed <= this.bytes.length) return
    if (needed > this.#limit) throw tooLarge('XZ', this.#limit)
    const larger = new Uint8Array(Math.min(this.#limit, Math.max(needed, this.bytes.length * 2)))
    larger.set(this.bytes.subarray(0, this.size))
    this.bytes = larger
  }
}

class LengthDecoder {
  readonly choice = new Uint16Array(2)
  readonly low = new Uint16Array(16 << 3)
  readonly mid = new Uint16Array(16 << 3)
  readonly high = new Uint16Array(256)

  reset(): void {
    this.choice.fill(PROB_INIT)
    this.low.fill(PROB_INIT)
    this.mid.fill(PROB_INIT)
    this.high.fill(PROB_INIT)
  }
}

export class Lzma2Decoder {
  readonly #input: Uint8Array
  readonly #output: Output
  #at: number
  #end = 0
  #range = 0
  #code = 0

  readonly #literal = new Uint16Array(LITERAL_SIZE << 4)
  readonly #isMatch = new Uint16Array(STATES << 4)
  readonly #isRep = new Uint16Array(STATES)
  readonly #isRep0 = new Uint16Array(STATES)
  readonly #isRep1 = new Uint16Array(STATES)
  readonly #isRep2 = new Uint16Array(STATES)
  readonly #isRep0Long = new Uint16Array(STATES << 4)
  readonly #posSlot = new Uint16Array(END_MARKER_LENGTH_STATES << 6)
  readonly #posSpecial = new Uint16Array(128)
  readonly #posAlign = new Uint16Array(16)
  readonly #length = new LengthDecoder()
  readonly #repLength = new LengthDecoder()
  #state = 0
  #rep0 = 0
  #rep1 = 0
  #rep2 = 0
  #rep3 = 0
  #lc = 0
  #lp = 0
  #pb = 0
  /** Where the dictionary starts in the output: matches reach no further back. */
  #dictionaryStart: number

  constructor(input: Uint8Array, at: number, output: Output) {
    this.#input = input
    this.#at = at
    this.#output = output
    this.#dictionaryStart = output.size
  }

  /** Decodes chunks up to the end marker; the position in the input after it. */
  decode(): number {
    let needsDictionary = true
    let needsProperties = true
    for (;;) {
      const control = this.#byte()
      if (control === 0) return this.#at
      if (control >= 0x80) {
        const unpacked = ((control & 0x1f) << 16) + (this.#byte() << 8) + this.#byte() + 1
        const packed = (this.#byte() << 8) + this.#byte() + 1
        const reset = (control >> 5) & 3
        if (reset === 3) {
          this.#dictionaryStart = this.#output.size
          needsDictionary = false
        }
        if (needsDictionary) throw corrupt('XZ', 'the first chunk does not reset the dictionary')
        if (reset >= 2) {
          this.#setProperties(this.#byte())
          needsProperties = false
        }
        if (needsProperties) throw corrupt('XZ', 'a chunk without properties')
        if (reset >= 1) this.#resetState()
        this.#chunk(unpacked, packed)
      } else {
        if (control > 2) throw corrupt('XZ', `unknown chunk 0x${control.toString(16)}`)
        if (control === 1) {
          this.#dictionaryStart = this.#output.size
          needsDictionary = false
        }
        if (needsDictionary) throw corrupt('XZ', 'the first chunk does not reset the dictionary')
        this.#copyChunk((this.#byte() << 8) + this.#byte() + 1)
      }
    }
  }

  #byte(): number {
    if (this.#at >= this.#input.length) throw corrupt('XZ', 'it is truncated')
    return this.#input[this.#at++]!
  }

  #copyChunk(size: number): void {
    if (this.#at + size > this.#input.length) throw corrupt('XZ', 'it is truncated')
    const output = this.#output
    output.reserve(size)
    output.bytes.set(this.#input.subarray(this.#at, this.#at + size), output.size)
    output.size += size
    this.#at += size
  }

  #setProperties(value: number): void {
    if (value >= 9 * 5 * 5) throw corrupt('XZ', `LZMA properties ${value}`)
    this.#lc = value % 9
    const rest = (value - this.#lc) / 9
    this.#lp = rest % 5
    this.#pb = (rest - this.#lp) / 5
    if (this.#lc + this.#lp > 4) throw corrupt('XZ', 'lc + lp is more than 4')
  }

  #resetState(): void {
    this.#literal.fill(PROB_INIT)
    this.#isMatch.fill(PROB_INIT)
    this.#isRep.fill(PROB_INIT)
    this.#isRep0.fill(PROB_INIT)
    this.#isRep1.fill(PROB_INIT)
    this.#isRep2.fill(PROB_INIT)
    this.#isRep0Long.fill(PROB_INIT)
    this.#posSlot.fill(PROB_INIT)
    this.#posSpecial.fill(PROB_INIT)
    this.#posAlign.fill(PROB_INIT)
    this.#length.reset()
    this.#repLength.reset()
    this.#state = 0
    this.#rep0 = this.#rep1 = this.#rep2 = this.#rep3 = 0
  }

  #chunk(unpacked: number, packed: number): void {
    this.#end = this.#at + packed
    if (this.#end > this.#input.length || packed < 5) throw corrupt('XZ', 'it is truncated')
    const output = this.#output
    output.reserve(unpacked)
    if (this.#byte() !== 0) throw corrupt('XZ', 'a range coder that does not start with 0')
    this.#range = 0xffff_ffff
    this.#code = ((this.#byte() << 24) | (this.#byte() << 16) | (this.#byte() << 8) | this.#byte()) >>> 0
    const stop = output.size + unpacked
    while (output.size < stop) this.#symbol(stop)
    this.#normalize()
    if (this.#at !== this.#end || this.#code !== 0) throw corrupt('XZ', 'a chunk does not end where it should')
  }

  /** One literal or match. */
  #symbol(stop: number): void {
    const output = this.#output
    const position = output.size - this.#dictionaryStart
    const posState = position & ((1 << this.#pb) - 1)
    if (this.#bit(this.#isMatch, (this.#state << 4) + posState) === 0) {
      this.#literalByte(position)
      return
    }
    let length: number
    if (this.#bit(this.#isRep, this.#state) === 0) {
      this.#rep3 = this.#rep2
      this.#rep2 = this.#rep1
      this.#rep1 = this.#rep0
      length = this.#readLength(this.#length, posState)
      this.#state = this.#state < 7 ? 7 : 10
      this.#rep0 = this.#readDistance(length)
    } else {
      if (this.#bit(this.#isRep0, this.#state) === 0) {
        if (this.#bit(this.#isRep0Long, (this.#state << 4) + posState) === 0) {
          this.#state = this.#state < 7 ? 9 : 11
          this.#copyMatch(1, stop)
          return
        }
      } else {
        let distance: number
        if (this.#bit(this.#isRep1, this.#state) === 0) distance = this.#rep1
        else {
          if (this.#bit(this.#isRep2, this.#state) === 0) distance = this.#rep2
          else {
            distance = this.#rep3
            this.#rep3 = this.#rep2
          }
          this.#rep2 = this.#rep1
        }
        this.#rep1 = this.#rep0
        this.#rep0 = distance
      }
      length = this.#readLength(this.#repLength, posState)
      this.#state = this.#state < 7 ? 8 : 11
    }
    this.#copyMatch(length, stop)
  }

  #literalByte(position: number): void {
    const { bytes } = this.#output
    const at = this.#output.size
    const previous = position > 0 ? bytes[at - 1]! : 0
    const context = ((position & ((1 << this.#lp) - 1)) << this.#lc) + (previous >> (8 - this.#lc))
    const base = LITERAL_SIZE * context
    let symbol = 1
    if (this.#state >= 7) {
      if (this.#rep0 >= position) throw corrupt('XZ', 'a match from before the start')
      let match = bytes[at - this.#rep0 - 1]!
      do {
        const matchBit = (match >> 7) & 1
        match <<= 1
        const bit = this.#bit(this.#literal, base + ((1 + matchBit) << 8) + symbol)
        symbol = (symbol << 1) | bit
        if (matchBit !== bit) break
      } while (symbol < 0x100)
    }
    while (symbol < 0x100) symbol = (symbol << 1) | this.#bit(this.#literal, base + symbol)
    bytes[at] = symbol & 0xff
    this.#output.size = at + 1
    this.#state = this.#state < 4 ? 0 : this.#state < 10 ? this.#state - 3 : this.#state - 6
  }

  #copyMatch(length: number, stop: number): void {
    const output = this.#output
    const at = output.size
    const distance = this.#rep0 + 1
    if (distance > at - this.#dictionaryStart) throw corrupt('XZ', 'a match from before the start')
    if (at + length > stop) throw corrupt('XZ', 'a match past the end of its chunk')
    const { bytes } = output
    if (distance >= length) bytes.copyWithin(at, at - distance, at - distance + length)
    else for (let i = 0; i < length; i++) bytes[at + i] = bytes[at + i - distance]!
    output.size = at + length
  }

  #readLength(decoder: LengthDecoder, posState: number): number {
    if (this.#bit(decoder.choice, 0) === 0) return MATCH_MIN + this.#tree(decoder.low, posState << 3, 3)
    if (this.#bit(decoder.choice, 1) === 0) return MATCH_MIN + 8 + this.#tree(decoder.mid, posState << 3, 3)
    return MATCH_MIN + 16 + this.#tree(decoder.high, 0, 8)
  }

  #readDistance(length: number): number {
    const lengthState = Math.min(length - MATCH_MIN, END_MARKER_LENGTH_STATES - 1)
    const slot = this.#tree(this.#posSlot, lengthState << 6, 6)
    if (slot < 4) return slot
    const directBits = (slot >> 1) - 1
    let distance = ((2 | (slot & 1)) << directBits) >>> 0
    if (slot < 14) return distance + this.#reverseTree(this.#posSpecial, distance - slot, directBits)
    distance += this.#directBits(directBits - 4) * 16
    return distance + this.#reverseTree(this.#posAlign, 0, 4)
  }

  #normalize(): void {
    if (this.#range >= TOP) return
    if (this.#at >= this.#end) throw corrupt('XZ', 'a chunk reads past its end')
    this.#range = (this.#range << 8) >>> 0
    this.#code = ((this.#code << 8) | this.#input[this.#at++]!) >>> 0
  }

  #bit(probabilities: Uint16Array, index: number): number {
    this.#normalize()
    const probability = probabilities[index]!
    const bound = (this.#range >>> 11) * probability
    if (this.#code < bound) {
      this.#range = bound
      probabilities[index] = probability + ((2048 - probability) >> 5)
      return 0
    }
    this.#range -= bound
    this.#code -= bound
    probabilities[index] = probability - (probability >> 5)
    return 1
  }

  #directBits(count: number): number {
    let result = 0
    for (let i = 0; i < count; i++) {
      this.#normalize()
      this.#range >>>= 1
      const bit = this.#code >= this.#range ? 1 : 0
      if (bit) this.#code -= this.#range
      result = result * 2 + bit
    }
    return result
  }

  #tree(probabilities: Uint16Array, base: number, bits: number): number {
    let node = 1
    for (let i = 0; i < bits; i++) node = (node << 1) | this.#bit(probabilities, base + node)
    return node - (1 << bits)
  }

  /** `base + node` starts at 1, so `posSpecial` is addressed from distance - slot, as in the specification. */
  #reverseTree(probabilities: Uint16Array, base: number, bits: number): number {
    let node = 1
    let result = 0
    for (let i = 0; i < bits; i++) {
      const bit = this.#bit(probabilities, base + node)
      node = (node << 1) | bit
      result |= bit << i
    }
    return result
  }
}
