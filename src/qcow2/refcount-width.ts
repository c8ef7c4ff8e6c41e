/** Refcounts of 1 to 64 bits in a block. "Refcount blocks": narrow ones fill a byte from its least significant bit. */
import { DiskError } from './errors.ts'
import { TWO_32 } from './layout.ts'

export const maxRefcount = (bits: number): number => (bits >= 53 ? Number.MAX_SAFE_INTEGER : 2 ** bits - 1)

export function getRefcount(view: DataView, base: number, index: number, bits: number): number {
  switch (bits) {
    case 8:
      return view.getUint8(base + index)
    case 16:
      return view.getUint16(base + index * 2)
    case 32:
      return view.getUint32(base + index * 4)
    case 64:
      return view.getUint32(base + index * 8) * TWO_32 + view.getUint32(base + index * 8 + 4)
    default: {
      const bit = index * bits
      return (view.getUint8(base + (bit >>> 3)) >>> (bit & 7)) & ((1 << bits) - 1)
    }
  }
}

export function setRefcount(view: DataView, base: number, index: number, bits: number, value: number): void {
  switch (bits) {
    case 8:
      view.setUint8(base + index, value)
      return
    case 16:
      view.setUint16(base + index * 2, value)
      return
    case 32:
      view.setUint32(base + index * 4, value)
      return
    case 64:
      view.setUint32(base + index * 8, Math.floor(value / TWO_32))
      view.setUint32(base + index * 8 + 4, value % TWO_32)
      return
    default: {
      const bit = index * bits
      const at = base + (bit >>> 3)
      const mask = ((1 << bits) - 1) << (bit & 7)
      view.setUint8(at, (view.getUint8(at) & ~mask) | (value << (bit & 7)))
    }
  }
}

export function checkRefcount(value: number, bits: number, cluster: number, path: string): void {
  if (value <= maxRefcount(bits)) return
  throw new DiskError(
    'TOO_LARGE',
    path,
    `cluster ${cluster} would need a refcount of ${value}, more than ${bits} bits hold`,
  )
}
