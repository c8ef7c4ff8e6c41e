/**
 * Exact binary floating point without an FPU: one arithmetic core for the x87's 80-bit format and for the cases of SSE
 * that the host's own arithmetic cannot do (rounding modes, exception flags, flush-to-zero).
 *
 * An operand is unpacked into globals (class, sign, unbiased exponent, 64-bit significand with its top bit set); an
 * operation leaves an exact or sticky 128-bit significand in the `r` globals; a rounding function packs it for a
 * format. Globals belong to the instance, so every vCPU has its own. Nothing is allocated.
 *
 * References: IEEE 754-2008; Intel SDM volume 1, chapters 4.8, 4.9, 8 and 11.
 */
export const IE: u32 = 1
export const DE: u32 = 2
export const ZE: u32 = 4
export const OE: u32 = 8
export const UE: u32 = 16
export const PE: u32 = 32

export const NEAREST: u32 = 0
export const DOWN: u32 = 1
export const UP: u32 = 2
export const CHOP: u32 = 3

/** Classes of an unpacked operand. A denormal has a normalised significand and raises DE when used. */
export const ZERO: u32 = 0
export const NORMAL: u32 = 1
export const DENORMAL: u32 = 2
export const INFINITE: u32 = 3
export const QNAN: u32 = 4
export const SNAN: u32 = 5
/** An encoding the 387 and later refuse: unnormals, pseudo-infinities and pseudo-NaNs. */
export const UNSUPPORTED: u32 = 6

export const ADD: u32 = 0
export const SUB: u32 = 1
export const MUL: u32 = 2
export const DIV: u32 = 3

const TOP: u64 = 0x8000000000000000

/** Exceptions raised since `begin`. */
export let flags: u32 = 0
/** The last rounding increased the magnitude: C1. */
export let roundedUp: bool = false
/** Rounding mode, masked exceptions and flush-to-zero of the current operation. */
export let mode: u32 = NEAREST
let masked: u32 = 0x3f
let flushToZero: bool = false

export let aClass: u32 = 0
export let aSign: u32 = 0
export let aExp: i32 = 0
export let aMan: u64 = 0
export let bClass: u32 = 0
export let bSign: u32 = 0
export let bExp: i32 = 0
export let bMan: u64 = 0

export let rClass: u32 = 0
export let rSign: u32 = 0
export let rExp: i32 = 0
export let rHi: u64 = 0
export let rLo: u64 = 0

/** The packed 80-bit result of `packExt`: significand, and sign with biased exponent. */
export let extMan: u64 = 0
export let extTop: u32 = 0

export function begin(rounding: u32, maskedExceptions: u32, ftz: bool): void {
  flags = 0
  roundedUp = false
  mode = rounding
  masked = maskedExceptions
  flushToZero = ftz
}

export function raiseFlags(exceptions: u32): void {
  flags |= exceptions
}

/** The rounding mode for the operations that follow, without forgetting the flags. */
export function setMode(rounding: u32): void {
  mode = rounding
}

export function setResult(kind: u32, sign: u32, exp: i32, hi: u64, lo: u64): void {
  rClass = kind
  rSign = sign
  rExp = exp
  rHi = hi
  rLo = lo
}

export function setA(kind: u32, sign: u32, exp: i32, man: u64): void {
  aClass = kind
  aSign = sign
  aExp = exp
  aMan = man
}

export function setB(kind: u32, sign: u32, exp: i32, man: u64): void {
  bClass = kind
  bSign = sign
  bExp = exp
  bMan = man
}

export function swapAB(): void {
  const kind = aClass,
    sign = aSign,
    exp = aExp,
    man = aMan
  setA(bClass, bSign, bExp, bMan)
  setB(kind, sign, exp, man)
}

// ---- unpacking

let uClass: u32 = 0
let uExp: i32 = 0
let uMan: u64 = 0

