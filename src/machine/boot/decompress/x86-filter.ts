/**
 * XZ's x86 filter: the targets of CALL (E8) and JMP (E9) are stored as absolute addresses, which repeat and so compress
 * better. Undoing it turns them back into distances, in place. A target is only converted when its top byte is 00 or FF,
 * and not when the bytes just before look like the inside of another such instruction; the mask remembers those.
 */
const MASK_ALLOWED = [true, true, true, false, true, false, false, false]
const MASK_TO_BIT = [0, 1, 2, 2, 3, 3, 3, 3]

const isSign = (byte: number): boolean => byte === 0 || byte === 0xff

export function undoX86Filter(bytes: Uint8Array, start: number): void {
  if (bytes.length <= 4) return
  let mask = 0
  let previous = -1
  for (let i = 0; i < bytes.length - 4; i++) {
    if ((bytes[i]! & 0xfe) !== 0xe8) continue
    const distance = i - previous
    if (distance > 3) mask = 0
    else {
      mask = (mask << (distance - 1)) & 7
      if (mask !== 0) {
        const byte = bytes[i + 4 - MASK_TO_BIT[mask]!]!
        if (!MASK_ALLOWED[mask] || isSign(byte)) {
          previous = i
          mask = (mask << 1) | 1
          continue
        }
      }
    }
    previous = i
    if (!isSign(bytes[i + 4]!)) {
      mask = (mask << 1) | 1
      continue
    }
    let source = bytes[i + 1]! | (bytes[i + 2]! << 8) | (bytes[i + 3]! << 16) | (bytes[i + 4]! << 24)
    let target: number
    for (;;) {
      target = (source - (start + i + 5)) | 0
      if (mask === 0) break
      const shift = MASK_TO_BIT[mask]! * 8
      if (!isSign((target >>> (24 - shift)) & 0xff)) break
      source = target ^ ((1 << (32 - shift)) - 1)
    }
    target &= 0x01ff_ffff
    target |= -(target & 0x0100_0000)
    bytes[i + 1] = target & 0xff
    bytes[i + 2] = (target >>> 8) & 0xff
    bytes[i + 3] = (target >>> 16) & 0xff
    bytes[i + 4] = (target >>> 24) & 0xff
    i += 4
  }
}
