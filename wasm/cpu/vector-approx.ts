/**
 * RCPPS and RSQRTPS. Only a relative error of 1.5 * 2^-12 is promised (SDM volume 2), and processors differ; here the exact quotient
 * is cut to 12 bits of significand, which is the shape of what their tables give. Denormals count as zeros.
 */

function cut(value: f32): u32 {
  const bits = reinterpret<u32>(value) + 0x400
  return bits & ~0x7ff
}

export function reciprocal(bits: u32): u32 {
  const exponent = (bits >> 23) & 0xff
  const sign = bits & 0x80000000
  if (exponent == 0xff) return bits & 0x7fffff ? bits | 0x400000 : sign
  if (exponent == 0) return sign | 0x7f800000
  const value: f32 = 1 / reinterpret<f32>(bits)
  // A result that is tiny, or the least normal number, is zero.
  if (abs(value) <= reinterpret<f32>(0x00800000)) return sign
  return cut(value)
}

export function reciprocalRoot(bits: u32): u32 {
  const exponent = (bits >> 23) & 0xff
  const sign = bits & 0x80000000
  if (exponent == 0xff && bits & 0x7fffff) return bits | 0x400000
  if (exponent == 0) return sign | 0x7f800000
  if (sign) return 0xffc00000
  if (exponent == 0xff) return 0
  return cut(<f32>(1 / sqrt<f64>(reinterpret<f32>(bits))))
}