function unpackExt(man: u64, top: u32): void {
  const exp: i32 = top & 0x7fff
  if (exp == 0x7fff) {
    if (!(man & TOP)) uClass = UNSUPPORTED
    else if (man == TOP) uClass = INFINITE
    else uClass = man & 0x4000000000000000 ? QNAN : SNAN
    uExp = 0x4000
    uMan = man
  } else if (exp == 0) {
    if (man == 0) {
      uClass = ZERO
      uExp = 0
      uMan = 0
    } else {
      const shift = clz(man)
      uClass = DENORMAL
      uExp = -16382 - <i32>shift
      uMan = man << shift
    }
  } else {
    uClass = man & TOP ? NORMAL : UNSUPPORTED
    uExp = exp - 16383
    uMan = man
  }
}

function unpackBinary(fraction: u64, exp: i32, maxExp: i32, bias: i32): void {
  // `fraction` is left-aligned below the integer bit.
  if (exp == maxExp) {
    uClass = fraction == 0 ? INFINITE : fraction & 0x4000000000000000 ? QNAN : SNAN
    uExp = 0x4000
    uMan = fraction | TOP
  } else if (exp == 0) {
    if (fraction == 0) {
      uClass = ZERO
      uExp = 0
      uMan = 0
    } else {
      const shift = clz(fraction)
      uClass = DENORMAL
      uExp = 1 - bias - <i32>shift
      uMan = fraction << shift
    }
  } else {
    uClass = NORMAL
    uExp = exp - bias
    uMan = fraction | TOP
  }
}

export function unpackAExt(man: u64, top: u32): void {
  unpackExt(man, top)
  setA(uClass, (top >> 15) & 1, uExp, uMan)
}
export function unpackBExt(man: u64, top: u32): void {
  unpackExt(man, top)
  setB(uClass, (top >> 15) & 1, uExp, uMan)
}
export function unpackAF64(bits: u64): void {
  unpackBinary((bits << 11) & ~TOP, <i32>(bits >> 52) & 0x7ff, 0x7ff, 1023)
  setA(uClass, <u32>(bits >> 63), uExp, uMan)
}
export function unpackBF64(bits: u64): void {
  unpackBinary((bits << 11) & ~TOP, <i32>(bits >> 52) & 0x7ff, 0x7ff, 1023)
  setB(uClass, <u32>(bits >> 63), uExp, uMan)
}
export function unpackAF32(bits: u32): void {
  unpackBinary(((<u64>bits) << 40) & ~TOP, (bits >> 23) & 0xff, 0xff, 127)
  setA(uClass, bits >> 31, uExp, uMan)
}
export function unpackBF32(bits: u32): void {
  unpackBinary(((<u64>bits) << 40) & ~TOP, (bits >> 23) & 0xff, 0xff, 127)
  setB(uClass, bits >> 31, uExp, uMan)
}
export function unpackAInt(value: i64): void {
  if (value == 0) return setA(ZERO, 0, 0, 0)
  const magnitude: u64 = value < 0 ? 0 - <u64>value : <u64>value
  const shift = clz(magnitude)
  setA(NORMAL, value < 0 ? 1 : 0, 63 - <i32>shift, magnitude << shift)
}
export function unpackBInt(value: i64): void {
  if (value == 0) return setB(ZERO, 0, 0, 0)
  const magnitude: u64 = value < 0 ? 0 - <u64>value : <u64>value
  const shift = clz(magnitude)
  setB(NORMAL, value < 0 ? 1 : 0, 63 - <i32>shift, magnitude << shift)
}

// ---- 128-bit integers

/** High half of the product; the low half is `a * b`. */
export function mulHigh(a: u64, b: u64): u64 {
  const al = a & 0xffffffff,
    ah = a >> 32,
    bl = b & 0xffffffff,
    bh = b >> 32
  const mid = ah * bl + ((al * bl) >> 32)
  const mid2 = al * bh + (mid & 0xffffffff)
  return ah * bh + (mid >> 32) + (mid2 >> 32)
}

/** Remainder of the last `div128`. */
export let remainder128: u64 = 0

