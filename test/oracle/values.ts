/** Operand values worth trying: edges of every width, and floating-point numbers of every class. */
import { Random } from './random.ts'

const MASK64 = 0xffff_ffff_ffff_ffffn
const EDGES: readonly bigint[] = [
  0n,
  1n,
  2n,
  7n,
  8n,
  15n,
  16n,
  31n,
  32n,
  33n,
  63n,
  64n,
  0x7fn,
  0x80n,
  0xffn,
  0x100n,
  0x7fffn,
  0x8000n,
  0xffffn,
  0x1_0000n,
  0x7fff_ffffn,
  0x8000_0000n,
  0xffff_ffffn,
  0x1_0000_0000n,
  0x7fff_ffff_ffff_ffffn,
  0x8000_0000_0000_0000n,
  MASK64,
  MASK64 - 1n,
  0xaaaa_aaaa_aaaa_aaaan,
  0x5555_5555_5555_5555n,
  0x0123_4567_89ab_cdefn,
]

function integer(random: Random): bigint {
  switch (random.below(5)) {
    case 0:
      return random.pick(EDGES)
    case 1:
      return (random.pick(EDGES) + BigInt(random.below(9)) - 4n) & MASK64
    case 2:
      return BigInt(random.below(256))
    case 3:
      return (MASK64 - BigInt(random.below(0x10000))) & MASK64
    default:
      return random.u64()
  }
}

/** A number of `exponentBits` and `fractionBits` of some class, as its bits. */
function real(random: Random, exponentBits: number, fractionBits: number): bigint {
  const sign = BigInt(random.below(2)) << BigInt(exponentBits + fractionBits)
  const maxExponent = (1 << exponentBits) - 1
  const bias = maxExponent >> 1
  let fraction = random.u64() & ((1n << BigInt(fractionBits)) - 1n)
  // Few significant bits, so that exact results and ties occur.
  const kind = random.below(4)
  if (kind === 0) fraction &= ((1n << BigInt(random.below(fractionBits))) - 1n) ^ ((1n << BigInt(fractionBits)) - 1n)
  if (kind === 1) fraction = random.once(2) ? 0n : (1n << BigInt(fractionBits)) - 1n
  let exponent: number
  switch (random.below(12)) {
    case 0:
      return sign
    case 1:
      exponent = 0
      break
    case 2:
      exponent = maxExponent
      if (random.once(2)) fraction = 0n
      break
    case 3:
      exponent = 1 + random.below(3)
      break
    case 4:
      exponent = maxExponent - 1 - random.below(3)
      break
    case 5:
      exponent = random.below(maxExponent + 1)
      break
    case 6:
      exponent = bias + random.below(70)
      break
    default:
      exponent = bias - 4 + random.below(9)
  }
  return sign | (BigInt(exponent) << BigInt(fractionBits)) | fraction
}

/** An 80-bit number: 10 bytes at `offset`. */
function makeExtended(random: Random, view: DataView, offset: number): void {
  const bits = real(random, 15, 63)
  const top = Number(bits >> 63n)
  let mantissa = bits & 0x7fff_ffff_ffff_ffffn
  // The explicit integer bit; wrong now and then: pseudo-denormals and unsupported encodings.
  const isNormal = (top & 0x7fff) !== 0
  if (isNormal !== random.once(40)) mantissa |= 0x8000_0000_0000_0000n
  view.setBigUint64(offset, mantissa, true)
  view.setUint16(offset + 8, top, true)
}

/**
 * Values of each kind, made once from a seed of their own: making one takes BigInts, and a case needs dozens. Picking from 8,192 of a
 * kind leaves 67 million pairs.
 */
const POOL = 8192
const POOL_SEED = 0x56495452

export type Kind = 'integer' | 'single' | 'double' | 'extended'

function makePool(kind: Kind): DataView {
  const random = new Random(POOL_SEED)
  const view = new DataView(new ArrayBuffer(POOL * 16))
  for (let i = 0; i < POOL; i++) {
    const at = i * 16
    if (kind === 'integer') view.setBigUint64(at, integer(random), true)
    else if (kind === 'double') view.setBigUint64(at, real(random, 11, 52), true)
    else if (kind === 'single') {
      view.setUint32(at, Number(real(random, 8, 23)), true)
      view.setUint32(at + 4, Number(real(random, 8, 23)), true)
    } else makeExtended(random, view, at)
  }
  return view
}

const pools = new Map<Kind, DataView>()

/** Writes a value of `kind` at `offset`: 8 bytes, or 10 for an 80-bit number. */
export function putValue(random: Random, kind: Kind, view: DataView, offset: number): void {
  let pool = pools.get(kind)
  if (!pool) {
    pool = makePool(kind)
    pools.set(kind, pool)
  }
  const from = random.below(POOL) * 16
  view.setUint32(offset, pool.getUint32(from, true), true)
  view.setUint32(offset + 4, pool.getUint32(from + 4, true), true)
  if (kind === 'extended') view.setUint16(offset + 8, pool.getUint16(from + 8, true), true)
}