/** (hi:lo) / d for hi < d and d with its top bit set: two digits of 32 bits (Knuth, 4.3.1 D). */
export function div128(hi: u64, lo: u64, d: u64): u64 {
  const dh = d >> 32,
    dl = d & 0xffffffff
  let q1 = hi / dh
  let r = hi - q1 * dh
  while (q1 >> 32 || q1 * dl > ((r << 32) | (lo >> 32))) {
    q1--
    r += dh
    if (r >> 32) break
  }
  const mid = ((hi << 32) | (lo >> 32)) - q1 * d
  let q0 = mid / dh
  r = mid - q0 * dh
  while (q0 >> 32 || q0 * dl > ((r << 32) | (lo & 0xffffffff))) {
    q0--
    r += dh
    if (r >> 32) break
  }
  remainder128 = ((mid << 32) | (lo & 0xffffffff)) - q0 * d
  return (q1 << 32) + q0
}

/** Shifts the result's significand right, keeping lost bits as a sticky one. */
function shiftRightSticky(count: i32): void {
  if (count <= 0) return
  if (count < 64) {
    const lost = rLo << (64 - count)
    rLo = (rHi << (64 - count)) | (rLo >> count) | (lost ? 1 : 0)
    rHi >>= count
  } else if (count < 128) {
    const lost = count == 64 ? rLo : (rHi << (128 - count)) | rLo
    rLo = (count == 64 ? rHi : rHi >> (count - 64)) | (lost ? 1 : 0)
    rHi = 0
  } else {
    rLo = rHi | rLo ? 1 : 0
    rHi = 0
  }
}

// ---- arithmetic on A and B, neither of them a NaN

function isDenormalUsed(): void {
  if (aClass == DENORMAL || bClass == DENORMAL) flags |= DE
}

export function invalidResult(): void {
  flags = (flags & ~DE) | IE
  rClass = QNAN
  rSign = 1
  rExp = 0x4000
  rHi = 0xc000000000000000
  rLo = 0
}

/** A op B into the result, unrounded. Operands are not NaNs and not unsupported. */
export function arith(op: u32): void {
  if (op <= SUB) return addSub(bSign ^ op)
  const sign = aSign ^ bSign
  if (op == MUL) {
    if (aClass == INFINITE || bClass == INFINITE) {
      if (aClass == ZERO || bClass == ZERO) return invalidResult()
      isDenormalUsed()
      return setResult(INFINITE, sign, 0, 0, 0)
    }
    isDenormalUsed()
    if (aClass == ZERO || bClass == ZERO) return setResult(ZERO, sign, 0, 0, 0)
    let hi = mulHigh(aMan, bMan),
      lo = aMan * bMan,
      exp = aExp + bExp + 1
    if (!(hi & TOP)) {
      hi = (hi << 1) | (lo >> 63)
      lo <<= 1
      exp--
    }
    return setResult(NORMAL, sign, exp, hi, lo)
  }
  if (aClass == INFINITE) {
    if (bClass == INFINITE) return invalidResult()
    isDenormalUsed()
    return setResult(INFINITE, sign, 0, 0, 0)
  }
  if (bClass == INFINITE) {
    isDenormalUsed()
    return setResult(ZERO, sign, 0, 0, 0)
  }
  if (bClass == ZERO) {
    if (aClass == ZERO) return invalidResult()
    flags |= ZE
    return setResult(INFINITE, sign, 0, 0, 0)
  }
  isDenormalUsed()
  if (aClass == ZERO) return setResult(ZERO, sign, 0, 0, 0)
  let exp = aExp - bExp,
    hi = aMan,
    lo: u64 = 0
  if (hi >= bMan) {
    lo = hi << 63
    hi >>= 1
  } else exp--
  const q = div128(hi, lo, bMan)
  const q2 = div128(remainder128, 0, bMan)
  setResult(NORMAL, sign, exp, q, q2 | (remainder128 ? 1 : 0))
}

function addSub(signB: u32): void {
  if (aClass == INFINITE) {
    if (bClass == INFINITE && aSign != signB) return invalidResult()
    isDenormalUsed()
    return setResult(INFINITE, aSign, 0, 0, 0)
  }
  isDenormalUsed()
  if (bClass == INFINITE) return setResult(INFINITE, signB, 0, 0, 0)
  if (bClass == ZERO) {
    if (aClass == ZERO) return setResult(ZERO, aSign == signB ? aSign : mode == DOWN ? 1 : 0, 0, 0, 0)
    return setResult(NORMAL, aSign, aExp, aMan, 0)
  }
  if (aClass == ZERO) return setResult(NORMAL, signB, bExp, bMan, 0)
  const swap = aExp < bExp || (aExp == bExp && aMan < bMan)
  const bigSign = swap ? signB : aSign
  const bigExp = swap ? bExp : aExp
  const bigMan = swap ? bMan : aMan
  const distance = swap ? bExp - aExp : aExp - bExp
  setResult(NORMAL, bigSign, bigExp, swap ? aMan : bMan, 0)
  shiftRightSticky(distance)
  if (aSign == signB) {
    const sum = bigMan + rHi
    if (sum < bigMan) {
      rLo = (sum << 63) | (rLo >> 1) | (rLo & 1)
      rHi = (sum >> 1) | TOP
      rExp++
    } else rHi = sum
    return
  }
  const borrow: u64 = rLo ? 1 : 0
  rLo = 0 - rLo
  rHi = bigMan - rHi - borrow
  if (!(rHi | rLo)) return setResult(ZERO, mode == DOWN ? 1 : 0, 0, 0, 0)
  normaliseResult()
}

/** Brings the top bit of a non-zero result to bit 63 of `rHi`. */
export function normaliseResult(): void {
  if (rHi == 0) {
    rHi = rLo
    rLo = 0
    rExp -= 64
  }
  const shift = <i32>clz(rHi)
  if (shift) {
    rHi = (rHi << shift) | (rLo >> (64 - shift))
    rLo <<= shift
    rExp -= shift
  }
}

/** Square root of A, not a NaN. Two bits of the radicand a step: rare enough not to need Newton. */
export function squareRoot(): void {
  if (aClass == ZERO) return setResult(ZERO, aSign, 0, 0, 0)
  if (aSign) return invalidResult()
  if (aClass == INFINITE) return setResult(INFINITE, 0, 0, 0, 0)
  if (aClass == DENORMAL) flags |= DE
  // The radicand as a 128-bit integer whose root has 64 bits: an even exponent leaves one bit clear at the top.
  let hi = aMan,
    lo: u64 = 0
  if (!(aExp & 1)) {
    lo = hi << 63
    hi >>= 1
  }
  let root: u64 = 0,
    remLo: u64 = 0,
    remHi: u64 = 0
  for (let i = 0; i < 64; i++) {
    remHi = (remHi << 2) | (remLo >> 62)
    remLo = (remLo << 2) | (hi >> 62)
    hi = (hi << 2) | (lo >> 62)
    lo <<= 2
    const trialHi = root >> 62
    const trialLo = (root << 2) | 1
    root <<= 1
    if (remHi > trialHi || (remHi == trialHi && remLo >= trialLo)) {
      remHi = remHi - trialHi - (remLo < trialLo ? 1 : 0)
      remLo -= trialLo
      root |= 1
    }
  }
  const sticky: u64 = remHi || remLo > root ? 0xc000000000000000 : remLo ? 0x4000000000000000 : 0
  setResult(NORMAL, 0, aExp >> 1, root, sticky)
}

// ---- rounding and packing

/** True when the discarded `fraction` (of 2^64) makes the kept value `odd` or even grow. */
function roundsUp(sign: u32, fraction: u64, odd: bool): bool {
  if (mode == NEAREST) return fraction > TOP || (fraction == TOP && odd)
  if (mode == CHOP) return false
  return fraction != 0 && (mode == UP) == (sign == 0)
}

let carried: bool = false
let inexact: bool = false

/** Rounds the significand to `precision` bits from the top, in place; says whether it carried out or lost anything. */
function roundSignificand(precision: u32): void {
  let fraction: u64, ulp: u64
  if (precision == 64) {
    fraction = rLo
    ulp = 1
  } else {
    fraction = (rHi << precision) | (rLo ? 1 : 0)
    ulp = (<u64>1) << (64 - precision)
    rHi &= 0 - ulp
  }
  rLo = 0
  inexact = fraction != 0
  carried = false
  roundedUp = false
  if (roundsUp(rSign, fraction, (rHi & ulp) != 0)) {
    roundedUp = true
    rHi += ulp
    if (rHi < ulp) {
      carried = true
      rHi = TOP
    }
  }
}

/**
 * Rounds a NORMAL result for a format. Afterwards it is NORMAL, DENORMAL (exponent `min`, top bit clear), ZERO or
 * INFINITE. An unmasked overflow or underflow moves the exponent by `wrap` where the format keeps such results.
 */
function roundTo(precision: u32, min: i32, max: i32, wrap: i32): void {
  if (rExp < min) {
    const hi = rHi,
      lo = rLo
    // Tiny means: tiny after rounding to unbounded exponent range.
    roundSignificand(precision)
    const tiny = rExp + (carried ? 1 : 0) < min
    if (tiny && !(masked & UE)) {
      flags |= UE
      if (inexact) flags |= PE
      if (carried) rExp++
      rExp += wrap
      // FSCALE can go so far that moving the exponent does not bring it back.
      if (wrap && rExp < min) {
        flags |= PE
        roundedUp = false
        setResult(ZERO, rSign, 0, 0, 0)
      }
      return
    }
    if (tiny && flushToZero) {
      flags |= UE | PE
      roundedUp = false
      return setResult(ZERO, rSign, 0, 0, 0)
    }
    rHi = hi
    rLo = lo
    shiftRightSticky(min - rExp)
    rExp = min
    roundSignificand(precision)
    if (inexact) flags |= tiny ? UE | PE : PE
    if (rHi == 0) rClass = ZERO
    else if (!(rHi & TOP)) rClass = DENORMAL
    return
  }
  roundSignificand(precision)
  if (carried) rExp++
  if (rExp > max) {
    flags |= OE
    if (!(masked & OE)) {
      if (inexact) flags |= PE
      rExp -= wrap
      if (wrap && rExp > max) {
        flags |= PE
        roundedUp = true
        rClass = INFINITE
      }
      return
    }
    flags |= PE
    roundedUp = mode == NEAREST || (mode == UP && !rSign) || (mode == DOWN && rSign != 0)
    if (roundedUp) rClass = INFINITE
    else {
      rExp = max
      rHi = precision == 64 ? ~(<u64>0) : ~(((<u64>1) << (64 - precision)) - 1)
    }
    return
  }
  if (inexact) flags |= PE
}

/** Rounds the result to 24, 53 or 64 bits in the 80-bit format: `extMan`, `extTop`. */
export function packExt(precision: u32): void {
  if (rClass == NORMAL) roundTo(precision, -16382, 16383, 24576)
  const sign = rSign << 15
  if (rClass == ZERO) {
    extMan = 0
    extTop = sign
  } else if (rClass == INFINITE) {
    extMan = TOP
    extTop = sign | 0x7fff
  } else if (rClass == DENORMAL) {
    extMan = rHi
    extTop = sign
  } else if (rClass == NORMAL) {
    extMan = rHi
    extTop = sign | ((rExp + 16383) & 0x7fff)
  } else {
    extMan = rHi | 0xc000000000000000
    extTop = sign | 0x7fff
  }
}

/** The result as a double's bits. */
export function packF64(): u64 {
  if (rClass == NORMAL) roundTo(53, -1022, 1023, 0)
  const sign = (<u64>rSign) << 63
  if (rClass == ZERO) return sign
  if (rClass == INFINITE) return sign | 0x7ff0000000000000
  if (rClass == DENORMAL) return sign | (rHi >> 11)
  if (rClass == NORMAL) return sign | ((<u64>(rExp + 1023)) << 52) | ((rHi << 1) >> 12)
  return sign | 0x7ff8000000000000 | ((rHi << 1) >> 12)
}

/** The result as a single's bits. */
export function packF32(): u32 {
  if (rClass == NORMAL) roundTo(24, -126, 127, 0)
  const sign = rSign << 31
  if (rClass == ZERO) return sign
  if (rClass == INFINITE) return sign | 0x7f800000
  if (rClass == DENORMAL) return sign | <u32>(rHi >> 40)
  if (rClass == NORMAL) return sign | ((rExp + 127) << 23) | <u32>((rHi << 1) >> 41)
  return sign | 0x7fc00000 | <u32>((rHi << 1) >> 41)
}
